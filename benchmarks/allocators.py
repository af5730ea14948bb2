"""Page faults and CPU seconds of a step by what its memory comes from.

    python benchmarks/allocators.py [--recipe bert-mini] [--steps 12] [--bf16] [--libraries FOLDER]

One process of one thread for each allocator and its settings, one after the other: the libraries
are those that `ldconfig` or FOLDER has. The first steps do not count. Page faults are those of
getrusage(2) (ru_minflt), which no neighbour changes; CPU seconds are compared with glibc's malloc
as it is, of which a process runs before and after all others. `set_to_none=False` keeps the memory
of gradients, the embedding's among them, and fills it with zeros.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from cputune.plans.knobs.libraries import JEMALLOC_SETTINGS

INTEL = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
KEPT = "dirty_decay_ms:-1,muzzy_decay_ms:-1"
MIMALLOC_KEPT = {"MIMALLOC_PAGE_RESET": "0", "MIMALLOC_ALLOW_DECOMMIT": "0"}
CASES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("glibc as it is", "", {}),
    ("glibc, gradients kept", "", {"GRADIENTS": "kept"}),
    (
        "glibc, malloc=kept",
        "",
        {
            "MALLOC_MMAP_MAX_": "0",
            "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
            "MALLOC_TOP_PAD_": str(64 << 20),
        },
    ),
    ("tcmalloc", "libtcmalloc_minimal.so.4", {}),
    ("jemalloc as it is", "libjemalloc.so.2", {}),
    ("jemalloc, Intel's launcher", "libjemalloc.so.2", {"MALLOC_CONF": INTEL}),
    ("jemalloc, kept", "libjemalloc.so.2", {"MALLOC_CONF": KEPT}),
    (
        "jemalloc, kept, no oversize arena",
        "libjemalloc.so.2",
        {"MALLOC_CONF": JEMALLOC_SETTINGS},
    ),
    (
        "jemalloc, kept, huge pages",
        "libjemalloc.so.2",
        {"MALLOC_CONF": f"{JEMALLOC_SETTINGS},thp:always,metadata_thp:auto"},
    ),
    ("mimalloc as it is", "libmimalloc.so.2.0", {}),
    ("mimalloc, kept", "libmimalloc.so.2.0", MIMALLOC_KEPT),
    (
        "mimalloc, kept, huge pages",
        "libmimalloc.so.2.0",
        {**MIMALLOC_KEPT, "MIMALLOC_LARGE_OS_PAGES": "1"},
    ),
    ("glibc as it is, again", "", {}),
)  # fmt: skip

TRAIN = """
import json, os, resource, sys
import torch
from transformers import default_data_collator
from cputune.inside.train_recipe import SyntheticSamples, build_model
recipe, steps, bf16 = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True"
torch.set_num_threads(1)
torch.manual_seed(0)
model, _ = build_model(recipe)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
size = recipe["global_batch_size"]
data = SyntheticSamples(recipe, model.config, size * 2)
batches = [default_data_collator([data[n] for n in range(f, f + size)]) for f in (0, size)]
for step in range(steps + 4):
    if step == 4:
        before = resource.getrusage(resource.RUSAGE_SELF)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        loss = model(**batches[step % 2]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=os.environ.get("GRADIENTS") != "kept")
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "faults": (after.ru_minflt - before.ru_minflt) / steps,
    "seconds": (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / steps,
    "system": (after.ru_stime - before.ru_stime) / steps,
    "mib": after.ru_maxrss / 1024,
}))
"""


def library(name: str, folder: Path | None) -> str | None:
    """Where a library is, in the folder or by what the linker finds."""
    if folder is not None:
        return next((str(path.resolve()) for path in folder.rglob(name)), None)
    known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return next((line.split()[-1] for line in known.splitlines() if name in line), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="bert-mini")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--libraries", type=Path, default=None)
    arguments = parser.parse_args()
    from cputune.plans.workload import load_recipe

    recipe = json.dumps(load_recipe(arguments.recipe).to_json())
    found: dict[str, dict[str, float]] = {}
    for name, file, variables in CASES:
        path = library(file, arguments.libraries) if file else ""
        if path is None:
            print(f"{name}: no {file} was found", file=sys.stderr)
            continue
        words = [sys.executable, "-c", TRAIN, recipe, str(arguments.steps), str(arguments.bf16)]
        own = {**os.environ, **variables, **({"LD_PRELOAD": path} if path else {})}
        done = subprocess.run(words, env=own, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: {done.stderr[-300:]}", file=sys.stderr)
            continue
        found[name] = json.loads(done.stdout.splitlines()[-1])
    plain = [told["seconds"] for name, told in found.items() if name.startswith("glibc as it is")]
    heads = ("allocator", "page faults a step", "CPU s a step", "of them kernel", "faster by ×")
    print(f"| {' | '.join(heads)} | peak MiB |")
    print("|---|---|---|---|---|---|")
    for name, told in found.items():
        ratio = sum(plain) / len(plain) / told["seconds"]
        print(
            f"| {name} | {told['faults']:,.0f} | {told['seconds']:.3f} | {told['system']:.3f} "
            f"| {ratio:.2f} | {told['mib']:.0f} |"
        )


if __name__ == "__main__":
    main()
