"""The static figure in a notebook."""

from __future__ import annotations

import subprocess
import sys

SHOWS = """
import sys
import numpy as np
from IPython.core.interactiveshell import InteractiveShell
from psnb._src.monitor.plot import plot

series = {name: np.arange(3.0) for name in ("step", "time", "value", "smoothed")}
data, _ = InteractiveShell.instance().display_formatter.format(plot({"loss": series}))
assert data["image/png"], data
assert "matplotlib.pyplot" not in sys.modules
"""


def test_a_figure_is_shown_without_pyplot() -> None:
    # In a process of its own: here, another test may have imported pyplot.
    subprocess.run([sys.executable, "-W", "error", "-c", SHOWS], check=True, timeout=100)
