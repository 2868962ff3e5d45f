"""Trainers on real clusters: every example exactly once, whatever process dies."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb import data, errors
from psnb._src.coordinator.coordinator import coordinator_core
from psnb._src.monitor.training_clock import EpochCount, TrainingClock
from tests.integration.training.trainer_helpers import (
    Heard,
    counting,
    holding,
    numbers,
    slow_until_saved,
    visits_of,
)


def test_each_epoch_trains_on_every_example_once_and_is_a_row_of_the_history(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    capsys: pytest.CaptureFixture[str],
) -> None:
    visits = visits_of(strategy, 200)
    trainer = psnb.Trainer(coordinator, counting(visits))
    history = trainer.train_from_dataset(
        data.Dataset.range(200).batch(5),
        epochs=2,
        fetch=["loss", "auc", "batch_auc"],
        fetch_every=20,
    )
    assert numbers(visits, 200) == [2] * 200
    assert [(r.epoch, r.batches, r.examples) for r in history.rows] == [(1, 40, 200), (2, 40, 200)]
    assert history["loss"] == [99.5, 99.5]
    assert history["auc"] == [0.75, 0.75]  # odd ones have 1/4 or 3/4, even ones 0 or 2/4
    assert not history.stopped
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("epoch 2 batch 40: loss ")
    assert lines[-1].split()[-4:-1] == ["auc", "0.7500", "batch_auc"]


@pytest.mark.parametrize(
    ("validation", "said"),
    [
        (data.Dataset.range(20).batch(5).take(2), "cannot be cut into parts"),
        (data.Dataset.text_lines("nowhere.txt").batch(5), "nowhere.txt: no such file"),
    ],
    ids=["cannot be leased", "no file"],
)
def test_what_is_wrong_with_validation_is_reported_before_anything_is_trained(
    coordinator: psnb.ClusterCoordinator, validation: data.Dataset[Any], said: str
) -> None:
    trainer = psnb.Trainer(coordinator, lambda iterator: psnb.report(loss=next(iterator).sum()))
    completed = coordinator.statistics().completed
    with pytest.raises(psnb.errors.PsnbError, match=said):
        trainer.train_from_dataset(data.Dataset.range(20).batch(5), validation=validation)
    assert coordinator.statistics().completed == completed


def test_a_misspelt_name_is_refused_after_an_epoch_in_which_no_line_was_due(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    begun = []

    class Noting(psnb.Callback):
        def on_epoch_begin(self, trainer: psnb.Trainer, epoch: int) -> None:
            begun.append(epoch)

    trainer = psnb.Trainer(coordinator, lambda iterator: psnb.report(loss=next(iterator).sum()))
    with pytest.raises(psnb.errors.ConfigurationError, match="did you mean 'loss'"):
        trainer.train_from_dataset(
            data.Dataset.range(20).batch(5), epochs=2, fetch=["lss"], callbacks=[Noting()]
        )
    assert begun == [1]


def test_a_step_that_returns_what_it_should_report_is_told_so(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    trainer = psnb.Trainer(coordinator, lambda iterator: {"loss": next(iterator).sum()})
    with pytest.raises(psnb.errors.ConfigurationError, match=r"psnb\.report\(loss=\.\.\.\)"):
        trainer.train_from_dataset(data.Dataset.range(20).batch(5), fetch=["loss"])


class Watching(psnb.Callback):
    """Writes down what views have at the end of each epoch."""

    def __init__(self) -> None:
        self.found: list[psnb.Statistics] = []

    def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
        self.found.append(trainer.coordinator.statistics())


def test_views_have_where_training_is_and_the_metrics_of_its_epochs(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    watching = Watching()
    trainer = psnb.Trainer(coordinator, counting(visits_of(strategy, 200)))

    def odd_then_all(epoch: int) -> data.Dataset:
        ids = np.arange(1, 200, 2) if epoch == 1 else np.arange(200)
        return data.Dataset.from_tensor_slices(ids).batch(5)

    history = trainer.train_from_dataset(
        odd_then_all, epochs=2, callbacks=[watching], validation=odd_then_all(2)
    )
    first, second = (each.training for each in watching.found)
    assert first is not None
    assert second is not None
    assert (first.epoch, first.epochs, first.batch, first.batches) == (1, 2, 20, 20)
    assert (second.epoch, second.epochs, second.batch, second.batches) == (2, 2, 40, 40)
    assert first.left == watching.found[0].eta is not None
    ended = coordinator.statistics()
    assert ended.training is not None
    assert (ended.training.epoch, ended.training.left) == (2, None)
    assert [each.metrics["auc"].last for each in watching.found] == history["auc"]
    charted = coordinator.history()
    assert charted["val_auc"]["value"].tolist() == history["val_auc"]
    assert charted["val_loss"]["step"].tolist() == charted["val_auc"]["step"].tolist() == [20, 60]
    epochs = coordinator_core(coordinator).records.history.epochs()
    assert [(each.epoch, each.step) for each in epochs] == [(1, 0), (2, 20)]


def test_while_it_validates_views_have_its_parts_and_then_a_line_is_printed(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, count_parts = list[psnb.TrainingProgress | None](), TrainingClock.count_parts

    def look(clock: TrainingClock, parts: Callable[[], tuple[int, int]]) -> None:
        count_parts(clock, parts)
        found.append(coordinator.statistics().training)

    monkeypatch.setattr(TrainingClock, "count_parts", look)
    trainer = psnb.Trainer(coordinator, counting(visits_of(strategy, 200)))
    dataset = data.Dataset.range(200).batch(5)
    history = trainer.train_from_dataset(dataset, fetch=["auc"], validation=dataset)
    (meanwhile,) = found
    assert meanwhile is not None
    assert meanwhile.validating is not None
    assert 0 <= meanwhile.validating[0] <= meanwhile.validating[1] > 1
    ended = coordinator.statistics().training
    assert ended is not None
    assert ended.validating is None
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("epoch 1: val_")
    assert f"val_auc {history['val_auc'][0]:.4f}" in line


def test_views_have_how_far_an_epoch_is_that_one_runs(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    found = []
    step = counting(visits_of(strategy, 40))
    dataset = coordinator.create_per_worker_dataset(
        data.Dataset.range(40).batch(5).filter(lambda ids: True), sharding="dynamic"
    )
    for _ in range(2):
        coordinator.run_epoch(
            step, iter(dataset), watch=lambda: found.append(coordinator.statistics().training)
        )
    last = coordinator.statistics().training
    assert last == psnb.TrainingProgress(None, None, 8, 8)
    assert {each.batches for each in found if each.batch < 8} <= {None, 8}
    assert found[-1].batches == 8


def test_numbers_of_the_history_are_means_over_examples(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    trainer = psnb.Trainer(coordinator, counting(visits_of(strategy, 10)))
    history = trainer.train_from_dataset(data.Dataset.range(10).batch(8))  # 3.5 of 8, 8.5 of 2
    assert history["loss"] == [4.5]


def test_an_epoch_without_files_is_an_error(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    tmp_path: Path,
) -> None:
    (tmp_path / "numbers").write_text("1\n2\n")
    lines = data.Dataset.text_lines([tmp_path / "numbers"])
    trainer = psnb.Trainer(coordinator, lambda iterator: print(end=next(iterator)[:0]))
    with pytest.raises(errors.ConfigurationError, match="files= is empty"):
        trainer.train_from_dataset(lines, files=[])
    for files in ([[tmp_path / "numbers"], []], lambda epoch: [tmp_path / "numbers"][epoch - 1 :]):
        with pytest.raises(errors.ConfigurationError, match="files= has none for epoch 2"):
            trainer.train_from_dataset(lines, epochs=2, files=files)
        assert [row.batches for row in trainer.history.rows] == [2]
    with pytest.raises(errors.ConfigurationError, match="no epoch had a batch"):
        trainer.train_from_dataset(data.Dataset.range(0).batch(8), epochs=2)


def test_debug_prints_where_the_time_went(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer = psnb.Trainer(coordinator, counting(visits_of(strategy, 200)))
    trainer.train_from_dataset(data.Dataset.range(200).batch(5), debug=True)
    printed = capsys.readouterr().out
    assert re.search(r"^worker +read +pull +compute +push +commit +in all$", printed, re.MULTILINE)
    assert re.search(r"^stage +elements +own time", printed, re.MULTILINE)


def test_rounds_of_a_trainer_are_applied_to_the_last_example(cluster: Client) -> None:
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(closures=3)) as strategy:
        visits = visits_of(strategy, 200)
        trainer = psnb.Trainer(psnb.ClusterCoordinator(strategy), counting(visits))
        found = trainer.train_from_dataset(
            data.Dataset.range(200).batch(5), validation=data.Dataset.range(200).batch(5)
        )
        assert found["batches"] == [40]
        assert min(numbers(visits, 200)) > 0  # rounds average what their closures push
        assert found["val_auc"] == [0.75]


def test_a_step_that_fails_ends_training_with_its_error_and_has_written_nothing(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, 200)

    def fail() -> None:
        raise ValueError("bad batch")

    heard = Heard()
    trainer = psnb.Trainer(coordinator, counting(visits, fail))
    with pytest.raises(ValueError, match="bad batch"):
        trainer.train_from_dataset(data.Dataset.range(200).batch(5), callbacks=[heard])
    assert heard.heard[-2:] == ["failure ValueError", "end 0"]
    assert max(numbers(visits, 200)) == 1
    assert numbers(visits, 200)[150] == 0


def test_an_interrupt_returns_the_history_and_what_ran_has_had_its_effect(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    visits = visits_of(strategy, 1000)
    manager = psnb.CheckpointManager(coordinator, tmp_path / "checkpoints")
    go_on = tmp_path / "go on"

    class Interrupting(psnb.Callback):
        def on_batch(self, trainer: psnb.Trainer, snapshot: psnb.TrainingSnapshot) -> None:
            if snapshot.batch:
                go_on.touch()
                os.kill(os.getpid(), signal.SIGINT)

    trainer = psnb.Trainer(coordinator, holding(counting(visits), 200, go_on))
    dataset = data.Dataset.range(1000).batch(2)
    history = trainer.train_from_dataset(
        dataset, callbacks=[Interrupting()], checkpoint=manager, metadata={"mine": 1}
    )
    assert history.stopped == "interrupted"
    assert 0 < sum(numbers(visits, 1000)) == history["examples"][0] < 1000
    restored = manager.restore()
    assert restored == {**history.state, "mine": 1}
    rest = trainer.train_from_dataset(dataset, resume=restored)
    assert (rest["batches"], rest["examples"]) == ([500], [1000])
    assert numbers(visits, 1000) == [1] * 1000


def test_a_second_interrupt_is_raised_and_everything_stays_usable(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, 400)

    class Impatient(psnb.Callback):
        def on_batch(self, trainer: psnb.Trainer, snapshot: psnb.TrainingSnapshot) -> None:
            raise KeyboardInterrupt

        def on_end(self, trainer: psnb.Trainer, history: psnb.TrainingHistory) -> None:
            raise KeyboardInterrupt

    trainer = psnb.Trainer(coordinator, counting(visits))
    dataset = data.Dataset.range(400).batch(1)
    heard = Heard()
    with pytest.raises(KeyboardInterrupt):
        trainer.train_from_dataset(dataset, callbacks=[Impatient(), heard])
    assert heard.heard[-2:] == ["epoch 1", "end 1"]
    before = sum(numbers(visits, 400))
    assert trainer.train_from_dataset(dataset).rows[0].examples == 400
    assert sum(numbers(visits, 400)) == before + 400


def test_a_view_can_stop_training(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    visits = visits_of(strategy, 1000)
    view = coordinator_core(coordinator)
    assert view.controls()["stop_training"] == "no trainer trains"
    go_on = tmp_path / "go on"

    class Pressing(psnb.Callback):
        def on_batch(self, trainer: psnb.Trainer, snapshot: psnb.TrainingSnapshot) -> None:
            assert not view.controls()["stop_training"]
            if snapshot.batch:
                view.stop_training()
                go_on.touch()

    trainer = psnb.Trainer(coordinator, holding(counting(visits), 200, go_on))
    history = trainer.train_from_dataset(data.Dataset.range(1000).batch(2), callbacks=[Pressing()])
    assert history.stopped == "stopped by a view"
    assert 0 < sum(numbers(visits, 1000)) == history["examples"][0] < 1000


def test_checkpoints_in_the_middle_of_an_epoch_lack_and_double_no_example(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    visits = visits_of(strategy, 1200)
    manager = psnb.CheckpointManager(coordinator, tmp_path, max_to_keep=50)
    step = counting(visits)
    trainer = psnb.Trainer(coordinator, slow_until_saved(step, 400, tmp_path))
    dataset = data.Dataset.range(1200).batch(2)
    trainer.train_from_dataset(dataset, checkpoint=manager, save_every=0.1)
    midway = manager.checkpoints[0]
    state = manager.restore(midway)
    done = sum(numbers(visits, 1200))
    assert 0 < done < 1200
    history = trainer.train_from_dataset(dataset, resume=state)
    assert (history["batches"], history["examples"]) == ([600], [1200])
    assert numbers(visits, 1200) == [1] * 1200


@pytest.mark.second_tier("checkpoints in the middle of an epoch are in the first tier")
def test_checkpoints_are_saved_every_so_many_batches(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    visits = visits_of(strategy, 1200)
    saved: list[float] = []

    class Counting(psnb.Callback):
        def on_checkpoint(self, trainer: psnb.Trainer, path: Path) -> None:
            assert threading.current_thread() is threading.main_thread()
            state = psnb.checkpoint.load(path).metadata
            (examples, *_) = state["part"]["numbers"].get("examples", [0])
            saved.append(1200 * state["epoch"] + float(examples))

    trainer = psnb.Trainer(coordinator, slow_until_saved(counting(visits), 800, tmp_path))
    dataset = data.Dataset.range(1200).batch(2)
    manager = psnb.CheckpointManager(coordinator, tmp_path)
    trainer.train_from_dataset(
        dataset, 2, checkpoint=manager, save_steps=160, callbacks=[Counting()]
    )
    batches = np.diff([0, *saved]) / 2
    assert (saved[-1], 1200 in saved) == (2400, True)
    midway = [each for at, each in zip(saved, batches, strict=True) if at not in (1200, 2400)]
    assert midway
    assert min(midway) >= 160
    with pytest.raises(errors.ConfigurationError, match="need checkpoint="):
        trainer.train_from_dataset(dataset, save_steps=160)
    with pytest.raises(errors.ConfigurationError, match="save_steps must be 1 or more"):
        trainer.train_from_dataset(dataset, checkpoint=manager, save_steps=0)


def test_a_full_disk_does_not_end_training_while_a_later_save_may_succeed(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visits, heard = visits_of(strategy, 200), Heard()
    manager = psnb.CheckpointManager(coordinator, tmp_path)
    save, full = manager.save, [True, False, True]  # after each epoch

    def saved(_: psnb.CheckpointManager, **options: Any) -> Any:
        if full.pop(0):
            raise errors.CheckpointError("no room on the disk")
        return save(**options)

    monkeypatch.setattr(psnb.CheckpointManager, "save", saved)
    dataset = data.Dataset.range(200).batch(5)
    with pytest.raises(errors.CheckpointError, match="no room"):
        psnb.Trainer(coordinator, counting(visits)).train_from_dataset(
            dataset, 3, checkpoint=manager, callbacks=[heard]
        )
    assert [each for each in heard.heard if each not in ("begin", "batch")] == [
        *("epoch 1", "epoch 2", "checkpoint", "epoch 3", "failure CheckpointError", "end 3")
    ]
    assert numbers(visits, 200) == [3] * 200
    kinds = [each.kind.value for each in coordinator.events() if "checkpoint" in each.kind.value]
    assert kinds == ["checkpoint failed", "checkpoint saved"]
    with pytest.raises(errors.CheckpointError, match="metadata"):  # before anything is trained
        psnb.Trainer(coordinator, counting(visits)).train_from_dataset(
            dataset, checkpoint=manager, metadata={"odd": object()}
        )
    assert numbers(visits, 200) == [3] * 200


def test_the_files_of_an_epoch_are_those_that_it_has_been_given(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    visits = visits_of(strategy, 200)
    for day in (1, 2):
        for part in (0, 1):
            first = 100 * (day - 1) + 50 * part
            lines = "".join(f"{number}\n" for number in range(first, first + 50))
            (tmp_path / f"day{day}-{part}").write_text(lines)

    def parse(line: str) -> np.int64:
        return np.int64(line)

    dataset = data.Dataset.text_lines(tmp_path / "day1-0").map(parse).batch(4)
    trainer = psnb.Trainer(coordinator, counting(visits))
    history = trainer.train_from_dataset(dataset, files=[tmp_path / "day1-*", tmp_path / "day2-*"])
    assert history["examples"] == [100, 100]
    assert numbers(visits, 200) == [1] * 200
    trainer.train_from_dataset(dataset, epochs=1, files=lambda epoch: tmp_path / f"day{epoch}-1")
    assert numbers(visits, 200) == [1] * 50 + [2] * 50 + [1] * 100


def test_a_dataset_in_memory_is_loaded_and_shuffled_for_each_epoch(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    visits = visits_of(strategy, 200)
    memory = data.InMemoryDataset.of(data.Dataset.range(200), 5)
    trainer = psnb.Trainer(coordinator, counting(visits), predict=lambda ids: ids)
    history = trainer.train_from_dataset(memory, epochs=2, validation=memory)
    assert numbers(visits, 200) == [2] * 200
    assert history["val_loss"] == [99.5, 99.5]
    assert set(history.rows[0].metrics) == {"loss", "auc", "val_loss", "val_auc"}
    assert history["val_auc"] == history["auc"] == [0.75, 0.75]
    assert history.names == ["loss", "auc", "val_loss", "val_auc"]
    assert sorted(trainer.infer_from_dataset(memory)) == list(range(200))


def test_a_loss_that_is_no_number_spoils_no_other_training_nor_its_checkpoint(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    def step(iterator: Any) -> None:
        psnb.report(loss=float(np.mean(next(iterator))))

    def diverged(iterator: Any) -> None:
        psnb.report(loss=float("nan") * len(next(iterator)))

    dataset = data.Dataset.range(20).batch(5)
    manager = psnb.CheckpointManager(coordinator, tmp_path)
    bad = psnb.Trainer(coordinator, diverged).train_from_dataset(dataset, checkpoint=manager)
    assert np.isnan(bad["loss"]).all()
    again = psnb.Trainer(coordinator, step).train_from_dataset(dataset, 2, resume=manager.restore())
    assert np.isnan(again["loss"][0])
    assert again["loss"][1] == pytest.approx(9.5)


def test_metadata_by_the_names_of_the_trainers_own_is_refused(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    trainer = psnb.Trainer(coordinator, lambda iterator: bool(next(iterator).any()))
    dataset = data.Dataset.range(20).batch(5)
    manager = psnb.CheckpointManager(coordinator, tmp_path)
    for name in trainer.train_from_dataset(dataset).state:
        with pytest.raises(errors.ConfigurationError, match=f"metadata= has .*{name}.*other names"):
            trainer.train_from_dataset(dataset, checkpoint=manager, metadata={name: 1})


def test_an_epoch_that_is_longer_than_the_last_one_has_as_many_batches_as_were_used(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    dataset = coordinator.create_per_worker_dataset(
        data.Dataset.range(40).batch(5).filter(lambda ids: True), sharding="dynamic"
    )
    iterator = iter(dataset)
    iterator.length = 1  # as of an epoch of which a filter took more away
    step = counting(visits_of(strategy, 40))
    for _ in range(2):
        coordinator.schedule(step, (iterator,))
    coordinator.join()
    assert iterator.count()[:2] == (2, 2)


def test_an_interrupt_while_training_ends_does_not_keep_it_in_views(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    view, clock, later = coordinator_core(coordinator), TrainingClock(), TrainingClock()
    interrupts = iter([False, True])

    def count() -> EpochCount:
        if next(interrupts):
            raise KeyboardInterrupt
        return EpochCount(3)

    with pytest.raises(KeyboardInterrupt), view.training(clock):
        view.begin_epoch(clock, None, count)
    with view.training(later):
        view.begin_epoch(later, None, lambda: EpochCount(5))
    found = coordinator.statistics().training
    assert found is not None
    assert found.batch == 5
