"""The C++ compiler that torch.compile calls; it is looked for, and not run."""

from __future__ import annotations

from cputune.probing._look import Look

USUAL = "g++"


def read_cxx(look: Look) -> str | None:
    """Its path: what CXX names, else g++ on PATH, as torch looks for it; None with the reason.

    torch/_inductor/config.py, ``cpp.cxx``; clang++ is taken where CXX names it.
    """
    name = look.host.environment().get("CXX") or USUAL
    path = look.host.which(name)
    if path is None:
        where = "in the recording" if not look.host.live else "on PATH"
        look.not_known("cxx", f"there is no {name} {where}")
    return path
