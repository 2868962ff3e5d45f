"""Runs notebooks and writes them with their outputs: ``python -m tests.notebooks [NAME ...]``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat

import psnb
from tests.notebooks.running import NOTEBOOKS, run

for path in [each for each in NOTEBOOKS if each.stem in (sys.argv[1:] or each.stem)]:
    with tempfile.TemporaryDirectory() as folder:
        notebook = run(path, Path(folder))
    # What differs each time and tells nobody anything.
    notebook.metadata = nbformat.read(path, as_version=4).metadata
    notebook.metadata["psnb"] = {"version": psnb.__version__}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:  # Dask's log depends on how busy the machine is
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    nbformat.write(notebook, path)
    print(path)
