"""Running notebooks in a real kernel, and what of their outputs must be the same each time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))

_NUMBER = re.compile(r"\d[\d_,]*\.?\d*(?:e[+-]?\d+)?")


def run(path: Path, folder: Path) -> Any:
    """Execute a notebook, and return it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    options = {
        "resources": {"metadata": {"path": folder}},
        "record_timing": False,
        "coalesce_streams": True,
    }
    NotebookClient(notebook, timeout=240, kernel_name="python3", **options).execute()
    return notebook


def told(notebook: Any) -> list[list[str]]:
    """Return what each cell puts out, without figures: kinds, and texts with # for each number."""
    return [_told(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


def _told(outputs: list[Any]) -> list[str]:
    found = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue  # Dask's log, which depends on the moment
        if output["output_type"] == "stream":
            found.append(output["name"] + ": " + _NUMBER.sub("#", output["text"]))
            continue
        data = output.get("data", {})
        html = re.findall(r'class="(psnb[\w-]*)', data.get("text/html", ""))[:1]
        if html == ["psnb-progress"]:
            continue  # only of what takes more than a second
        found.append(" ".join([output["output_type"], *sorted(data), *html]))
    return found
