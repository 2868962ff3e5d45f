"""The notebooks, run in a real kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"


def outputs(notebook: Any, mime: str) -> list[Any]:
    """Return what all cells put out of one kind, in order."""
    return [
        output["data"][mime]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if mime in output.get("data", {})
    ]


def printed(notebook: Any) -> str:
    return "".join(
        output["text"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output["output_type"] == "stream"
    )


def run(path: Path, folder: Path) -> Any:
    """Execute a notebook, and return it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    client.execute()
    return notebook


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.slow
def test_the_quickstart_trains_shows_the_widget_and_saves(tmp_path: Path) -> None:
    notebook = run(NOTEBOOKS[0], tmp_path)
    auc = re.search(r"held-out AUC ([\d.]+)", printed(notebook))
    assert auc is not None
    assert float(auc[1]) > 0.80
    assert len(outputs(notebook, "image/png")) == 1
    assert (tmp_path / "psnb-quickstart").is_dir()

    # The live view has made way for the final state, which nbconvert shows, too.
    assert outputs(notebook, WIDGET) == []
    (final,) = [html for html in outputs(notebook, "text/html") if "psnb-summary" in html]
    exported, _ = HTMLExporter().from_notebook_node(notebook)
    for part in ("closed", "completed 519", "loss", "auc", "<svg"):
        assert part in final
        assert part in exported


@pytest.mark.slow
def test_the_notebook_of_datasets_uses_every_example_once_though_a_worker_is_killed(
    tmp_path: Path,
) -> None:
    notebook = run(NOTEBOOKS[1], tmp_path)
    said = printed(notebook)
    assert "the same batch: True" in said
    assert "a worker was killed: True" in said
    assert re.findall(r"visits of each example: \[(.*)\]", said) == ["1.", "3.", "4."]
    (chain,) = [html for html in outputs(notebook, "text/html") if "psnb-dataset" in html]
    assert "prefetch" in chain
