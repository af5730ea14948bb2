"""A figure that notebooks show without pyplot, which would keep every figure in memory."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

# Resolution of the PNG in a notebook.
DOTS_PER_INCH = 110


class ShownFigure(Figure):
    """A matplotlib figure with the method that IPython calls."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=DOTS_PER_INCH)
        return out.getvalue()
