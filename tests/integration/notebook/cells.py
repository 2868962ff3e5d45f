"""Runs cells in IPython, as a process of its own, and tells what each showed.

``python -m tests.integration.notebook.cells``: a JSON list of cells on stdin, the list of what they
showed on stdout. IPython changes its whole process, so it is not run among the tests.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def shown_by(cells: Sequence[str], timeout: float = 120) -> list[str]:
    """Run cells, the first as number 1, and return what each printed or raised."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.notebook.cells"],
        cwd=Path(__file__).parents[3],
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=True,
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _run(cells: Sequence[str]) -> list[str]:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance(colors="nocolor", history_manager=None)
    outputs = []
    for cell in cells:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            shell.run_cell(cell, store_history=True)
        outputs.append(output.getvalue())
    return outputs


if __name__ == "__main__":
    print(json.dumps(_run(json.load(sys.stdin))))
