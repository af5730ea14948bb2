"""A figure that a notebook shows without pyplot, which would keep every figure alive."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

DOTS_PER_INCH = 110
"""Of the PNG that a notebook shows."""


class ShownFigure(Figure):
    """A figure of matplotlib with what IPython asks of an object that has a picture."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=DOTS_PER_INCH)
        return out.getvalue()
