"""The static figure in a notebook."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from psnb._src.monitor.charts.plot import plot
from psnb._src.monitor.history import EpochBegin, Rewind

SHOWS = """
import sys
import numpy as np
from IPython.core.interactiveshell import InteractiveShell
from psnb._src.monitor.charts.plot import plot

series = {name: np.arange(3.0) for name in ("step", "time", "value", "smoothed")}
data, _ = InteractiveShell.instance().display_formatter.format(plot({"loss": series}))
assert data["image/png"], data
assert "matplotlib.pyplot" not in sys.modules
"""


def test_a_figure_is_shown_without_pyplot() -> None:
    # In a process of its own: here, another test may have imported pyplot.
    subprocess.run([sys.executable, "-W", "error", "-c", SHOWS], check=True, timeout=100)


def series(values: np.ndarray, steps: np.ndarray) -> dict[str, np.ndarray]:
    return {"step": steps, "time": steps, "value": values, "smoothed": values - 1}


def test_charts_share_their_steps_and_an_outlier_is_a_triangle_at_the_edge() -> None:
    steps = np.arange(1.0, 101.0)
    loss = np.where(steps == 7, 1e6, steps / 100)
    history = {"loss": series(loss, steps), "auc": series(np.array([0.5]), np.array([50.0]))}
    figure = plot(history, epochs=[EpochBegin(1, 0, 0.0), EpochBegin(2, 50, 9.0)])
    first, second = figure.axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_ylim()[1] < 1.1
    (beyond,) = [line for line in first.lines if line.get_marker() == "^"]
    assert beyond.get_xdata().tolist() == [7.0]
    assert [text.get_text() for text in first.texts] == ["epoch 1", "2"]


def test_an_abandoned_branch_is_paler_and_no_line_goes_across_a_rewind() -> None:
    steps = np.arange(1.0, 7.0)
    history = {"loss": series(steps, steps), "val_loss": series(steps[1::2], steps[1::2])}
    figure = plot(history, rewinds=[Rewind(4, 4.0, 0.0, 2.0)])
    expected = [[[1, 2], [2, 3, 4], [5, 6]], [[2], [2, 4], [6]]]
    for axes, places in zip(figure.axes, expected, strict=True):
        *curves, rewind = axes.lines
        assert [line.get_xdata().tolist() for line in curves[1::2]] == places
        for kind in (curves[::2], curves[1::2]):
            before, abandoned, after = (line.get_alpha() for line in kind)
            assert abandoned < 0.5 * before == 0.5 * after
        assert (rewind.get_xdata(), rewind.get_linestyle()) == ([4, 4], "--")
    assert [text.get_text() for text in figure.axes[0].texts] == ["rewound"]


def test_a_logarithmic_axis_shows_all() -> None:
    steps = np.arange(1.0, 101.0)
    figure = plot({"loss": series(np.where(steps == 7, 1e6, steps), steps)}, log=True)
    assert figure.axes[0].get_ylim()[1] > 1e6
