// Looks at the page that it stands in, and tells the frame around it.
let alerts = 0;
window.alert = () => { alerts += 1; };

const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const numbers = (color) => (color.match(/[\d.]+/g) || []).map(Number);
const light = ([red, green, blue]) =>
  0.2126 * channel(red / 255) + 0.7152 * channel(green / 255) + 0.0722 * channel(blue / 255);

function ground(element) {
  for (let at = element; at; at = at.parentElement) {
    const color = numbers(getComputedStyle(at).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
}

function contrast(element) {
  const style = getComputedStyle(element);
  const ink = numbers(element instanceof SVGElement ? style.fill : style.color);
  const [a, b] = [light(ink), light(ground(element))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}

function pale() {
  // WCAG 2.2, 1.4.3: 4.5, of large text 3.
  const found = [];
  for (const element of document.body.querySelectorAll("*:not(script)")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const shown = element.checkVisibility && element.checkVisibility({ visibilityProperty: true });
    if (!own || !shown) continue;
    const style = getComputedStyle(element);
    // Black or white on a bar of the picture, not on the page: tests/figures/ hold these.
    if (["rgb(0, 0, 0)", "rgb(255, 255, 254)"].includes(style.fill) && element instanceof SVGElement) continue;
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = contrast(element);
    if (ratio < (large ? 3 : 4.5)) found.push(`${element.textContent.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return found;
}

function nameless() {
  const unnamed = (query, name) => [...document.querySelectorAll(query)].filter((e) => !name(e));
  return [
    ...unnamed("button, a", (e) => e.ariaLabel || e.textContent.trim()),
    ...unnamed("[role=img], [role=region]", (e) => e.ariaLabel),
    ...unnamed("table", (e) => e.caption && e.caption.textContent),
    ...unnamed("th", (e) => e.scope && e.textContent.trim()),
    ...unnamed("html", (e) => e.lang),
  ].map((element) => element.outerHTML.slice(0, 200));
}

function small() {
  // WCAG 2.2, 2.5.8: what a finger meets is 24 pixels wide and high at least.
  return [...document.querySelectorAll("button, summary")]
    .filter((e) => e.offsetWidth < 24 || e.offsetHeight < 24)
    .map((e) => e.outerHTML.slice(0, 100));
}

async function barriers() {
  // axe-core, where the test has put it into the page.
  if (!window.axe) return null;
  const found = await window.axe.run(document, { resultTypes: ["violations"] });
  return found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 80)).join(" ")}`);
}

addEventListener("load", () => {
  document.querySelectorAll("details").forEach((part) => { part.open = true; });
  setTimeout(async () => parent.postMessage(JSON.stringify({
    bars: [...document.querySelectorAll("svg path")].filter((e) => e.getBoundingClientRect().width > 0).length,
    small: small(),
    too_wide_by: document.documentElement.scrollWidth - innerWidth,
    asked_for: performance.getEntriesByType("resource").map((entry) => entry.name),
    nameless: nameless(),
    pale: pale(),
    ground: getComputedStyle(document.body).backgroundColor,
    alerts,
    barriers: await barriers(),
    words: document.querySelector("main").innerText,
  }), "*"), 300);
});
