"""MetricsFigure: a matplotlib figure that a notebook shows, whether pyplot was imported or not.

IPython shows plain figures only after pyplot has told it how.
"""

from __future__ import annotations

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class MetricsFigure(Figure):
    """A figure that needs no window system, and leaves no global state behind.

    Parameters
    ----------
    charts : int
        How many charts are below each other.
    """

    def __init__(self, charts: int) -> None:
        super().__init__(figsize=(6.4, 2.8 * charts), dpi=150, layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()
