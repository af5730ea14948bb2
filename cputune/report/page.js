"use strict";
// Draws the pictures, copies commands, and makes the page ready for paper. Asks no network.
const holders = [...document.querySelectorAll("[data-chart]")];

async function unpackPlotly() {
  const packed = document.getElementById("plotly");
  if (!packed) return;
  const bytes = Uint8Array.from(atob(packed.textContent), (sign) => sign.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(plain).text();
  document.head.append(script);
}

async function draw() {
  await unpackPlotly();
  for (const holder of holders) {
    const { data, layout } = JSON.parse(document.getElementById(holder.dataset.chart).textContent);
    await Plotly.newPlot(holder, data, layout, { responsive: true, displayModeBar: false });
  }
  document.body.dataset.drawn = String(holders.length);
}

draw().catch((error) => {
  document.body.dataset.drawn = "failed";
  for (const holder of holders) {
    holder.style.minHeight = "0";
    holder.textContent = `This browser draws no picture (${error.message}). ${holder.ariaLabel}`;
  }
});

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
}

const PAPER = 680; // pixels between the margins of A4 and Letter
addEventListener("beforeprint", () => {
  if (window.Plotly) holders.forEach((holder) => Plotly.relayout(holder, { width: PAPER }));
});
addEventListener("afterprint", () => {
  if (window.Plotly) holders.forEach((holder) => Plotly.relayout(holder, { width: null, autosize: true }));
});
