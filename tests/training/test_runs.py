"""The runs of a folder, and what is drawn of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

import psnb
from psnb._src.checkpoint.local_store import LocalStore
from psnb._src.checkpoint.manifest import MANIFEST
from psnb._src.checkpoint.writing import write_checkpoint
from psnb._src.monitor.charts.curves import curves_of, saved_curves
from psnb._src.monitor.history import History
from psnb._src.monitor.run_record import Change, RunRecord, RunSettings
from psnb._src.training.history import saved_rows
from psnb._src.training.runs import summary
from psnb.errors import CheckpointError, ConfigurationError
from tests.checkpoint.saved import InHand, parameter
from tests.training.fake_trainer import row

SETTINGS = RunSettings(
    {"name": "Async"},
    0,
    2,
    1,
    "1a2b3c4d" * 5,
    {"w": {"name": "SGD", "learning_rate": 0.1}},
    [Change(5.0, "w", "learning_rate", 0.05)],
    {"psnb": "0.1.0"},
)


def record(
    name: str, losses: list[float], identity: str = "", saved: float = 100.0, back: float = 0.0
) -> RunRecord:
    """Return a record of losses from time 50 on; the last is behind a rewind, if it went back."""
    history = History()
    for number, loss in enumerate(losses):
        if back and number == len(losses) - 1:
            history.cut(49.5 + number, back)
        history.add(50.0 + number, {"loss": loss, "examples": 8.0})
    curves = saved_curves(curves_of(history))
    return RunRecord(identity or name, name, 40.0, saved, SETTINGS, curves)


def save(folder: Path, run: Any, metadata: Any = None) -> Path:
    folder.mkdir(exist_ok=True)
    made = {"record": msgspec.to_builtins(run)} if isinstance(run, RunRecord) else run
    taken = InHand([parameter()])
    return Path(write_checkpoint(LocalStore(folder), taken, metadata or {}, run=made).path)


def test_the_newest_checkpoint_of_each_run_counts(tmp_path: Path) -> None:
    save(tmp_path / "one", record("a", [3.0], saved=100.0))
    save(tmp_path / "one", record("b", [5.0, 4.0], saved=101.0))
    newest = save(tmp_path / "one", record("a", [3.0, 1.0, 2.0], saved=102.0))
    found = psnb.runs(tmp_path)
    assert [(run.name, run.saved) for run in found] == [("b", 101.0), ("a", 102.0)]
    run = found[1]
    assert run.path == newest
    assert run.metrics == {"loss": psnb.RunMetric(2.0, 2.0, 2, False)}
    assert run.history["loss"]["value"].tolist() == [3.0, 1.0, 2.0]
    assert run.settings["commit"] == "1a2b3c4d" * 5
    assert found.wrong == ()


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    save(tmp_path / "whole", record("whole", [1.0]))
    save(tmp_path / "older", record("older", [1.0]))
    newest = save(tmp_path / "older", record("older", [1.0, 2.0]))
    (newest / MANIFEST).write_text("{}")
    bad = save(tmp_path / "odd", {"record": {"id": 3}})
    (tmp_path / "x.run.json").write_text("[]")
    found = psnb.runs(tmp_path)
    assert sorted(run.name for run in found) == ["odd", "older", "whole"]
    text = "\n".join(found.wrong)
    assert all(str(each) in text for each in (newest, bad, tmp_path / "x.run.json"))
    assert all(each in repr(found) for each in found.wrong)
    assert "whole" in found._repr_html_()
    assert "damaged" in found._repr_html_()
    assert newest.exists()
    assert bad.exists()


def test_what_an_earlier_psnb_saved_of_a_trainer_is_listed(tmp_path: Path) -> None:
    metadata = {"rows": saved_rows((row(1, auc=0.5), row(2, auc=0.75), row(3, auc=0.7)))}
    save(tmp_path / "monday", {}, metadata)
    (run,) = psnb.runs(tmp_path)
    assert (run.name, run.epochs, run.settings) == ("monday", 3, {})
    assert run.metrics == {"auc": psnb.RunMetric(0.7, 0.75, 20, True)}


def test_other_files_and_metadata_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("not JSON")
    save(tmp_path / "a", {}, {"rows": "of my own"})
    (run,) = psnb.runs(tmp_path)
    assert run.metrics == {}
    assert "a" in repr(run)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        psnb.runs(tmp_path / "nowhere")
    assert repr(psnb.runs(tmp_path)) == psnb.runs(tmp_path)._repr_html_()[5:-6] == "no runs"


def test_a_history_is_saved_and_found(tmp_path: Path) -> None:
    settings = msgspec.to_builtins(SETTINGS)
    rows = (row(1, loss=0.5), row(2, loss=float("nan")))
    history = psnb.TrainingHistory(rows, "stopped", {}, settings)
    path = history.save(tmp_path / "monday.run.json")
    (run,) = psnb.runs(tmp_path)
    assert (run.name, run.path, run.epochs, run.settings) == ("monday", path, 2, settings)
    assert run.history["loss"]["step"].tolist() == [10, 20]
    assert run.metrics["loss"].best == 0.5
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_history_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = psnb.TrainingHistory((row(1, loss=0.5),)).save(tmp_path / "a.run.json")
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError("no room")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no room"):
        psnb.TrainingHistory().save(path)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [before]


def test_a_history_has_its_own_ending(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"must end with '\.run\.json'"):
        psnb.TrainingHistory().save(tmp_path / "a.json")


def test_a_history_with_other_content_is_damaged(tmp_path: Path) -> None:
    path = psnb.TrainingHistory((row(1, loss=0.5),)).save(tmp_path / "a.run.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "stopped": "other"}))
    found = psnb.runs(tmp_path)
    assert not found
    assert "checksum" in found.wrong[0]
    with pytest.raises(CheckpointError, match="checksum"):
        psnb.compare(path)


def test_a_history_of_odd_rows_does_not_hide_the_others(tmp_path: Path) -> None:
    odd: Any = psnb.EpochRow(1, {"loss": 0.5}, 10**400, 10, 1.0)
    path = psnb.TrainingHistory((odd,)).save(tmp_path / "a.run.json")
    psnb.TrainingHistory((row(1, loss=0.5),)).save(tmp_path / "b.run.json")
    found = psnb.runs(tmp_path)
    assert [run.name for run in found] == ["b"]
    assert str(path) in found.wrong[0]


def test_settings_are_a_line() -> None:
    settings = msgspec.to_builtins(SETTINGS)
    assert summary(settings) == "Async, 2 workers, SGD 0.1 → 0.05, 1a2b3c4d"
    assert summary({**settings, "commit": "", "changes": []}) == "Async, 2 workers, SGD 0.1"
    schedule = {"w": {"name": "SGD", "learning_rate": {"name": "CosineDecay"}}}
    assert summary({**settings, "optimizers": schedule, "changes": []}).startswith(
        "Async, 2 workers, SGD CosineDecay"
    )


@pytest.mark.parametrize(
    ("by", "places"), [("step", [1, 2]), ("examples", [8.0, 16.0]), ("time", [0.0, 1.0])]
)
def test_runs_are_drawn_over_each_other(tmp_path: Path, by: Any, places: list[float]) -> None:
    save(tmp_path / "one", record("$a_1$", [3.0, 2.0]))
    save(tmp_path / "two", record("$a_1$", [2.0, 1.0], "other"))
    figure = psnb.compare(*psnb.runs(tmp_path), tmp_path / "one", by=by)
    (axes,) = figure.axes
    smoothed = [line for line in axes.lines if line.get_linewidth() > 1]
    assert [line.get_xdata().tolist() for line in smoothed] == [places] * 3  # type: ignore[union-attr]
    legend = axes.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["$a_1$", "$a_1$ (2)", "$a_1$ (3)"]
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("by", "places", "rewound"),
    [
        ("step", [[1, 2], [2, 3, 4], [5]], 4),
        ("examples", [[8, 16], [16, 24, 32], [40]], 32),
        ("time", [[0, 1], [1, 2, 3], [4]], 3.5),
    ],
)
def test_a_saved_run_that_went_back_is_drawn_in_branches_and_compared_by_what_was_kept(
    tmp_path: Path, by: Any, places: list[list[float]], rewound: float
) -> None:
    save(tmp_path / "one", record("a", [5.0, 4.0, 1.0, 9.0, 4.0], back=51.5))
    save(tmp_path / "two", record("b", [2.0]))
    found = psnb.runs(tmp_path)
    assert found[0].metrics == {"loss": psnb.RunMetric(4.0, 4.0, 5, False)}
    (axes,) = psnb.compare(*found, by=by).axes
    lines = [line for line in axes.lines if line.get_color() == "C0"]
    smoothed = [line for line in lines if line.get_linewidth() > 1]
    assert [line.get_xdata().tolist() for line in smoothed] == places  # type: ignore[union-attr]
    kept, abandoned, after = (line.get_alpha() or 1.0 for line in smoothed)
    assert abandoned < 0.5 * kept == 0.5 * after
    (rewind,) = (line for line in lines if line.get_linestyle() == "--")
    assert rewind.get_xdata() == [rewound, rewound]
    legend = axes.get_legend()
    assert legend is not None
    assert [line.get_color() for line in legend.get_lines()] == ["C0", "C1"]


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    history: Any = psnb.TrainingHistory((psnb.EpochRow(1, {"loss": 0.5}, None, 10, 1.0),))
    for wanted, given, more in [
        ("takes runs", (), {}),
        ("found 3", (3,), {}),
        ("there is no metric 'los': did you mean 'loss'", (history,), {"metrics": "los"}),
        ("has reported no examples", (history,), {"by": "examples"}),
        ("by must be", (history,), {"by": "epochs"}),
        ("no run has reported a metric", (psnb.TrainingHistory(),), {}),
    ]:
        with pytest.raises(ConfigurationError, match=wanted):
            psnb.compare(*given, **more)
    with pytest.raises(CheckpointError, match="there is no run in"):
        psnb.compare(tmp_path)


def test_the_path_of_one_run_is_that_run(tmp_path: Path) -> None:
    saved = save(tmp_path, record("a", [3.0]))
    history = psnb.TrainingHistory((row(1, loss=0.5),)).save(tmp_path / "monday.run.json")
    assert [run.path for run in psnb.runs(saved)] == [saved]
    assert [run.name for run in psnb.runs(history)] == ["monday"]


def test_a_pipe_with_the_name_of_a_history_is_no_history(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.run.json")  # to read one that nobody writes would take for ever
    found = psnb.runs(tmp_path)
    assert (len(found), len(found.wrong)) == (0, 1)


def test_parts_and_lists_of_runs_are_compared_as_they_are(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        psnb.TrainingHistory((row(1, loss=0.5),)).save(tmp_path / f"{name}.run.json")
    found = psnb.runs(tmp_path)
    for given in (found[:2], [*found[:2]], [[found[0]], found[1]]):
        (axes,) = psnb.compare(given).axes
        assert len(axes.get_legend().get_texts()) == 2


def test_metrics_that_are_no_names_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no metric 3; there are loss"):
        psnb.compare(psnb.TrainingHistory((row(1, loss=0.5),)), metrics=3)  # type: ignore[arg-type]
