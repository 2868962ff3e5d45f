"""Tests of models that take newer checkpoints: wholly or not at all."""

from __future__ import annotations

import gc
import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import psnb
from psnb._src.checkpoint import following, shards
from psnb._src.checkpoint.saved_table import SavedTable
from psnb._src.models.export.tables import StoredTable
from psnb._src.server.tables import saved_files
from psnb.errors import CheckpointError, ConfigurationError, ExportError
from tests.checkpoint.saved import forge
from tests.checkpoint.test_deltas import IDS as OLD_IDS
from tests.checkpoint.test_deltas import MEMORY, NEW, forget_memory, take
from tests.conftest import wait_until
from tests.models.export.followed import BATCH, Run, assert_predicts
from tests.models.export.test_hostile_models import forge as forge_model


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture(params=["local", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "run") if request.param == "local" else MEMORY
    forget_memory()


def followers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "psnb-following"]


def test_it_predicts_with_a_newer_checkpoint_and_says_so(
    run: Run, tmp_path: Path, address: str
) -> None:
    manager = run.manager(address)
    model = run.model(tmp_path / "m", manager, metadata={"day": 1})
    exported = run.expected()
    assert (model.version.path, model.version.metadata) == (str(tmp_path / "m"), {"day": 1})
    assert not model.refresh()
    run.push(3)
    run.any.push([99], np.ones((1, 2), np.float32))
    assert_predicts(model, exported)
    path = manager.save({"day": 2})
    assert model.refresh()
    assert_predicts(model, run.expected())
    version = model.version
    assert (version.path, version.number, version.closures) == (str(path), 1, 7)
    assert version.metadata == {"day": 2}
    assert path.name in repr(model)
    assert not model.refresh()


STEP = st.one_of(
    st.tuples(st.sampled_from(["push", "assign"]), OLD_IDS),
    st.tuples(st.sampled_from(["grow", "see"]), NEW),
    st.tuples(st.just("move"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["day", "shrink", "restore", "refresh"]), st.none()),
)


@settings(max_examples=25, deadline=None)
@given(
    shards=st.integers(1, 3),
    keep=st.integers(1, 9),
    saves=st.lists(st.lists(STEP, max_size=4), min_size=2, max_size=7),
)
def test_each_checkpoint_is_predicted_with_whatever_happened_before(
    shards: int, keep: int, saves: list[list[tuple[str, Any]]]
) -> None:
    run = Run(shards)
    with TemporaryDirectory() as folder:
        manager = run.manager(Path(folder) / "run", keep)
        model = run.model(Path(folder) / "m", manager)
        expected = saved = run.expected()
        manager.save()
        for steps in saves:
            for what, value in steps:
                if what == "refresh":
                    model.refresh()
                    expected = saved
                else:
                    take(run, manager, what, value)
            assert_predicts(model, expected)
            manager.save()
            saved = run.expected()
        model.refresh()
        assert_predicts(model, saved)


def test_rows_that_vanish_start_over(run: Run, tmp_path: Path) -> None:
    manager = run.manager(tmp_path / "run")
    model = run.model(tmp_path / "m", manager)
    manager.save()
    model.refresh()
    run.waiting.end_day()
    assert run.waiting.shrink(1e9) > 0
    manager.save()
    model.refresh()
    assert_predicts(model, run.expected())


def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the files are added that are read."""
    found: list[str] = []
    read = saved_files.checksum

    def noting(path: Path, *on_read: Any) -> str:
        found.append(path.name)
        return read(path, *on_read)

    monkeypatch.setattr(saved_files, "checksum", noting)
    return found


def test_of_a_delta_only_its_own_files_are_read(
    run: Run, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run.manager(address)
    model = run.model(tmp_path / "m", manager)
    manager.save()
    model.refresh()
    found = read_files(monkeypatch)
    for number in (1, 2):
        run.any.push([3], np.ones((1, 2), np.float32))
        manager.save()
        assert model.refresh()
        assert [name.endswith(f"-0{number}.bin") for name in found] == [True]
        found.clear()
    assert_predicts(model, run.expected())


def test_the_rows_of_the_whole_checkpoint_are_shared_by_its_deltas(
    run: Run, tmp_path: Path
) -> None:
    manager = run.manager(tmp_path / "run")
    model = run.model(tmp_path / "m", manager)
    bases = []
    for _ in range(5):  # of which the fifth is whole again
        run.any.push([3], np.ones((1, 2), np.float32))
        manager.save()
        model.refresh()
        bases.append(id(model._state.tables["any"].content._layers[-1]))  # type: ignore[attr-defined]
        assert len(model._state.tables["any"].content) == 10
    assert len({*bases[:4]}) == 1
    assert bases[4] != bases[3]


def test_a_prediction_is_of_one_checkpoint_though_a_newer_one_comes_meanwhile(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run.manager(tmp_path / "run")
    model = run.model(tmp_path / "m", manager)
    before = run.expected()
    run.push(*range(10))
    manager.save()
    looked_up, done = StoredTable.lookup, []

    def meanwhile(table: StoredTable, ids: np.ndarray) -> np.ndarray:
        done.append(model.refresh())  # between the rows of one table and those of the next
        return looked_up(table, ids)

    with monkeypatch.context() as patch:
        patch.setattr(StoredTable, "lookup", meanwhile)
        assert_predicts(model, before)
    assert done == [True, False, False]
    assert_predicts(model, run.expected())


def test_of_two_refreshes_at_once_the_newer_one_stays(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run.manager(tmp_path / "run")
    model = run.model(tmp_path / "m", manager)
    manager.save()
    read, done = following._read, []

    def slowly(*given: Any) -> Any:
        found = read(*given)
        if not done:
            done.append(None)
            run.push(1)
            manager.save()
            assert model.refresh()
        return found

    monkeypatch.setattr(following, "_read", slowly)
    assert not model.refresh()
    assert model.version.number == 2
    assert_predicts(model, run.expected())


def test_checkpoints_from_before_the_export_are_not_newer(run: Run, tmp_path: Path) -> None:
    manager = run.manager(tmp_path / "run")
    manager.save()
    run.push(1)
    model = run.model(tmp_path / "m", manager)
    assert not model.refresh()
    assert_predicts(model, run.expected())
    assert model.version.number == 1


def test_a_directory_that_was_moved_is_followed_where_it_is(run: Run, tmp_path: Path) -> None:
    manager = run.manager(tmp_path / "run")
    model = run.model(tmp_path / "m", manager)
    run.push(1)
    manager.save()
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert not model.refresh()
    assert model.refresh(tmp_path / "moved")
    assert_predicts(model, run.expected())


def test_a_directory_that_was_replaced_is_reported_and_followed_again_when_it_is_back(
    run: Run, tmp_path: Path
) -> None:
    manager = run.manager(tmp_path / "run")
    model = run.model(tmp_path / "m", manager)
    for _ in range(2):
        manager.save()
    model.refresh()
    expected = run.expected()
    shutil.move(tmp_path / "run", tmp_path / "aside")
    with pytest.raises(CheckpointError, match=r"number 2 .*: there is none"):
        model.refresh()
    run.push(1)
    run.manager(tmp_path / "run").save()
    with pytest.raises(CheckpointError, match=r"number 2 .*: the newest is ckpt-000001\. If"):
        model.refresh()
    assert "checkpoint number 2" in model.failure  # long folders are cut out of the middle
    assert_predicts(model, expected)
    shutil.rmtree(tmp_path / "run")
    shutil.move(tmp_path / "aside", tmp_path / "run")
    assert not model.refresh()
    assert model.failure == ""


@pytest.mark.parametrize("damage", ["truncated", "other", "missing"])
def test_a_damaged_checkpoint_changes_nothing_and_the_next_whole_one_counts(
    run: Run, tmp_path: Path, damage: str
) -> None:
    manager = run.manager(tmp_path / "run")
    model = run.model(tmp_path / "m", manager)
    manager.save()
    model.refresh()
    expected, version = run.expected(), model.version
    run.push(3)
    path = Path(manager.save())
    file = max(path.glob("*-01.bin"))
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes({"truncated": content[:-1], "other": content[:-1] + b"?"}[damage])
    for _ in range(2):
        with pytest.raises(CheckpointError, match="damaged"):
            model.refresh()
    assert "damaged" in model.failure
    assert model.version == version
    assert_predicts(model, expected)
    run.manager(tmp_path / "run").save()
    assert model.refresh()
    assert model.failure == ""
    assert_predicts(model, run.expected())


def test_one_that_is_removed_while_it_is_read_gives_way_to_the_next(
    run: Run, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run.manager(address, keep=1)
    model = run.model(tmp_path / "m", manager)
    manager.save()
    store_at, used = shards.store_at, []

    def late(place: Any) -> Any:
        if not used:
            used.append(place)
            run.push(4)
            manager.save()  # it removes the first
        return store_at(place)

    monkeypatch.setattr(shards, "store_at", late)
    assert model.refresh()
    assert model.version.number == 2
    assert_predicts(model, run.expected())


@pytest.mark.second_tier(
    "following is in the first tier, and leases of checkpoints in tests/checkpoint"
)
def test_a_checkpoint_in_use_is_not_removed(run: Run, tmp_path: Path) -> None:
    manager = run.manager(tmp_path / "run", keep=1)
    model = run.model(tmp_path / "m", manager)
    first = manager.save()
    model.refresh()
    manager.save()
    assert first.exists()
    model.refresh()
    gc.collect()
    manager.save()
    assert not first.exists()


def test_a_checkpoint_of_another_model_is_refused_with_all_that_is_different(
    run: Run, tmp_path: Path
) -> None:
    model = run.model(tmp_path / "m", run.manager(tmp_path / "other"))
    expected = run.expected()
    path = Path(run.manager(tmp_path / "run").save())

    def other(content: dict[str, Any]) -> None:
        by_name = {each["name"]: each for each in content["parameters"]}
        by_name["fixed"]["description"]["rows"] = 11
        by_name["flat"]["description"]["dtype"] = "float64"
        content["parameters"].remove(by_name["waiting"])
        content["run"]["recipes"]["any"]["initializer"] = {"name": "Constant", "value": 1.0}

    forge(path, other)
    with pytest.raises(CheckpointError, match="does not fit the model") as raised:
        model.refresh(tmp_path / "run")
    for said in (
        "'fixed': expected rows 10, found 11",
        "'flat': expected dtype 'float32', found 'float64'",
        "'waiting': expected {'kind': 'embedding', 'dim': 2, 'rows': None",
        "'any': expected initializer {",
    ):
        assert said in str(raised.value)
    assert_predicts(model, expected)


def test_fixed_rows_that_lack_some_are_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = run.model(tmp_path / "m", run.manager(tmp_path / "run"))
    run.manager(tmp_path / "run").save()
    monkeypatch.setattr(SavedTable, "__len__", lambda rows: 9)
    with pytest.raises(CheckpointError, match="'fixed' has 9 of 10 rows"):
        model.refresh()


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"min_score": {"waiting": 1e9}}])
def test_rows_of_checkpoints_are_used_as_they_are_however_the_folder_has_them(
    run: Run, tmp_path: Path, options: dict[str, Any]
) -> None:
    manager = run.manager(tmp_path / "run")
    model = run.model(tmp_path / "m", manager, **options)
    assert not np.array_equal(model.predict(BATCH), run.expected())
    manager.save()
    model.refresh()
    assert_predicts(model, run.expected())


def test_a_thread_takes_newer_checkpoints_until_it_is_closed(
    run: Run, tmp_path: Path, address: str
) -> None:
    manager = run.manager(address)
    with run.model(tmp_path / "m", manager).follow(every=0.01) as model:
        for number in (1, 2):
            run.push(number)
            manager.save()
            wait_until(lambda n=number: model.version.number == n, "a newer one")  # type: ignore[misc]
            assert_predicts(model, run.expected())
        with pytest.raises(ConfigurationError, match=r"follows .* already"):
            model.follow()
    assert followers() == []
    assert_predicts(model, run.expected())  # it goes on with what it has


def test_the_thread_ends_with_the_model(run: Run, tmp_path: Path) -> None:
    model = run.model(tmp_path / "m", run.manager(tmp_path / "run")).follow(every="1 h")
    assert len(followers()) == 1
    del model
    gc.collect()
    wait_until(lambda: followers() == [], "the thread ends")


def test_a_failure_is_reported_once_and_tried_again(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psnb._src.checkpoint.save_schedule._FIRST_PAUSE", 0.001)
    caplog.set_level(logging.INFO, "psnb")
    manager, tried = run.manager(tmp_path / "run"), threading.Semaphore(0)
    real, broken = following._read, threading.Event()

    def fails(*given: Any) -> Any:
        tried.release()
        if broken.is_set():
            raise OSError("no route to host")
        return real(*given)

    monkeypatch.setattr(following, "_read", fails)
    broken.set()
    manager.save()
    (tmp_path / "run").rename(tmp_path / "away")
    with run.model(tmp_path / "m", manager).follow(every=0.001) as model:
        (tmp_path / "away").rename(tmp_path / "run")
        for _ in range(3):
            assert tried.acquire(timeout=30)
        assert "no route to host" in model.failure
        broken.clear()
        wait_until(lambda: model.version.number == 1 and not model.failure, "it works again")
        wait_until(lambda: len(caplog.records) == 2, "both are told")
    told = [each.getMessage() for each in caplog.records]
    assert "no route to host" in told[0]
    assert "follows again" in told[1]


def test_without_a_directory_there_is_nothing_to_follow(run: Run, tmp_path: Path) -> None:
    model = psnb.load_model(psnb.export(tmp_path / "m", run))
    for call in (model.follow, model.refresh):
        with pytest.raises(ConfigurationError, match="there is nothing to follow"):
            call()
    run.manager(tmp_path / "run").save()
    assert model.refresh(tmp_path / "run")


def test_what_is_followed_is_a_manager_or_a_directory(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="follow must be a CheckpointManager"):
        psnb.export(tmp_path / "m", run, follow=3)  # type: ignore[arg-type]
    assert not (tmp_path / "m").exists()


def test_a_dense_parameter_beyond_the_end_of_its_variable_is_refused(
    run: Run, tmp_path: Path
) -> None:
    path = psnb.export(tmp_path / "m", run)
    forge_model(path, lambda content: content["sources"]["parts"].update(bias=["flat", 4]))
    with pytest.raises(ExportError, match="'bias' is beyond the end of 'flat'"):
        psnb.load_model(path)
