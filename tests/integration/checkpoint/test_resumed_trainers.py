"""Trainers that go on from the newest checkpoint, as a script does that is started again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import psnb
from psnb import data
from psnb._src.coordinator.datasets import partitioned
from psnb.errors import CheckpointError, ConfigurationError
from tests.checkpoint.saved import forge
from tests.conftest import DEADLINE, wait_until
from tests.integration.checkpoint.test_resuming import damage
from tests.integration.helpers import wait_for_file
from tests.integration.training.trainer_helpers import counting, numbers, visits_of

BATCHES = data.Dataset.range(200).shuffle(60).batch(5)


class Gate:
    """Once it is shut, one step gets through; the others wait until it is opened."""

    def __init__(self, folder: Path) -> None:
        self._shut, self._through, self._open = folder / "shut", folder / "through", folder / "open"

    def shut(self) -> None:
        self._shut.touch()

    def open(self) -> None:
        self._open.touch()

    def behind(self, step: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a step that ends behind the gate."""
        shut, through, opened = self._shut, self._through, self._open

        def waiting(iterator: Any) -> None:
            step(iterator)
            if shut.exists():
                try:
                    through.touch(exist_ok=False)
                except FileExistsError:
                    wait_for_file(opened)

        return waiting


class StopIn(psnb.Callback):
    """Stops training in the middle of an epoch, however fast the steps are."""

    def __init__(self, epoch: int, gate: Gate) -> None:
        self._epoch, self._gate = epoch, gate
        self._opens: threading.Thread | None = None

    def on_epoch_begin(self, trainer: psnb.Trainer, epoch: int) -> None:
        if epoch == self._epoch:
            self._gate.shut()

    def on_batch(self, trainer: psnb.Trainer, snapshot: psnb.TrainingSnapshot) -> None:
        if snapshot.epoch == self._epoch and snapshot.batch and self._opens is None:
            trainer.stop("enough")
            self._opens = threading.Thread(target=self._open, args=(trainer.coordinator,))
            self._opens.start()

    def on_end(self, trainer: psnb.Trainer, history: psnb.TrainingHistory) -> None:
        if self._opens is not None:
            self._opens.join(DEADLINE)

    def _open(self, coordinator: psnb.ClusterCoordinator) -> None:
        def stopped() -> bool:
            now = coordinator.statistics()
            return not now.queued and now.in_flight <= len(now.workers)

        wait_until(stopped, "each worker does its last step")
        self._gate.open()


class Script:
    """What a user's script does: it makes all anew, and trains."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.strategy = psnb.ParameterServerStrategy(client)
        self.visits = visits_of(self.strategy, 200)
        self.checkpoints, self._gate = folder / "checkpoints", Gate(folder)
        coordinator = psnb.ClusterCoordinator(self.strategy)
        self.manager = psnb.CheckpointManager(coordinator, self.checkpoints)
        step = self._gate.behind(counting(self.visits))
        self.trainer = psnb.Trainer(coordinator, step, checkpoint=self.manager, resume=True)

    def stop_in(self, epoch: int) -> StopIn:
        return StopIn(epoch, self._gate)

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.strategy.close()

    def train(self, dataset: Any = BATCHES, epochs: int = 3, **how: Any) -> psnb.TrainingHistory:
        return self.trainer.train_from_dataset(dataset, epochs, **how)


def test_a_trainer_goes_on_in_the_middle_of_an_epoch_with_history_and_metrics(
    cluster: Client, tmp_path: Path
) -> None:
    with Script(cluster, tmp_path) as first:
        stopped = first.train(callbacks=[first.stop_in(2)])
        assert stopped.stopped == "enough"
        assert sum(numbers(first.visits, 200)) < 400
    with Script(cluster, tmp_path) as second:
        history = second.train()
        assert numbers(second.visits, 200) == [3] * 200
        assert history["epoch"] == [1, 2, 3]
        assert history["examples"] == [200] * 3
        assert history["loss"] == [99.5] * 3  # of the whole epoch, also of the second
        assert history["auc"] == [0.75] * 3
        assert history.rows[0] == stopped.rows[0]
        assert history.rows[1].seconds > stopped.rows[1].seconds
        assert second.train(epochs=1)["epoch"] == [1]  # the next training is a new one
        assert numbers(second.visits, 200) == [4] * 200
    with Script(cluster, tmp_path) as third:
        assert third.train(epochs=1)["epoch"] == [1]  # it is over already
        assert numbers(third.visits, 200) == [4] * 200


def test_callbacks_go_on_where_they_were(cluster: Client, tmp_path: Path) -> None:
    rates: list[float] = []

    class Rates(psnb.Callback):
        def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
            optimizer = trainer.coordinator.strategy.parameters["visits"].optimizer
            rates.append(optimizer.learning_rate)  # type: ignore[union-attr]

    def callbacks() -> list[psnb.Callback]:
        return [
            psnb.EarlyStopping("auc", patience=2, mode="max"),
            psnb.LearningRateScheduler(lambda epoch: 1.0 / epoch),
            Rates(),
        ]

    with Script(cluster, tmp_path) as first:
        first.train(epochs=9, callbacks=[*callbacks(), first.stop_in(2)])
    rates.clear()
    with Script(cluster, tmp_path) as second:
        history = second.train(epochs=9, callbacks=callbacks())
        assert history.stopped.startswith("auc has not improved since epoch 1")
        assert history["epoch"] == [1, 2, 3]
        assert [round(each, 3) for each in rates] == [0.5, 0.333]


def test_without_a_checkpoint_it_begins(cluster: Client, tmp_path: Path) -> None:
    with Script(cluster, tmp_path) as script:
        assert script.train(epochs=1)["examples"] == [200]


def test_resume_needs_a_manager(coordinator: psnb.ClusterCoordinator) -> None:
    with pytest.raises(ConfigurationError, match="resume=True needs checkpoint="):
        psnb.Trainer(coordinator, bool, resume=True)


def test_another_dataset_is_refused_and_nothing_is_restored(
    cluster: Client, tmp_path: Path
) -> None:
    texts = [tmp_path / f"{'long' * 30}-{number}.txt" for number in range(3)]
    for number, each in enumerate(texts):
        each.write_text("".join(f"{line}\n" for line in range(number * 50, number * 50 + 50)))

    def lines(files: Any, size: int = 5) -> data.Dataset:
        return data.Dataset.text_lines([str(each) for each in files]).map(int).batch(size)

    with Script(cluster, tmp_path) as first:
        first.train(lines(texts[:2]), epochs=1, callbacks=[first.stop_in(1)])
    with Script(cluster, tmp_path) as second:
        for other in (lines(texts[:2], 4), lines([texts[0], texts[2]]), BATCHES):
            with pytest.raises(ConfigurationError, match="epoch over another dataset"):
                second.train(other, epochs=1)
        assert numbers(second.visits, 200) == [0] * 200
        second.train(lines(texts[:2]), epochs=1)
        assert numbers(second.visits, 200) == [1] * 100 + [0] * 100


def test_files_are_cut_as_they_were_though_the_number_of_workers_is_another(
    cluster: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"{line}\n" for line in range(200)))
    lines = data.Dataset.text_lines(str(text)).map(int).batch(5)
    with Script(cluster, tmp_path) as first:
        first.train(lines, epochs=1, callbacks=[first.stop_in(1)])
    monkeypatch.setattr(partitioned, "_SPLITS", 5)  # each worker has so many
    with Script(cluster, tmp_path) as second:
        second.train(lines, epochs=1)
        assert numbers(second.visits, 200) == [1] * 200


def test_a_damaged_checkpoint_is_left_out(cluster: Client, tmp_path: Path) -> None:
    with Script(cluster, tmp_path) as first:
        first.train(epochs=2)
        newest = first.manager.latest_checkpoint
        assert newest is not None
        damage(newest)
    with Script(cluster, tmp_path) as second:
        assert second.train(epochs=2)["epoch"] == [1, 2]
        assert numbers(second.visits, 200) == [2] * 200
        for each in second.manager.checkpoints:
            damage(each)
    with (
        Script(cluster, tmp_path) as third,
        pytest.raises(CheckpointError, match="all checkpoints in"),
    ):
        third.train(epochs=2)


def test_a_checkpoint_that_no_trainer_has_saved_is_refused(cluster: Client, tmp_path: Path) -> None:
    with Script(cluster, tmp_path) as script:
        script.manager.save({"step": 3})
        with pytest.raises(ConfigurationError, match="a trainer saved"):
            script.train()


@pytest.mark.parametrize(
    "before",
    [
        lambda saved: saved["run"].pop("next_number"),
        lambda saved: saved["run"].clear(),
        lambda saved: saved["metadata"].pop("part"),
        lambda saved: saved["metadata"]["iterator"].pop("visits"),
        lambda saved: saved["metadata"]["rows"][0].update(loss=1.0),
    ],
)
def test_what_an_earlier_psnb_has_saved_is_refused_and_nothing_is_restored(
    cluster: Client, tmp_path: Path, before: Callable[[dict[str, Any]], object]
) -> None:
    with Script(cluster, tmp_path) as first:
        first.train(callbacks=[first.stop_in(2)])
        there = numbers(first.visits, 200)
        newest = first.manager.latest_checkpoint
        assert isinstance(newest, Path)
        forge(newest, before)
    with Script(cluster, tmp_path) as second:
        with pytest.raises(
            (CheckpointError, ConfigurationError), match=r"begin a new|without resume"
        ):
            second.train()
        assert numbers(second.visits, 200) == [0] * 200
        second.manager.restore()  # which is what the errors advise
        assert numbers(second.visits, 200) == there


def test_logs_go_on_where_they_were(cluster: Client, tmp_path: Path) -> None:
    def logs() -> list[psnb.Callback]:
        return [psnb.CSVLog(tmp_path / "log.csv"), Board(tmp_path / "events")]

    with Script(cluster, tmp_path) as first:
        first.train(callbacks=[*logs(), first.stop_in(2)])
    with (tmp_path / "log.csv").open("ab") as file:
        file.write(b"2,7")  # as if it had been killed while it writes
    with Script(cluster, tmp_path) as second:
        second.train(callbacks=logs())
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "1", "2", "2", "3"]
    stopped, resumed = map(steps_of, sorted((tmp_path / "events").iterdir()))
    assert 40 in stopped
    assert 40 < stopped[-1] <= 80
    assert {80, 120} <= {*resumed}
    assert min(resumed) > 40
    assert max(resumed) == 120


class Board(psnb.TensorBoard):
    """Also writes at the end of each epoch, however fast that is."""

    def on_epoch(self, trainer: psnb.Trainer, row: psnb.EpochRow) -> None:
        end = psnb.TrainingSnapshot(row.epoch, row.batches, row.examples, row.metrics, row.seconds)
        self.on_batch(trainer, end)
        super().on_epoch(trainer, row)


def steps_of(events: Path) -> list[int]:
    from tensorboardX.proto.event_pb2 import Event

    found = [Event.FromString(bytes(record)) for record in data.Dataset.tfrecords(str(events))]
    return [e.step for e in found for v in e.summary.value if v.tag == "batch/loss"]


def test_an_epoch_in_memory_goes_on_as_it_was_shuffled(cluster: Client, tmp_path: Path) -> None:
    def memory(size: int = 5) -> Any:
        return data.InMemoryDataset.of(data.Dataset.range(200), size)

    with Script(cluster, tmp_path) as first:
        first.train(memory(), epochs=2, callbacks=[first.stop_in(2)])
    with Script(cluster, tmp_path) as second:
        with pytest.raises(ConfigurationError, match="epoch over another dataset"):
            second.train(memory(4), epochs=2)
        second.train(memory(), epochs=2)
        assert numbers(second.visits, 200) == [2] * 200


def test_a_trainer_goes_on_with_what_is_made_again_of_a_checkpoint_alone(
    cluster: Client, tmp_path: Path
) -> None:
    with Script(cluster, tmp_path) as first:
        first.train(epochs=2, callbacks=[first.stop_in(2)])
    with psnb.resume(first.checkpoints, cluster) as resumed:
        visits = resumed.strategy.parameters["visits"]
        assert isinstance(visits, psnb.Embedding)
        trainer = psnb.Trainer(resumed.coordinator, counting(visits))
        history = trainer.train_from_dataset(BATCHES, 2, resume=resumed.metadata)
        assert history["examples"] == [200, 200]
        assert numbers(visits, 200) == [2] * 200
