"""The notebooks, run in a real kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

import psnb
from tests.conftest import wait_until
from tests.notebooks.running import NOTEBOOKS, run, told

WIDGET = "application/vnd.jupyter.widget-view+json"

pytestmark = pytest.mark.timeout(1200)  # the longest take a minute on a machine that is idle

REST = pytest.mark.second_tier(
    "a notebook in a real kernel: the quickstart is in the first tier, the features have tests"
)

_ANEW = "the notebook puts out something else than when it was committed: python -m tests.notebooks"


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


def named(stem: str) -> Path:
    """Return a notebook's path."""
    (path,) = [each for each in NOTEBOOKS if each.stem == stem]
    return path


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_as_they_ran_from_top_to_bottom(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert path.stat().st_size < 300_000
    assert notebook.metadata["psnb"]["version"] == psnb.__version__, _ANEW


def test_the_quickstart_trains_and_shows_the_widget(tmp_path: Path) -> None:
    notebook = run(NOTEBOOKS[0], tmp_path)
    assert told(notebook) == told(nbformat.read(NOTEBOOKS[0], as_version=4)), _ANEW
    auc = re.search(r"held-out AUC ([\d.]+)", printed(notebook))
    assert auc is not None
    assert float(auc[1]) > 0.78
    assert len(outputs(notebook, "image/png")) == 1

    # The live view has made way for the final state, which nbconvert shows, too.
    assert outputs(notebook, WIDGET) == []
    (final,) = [html for html in outputs(notebook, "text/html") if "psnb-summary" in html]
    exported, _ = HTMLExporter().from_notebook_node(notebook)
    for part in ("closed", "completed 2,053", "loss", "<svg"):
        assert part in final
        assert part in exported


@REST
def test_the_notebook_of_datasets_uses_every_example_once_though_a_worker_is_killed(
    tmp_path: Path,
) -> None:
    notebook = run(NOTEBOOKS[1], tmp_path)
    assert told(notebook) == told(nbformat.read(NOTEBOOKS[1], as_version=4)), _ANEW
    said = printed(notebook)
    assert "the same batch: True" in said
    assert "a worker was killed: True" in said
    assert re.findall(r"visits of each example: \[(.*)\]", said) == ["1.", "3.", "4."]
    (chain,) = [html for html in outputs(notebook, "text/html") if "psnb-dataset" in html]
    assert "prefetch" in chain


@REST
@pytest.mark.parametrize("number", [2, 3, 4], ids=["pytorch", "jax", "keras"])
def test_the_notebooks_of_frameworks_train_and_end_in_a_figure(tmp_path: Path, number: int) -> None:
    notebook = run(NOTEBOOKS[number], tmp_path)
    assert told(notebook) == told(nbformat.read(NOTEBOOKS[number], as_version=4)), _ANEW
    said = printed(notebook)
    auc = re.search(r"held-out AUC ([\d.]+)", said)
    assert auc is not None
    assert float(auc[1]) > 0.80
    assert "True" in said
    assert "False" not in said
    assert len(outputs(notebook, "image/png")) == 1


@REST
def test_the_notebook_of_the_lab_goes_back_to_the_bit(tmp_path: Path) -> None:
    path = named("15_the_lab")
    notebook = run(path, tmp_path)
    assert told(notebook) == told(nbformat.read(path, as_version=4)), _ANEW
    said = printed(notebook)
    assert "worst: IT" in said
    assert "as before, to the bit: True" in said
    assert "and it learns on: True" in said
    assert "False" not in said


@REST
def test_the_notebook_that_looks_into_tables_finds_genres_and_rows_leave(tmp_path: Path) -> None:
    path = named("14_look_into_tables")
    notebook = run(path, tmp_path)
    assert told(notebook) == told(nbformat.read(path, as_version=4)), _ANEW
    said = printed(notebook)
    same = re.search(r"film's genre: (\d+)%", said)
    assert same is not None
    assert int(same[1]) > 90
    assert "rows by days unseen: {1: 180, 5: 60}" in said
    assert "60 rows are gone, 180 stay" in said
    assert "neighbours are of ['comedy', 'drama', 'western']" in said
    assert len(outputs(notebook, "image/png")) == 2


@REST
def test_the_notebook_from_paddle_trains_exports_restores_and_predicts_day_by_day(
    tmp_path: Path,
) -> None:
    path = named("06_from_paddle")
    notebook = run(path, tmp_path)
    assert told(notebook) == told(nbformat.read(path, as_version=4)), _ANEW
    said = printed(notebook)
    days = [float(auc) for auc in re.findall(r"trained: AUC of the next day ([\d.]+)", said)]
    assert len(days) == 3
    assert days[2] > days[0] > 0.70
    new, restored = (
        float(re.search(rf"^{word}: AUC ([\d.]+)", said, re.MULTILINE)[1])  # type: ignore[index]
        for word in ("new", "restored")
    )
    assert restored == days[2] > new + 0.1
    exported = re.search(r"feeds ad, query, user: AUC of the next day ([\d.]+)", said)
    assert exported is not None
    assert float(exported[1]) == days[2]
    assert "as on the servers: True" in said
    assert len(list((tmp_path / "models").iterdir())) == 3
    predicted = re.search(r"(\d+) files, 16,384 rows, AUC ([\d.]+)", said)
    assert predicted is not None
    assert float(predicted[2]) > 0.75
    assert len(list((tmp_path / "predictions").iterdir())) == int(predicted[1])
    assert 1 <= len(list((tmp_path / "checkpoints").glob("ckpt-*"))) <= 3


@REST
def test_the_notebook_that_goes_on_uses_every_order_once_an_epoch_whatever_is_killed(
    tmp_path: Path,
) -> None:
    path = named("08_save_kill_go_on")
    notebook = run(path, tmp_path)
    assert told(notebook) == told(nbformat.read(path, as_version=4)), _ANEW
    said = printed(notebook)
    assert "workers lost: 1" in said
    epochs = re.findall(r"^orders of each epoch: (.*)$", said, re.MULTILINE)
    assert epochs == [" ".join(["50000"] * number) for number in (4, 6, 8)]
    auc = re.search(r"held-out AUC ([\d.]+)", said)
    assert auc is not None
    assert float(auc[1]) > 0.80


@REST
def test_the_notebook_of_embeddings_learns_of_any_id_and_forgets(tmp_path: Path) -> None:
    path = named("13_embeddings")
    notebook = run(path, tmp_path)
    assert told(notebook) == told(nbformat.read(path, as_version=4)), _ANEW
    said = printed(notebook)
    assert re.findall(r"a row: (\w+)", said) == ["False", "False", "True"]
    assert "100 rows removed, 3 left" in said
    auc = re.search(r"AUC of other clicks ([\d.]+)", said)
    assert auc is not None
    assert float(auc[1]) > 0.75


@REST
def test_the_notebook_of_the_trainer_stops_early_and_predicts_every_flight(tmp_path: Path) -> None:
    path = named("10_trainer")
    notebook = run(path, tmp_path)
    assert told(notebook) == told(nbformat.read(path, as_version=4)), _ANEW
    said = printed(notebook)
    auc = re.search(r"held-out AUC ([\d.]+) after epoch 1", said)
    assert auc is not None
    assert float(auc[1]) > 0.80
    assert "65,469 predictions, of 65,469 flights" in said


@REST
def test_the_notebook_that_steers_a_run_holds_it_and_adds_a_worker(tmp_path: Path) -> None:
    path = named("11_watch_and_steer")
    notebook = run(path, tmp_path)
    assert told(notebook) == told(nbformat.read(path, as_version=4)), _ANEW
    said = printed(notebook)
    assert "False" not in said
    assert "workers: 3" in said
    (final,) = [html for html in outputs(notebook, "text/html") if "psnb-summary" in html]
    assert "completed 1,000" in final


@REST
def test_the_notebook_that_serves_predicts_in_other_processes_and_follows(tmp_path: Path) -> None:
    path = named("12_serve")
    notebook = run(path, tmp_path)
    assert told(notebook) == told(nbformat.read(path, as_version=4)), _ANEW
    said = printed(notebook)
    assert "probabilities: (2,)" in said
    assert "False" not in said
    auc = re.search(r"AUC of other clicks ([\d.]+)", said)
    assert auc is not None
    assert float(auc[1]) > 0.80


@REST
def test_the_notebook_of_dask_uses_every_flight_once_though_a_worker_is_killed(
    tmp_path: Path,
) -> None:
    (path,) = [each for each in NOTEBOOKS if each.stem == "09_dask_dataframe"]
    notebook = run(path, tmp_path)
    assert told(notebook) == told(nbformat.read(path, as_version=4)), _ANEW
    said = printed(notebook)
    assert "workers lost: 1" in said
    assert "each flight used once: True" in said
    auc = re.search(r"held-out AUC ([\d.]+)", said)
    assert auc is not None
    assert float(auc[1]) > 0.81
    assert len(outputs(notebook, "image/png")) == 1


@pytest.fixture
def surviving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The notebook of deaths, whose processes have the test's folder in their command lines."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return named("07_surviving")


def processes_of(folder: Path) -> list[psutil.Process]:
    return [
        each
        for each in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in each.info["cmdline"] or ())
    ]


@REST
def test_the_notebook_of_deaths_loses_nothing_and_leaves_no_process(
    surviving: Path, tmp_path: Path
) -> None:
    notebook = run(surviving, tmp_path)
    assert told(notebook) == told(nbformat.read(surviving, as_version=4)), _ANEW
    said = printed(notebook)
    assert "False" not in said
    trained = re.findall(r"^([\d,]+) of 4,091 batches trained;", said, re.MULTILINE)
    assert len(trained) == 4
    assert trained[0] == "1,600"
    assert trained[-1] == "4,091"
    assert len(re.findall(r"was killed: training stood still for +[\d.]+ s", said)) == 4
    assert len(outputs(notebook, "image/png")) == 1
    wait_until(lambda: not processes_of(tmp_path), "all processes have ended")


@REST
def test_a_cell_of_the_notebook_of_deaths_that_fails_leaves_no_process(
    surviving: Path, tmp_path: Path
) -> None:
    notebook = nbformat.read(surviving, as_version=4)
    first = next(i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    fail = 'raise RuntimeError(f"{len(processes)} processes run")'
    notebook.cells[first + 1 :] = [nbformat.v4.new_code_cell(fail)]
    failing = tmp_path / "failing.ipynb"
    nbformat.write(notebook, failing)
    with pytest.raises(CellExecutionError, match="5 processes run"):
        run(failing, tmp_path)
    wait_until(lambda: not processes_of(tmp_path), "all processes have ended")
