"""The logs of training in files."""

from __future__ import annotations

import csv
import json
import math
import os
import resource
from pathlib import Path
from typing import Any

import pytest

import psnb
from tests.training.fake_trainer import FakeTrainer, row


def test_a_csv_log_has_a_line_for_each_epoch_and_is_continued(tmp_path: Path) -> None:
    trainer: Any = FakeTrainer()
    path = tmp_path / "log.csv"
    psnb.CSVLog(path).on_epoch(trainer, row(1, loss=0.5))
    psnb.CSVLog(path).on_epoch(trainer, row(2, auc=0.75, loss=0.25))
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["epoch"], line["examples"], line["loss"]) for line in lines] == [
        *(("1", "100", "0.5"), ("2", "100", "0.25"))
    ]


def csv_lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_log_goes_on_behind_what_a_killed_process_has_left_of_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer: Any = FakeTrainer()
    path = tmp_path / "log.csv"
    for epoch in (1, 2):
        psnb.CSVLog(path).on_epoch(trainer, row(epoch, loss=epoch / 3))
    whole = path.read_bytes()
    for end in range(len(whole) + 1):  # whatever was written of it
        caplog.clear()
        path.write_bytes(whole[:end])
        before, _, cut = whole[:end].decode().rpartition("\n")
        has_all = bool(before) and cut.count(",") == 4  # its last value may be cut: it is kept
        psnb.CSVLog(path).on_epoch(trainer, row(3, loss=1.0))
        found = csv_lines(path)
        assert found[-1].items() >= {"epoch": "3", "batches": "10", "loss": "1.0"}.items()
        if has_all:
            assert cut.rstrip("\r").endswith(found[-2]["loss"])
        kept = [(line["epoch"], line["loss"]) for line in found[: -2 if has_all else -1]]
        assert kept == [("1", str(1 / 3)), ("2", str(2 / 3))][: len(kept)]
        assert len(kept) == max(0, whole[:end].count(b"\n") - 1)
        done = "kept, as it may be whole" if has_all else "removed"
        said = f"{path} ended within a line, as a process was killed or had no room; {done}: {cut}"
        assert caplog.messages == ([said] if cut else [])


def test_a_line_that_an_editor_has_not_ended_is_kept(tmp_path: Path) -> None:
    trainer: Any = FakeTrainer()
    path = tmp_path / "log.csv"
    path.write_text("epoch,loss")  # the columns that somebody wants
    psnb.CSVLog(path).on_epoch(trainer, row(1, loss=0.5))
    path.write_text(path.read_text().rstrip())
    psnb.CSVLog(path).on_epoch(trainer, row(2, loss=0.25))
    assert csv_lines(path) == [{"epoch": "1", "loss": "0.5"}, {"epoch": "2", "loss": "0.25"}]
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "mine"}')
    psnb.JSONLinesLog(path).on_begin(trainer)
    assert [event["event"] for event in json_lines(path)] == ["mine", "begin"]


def json_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("left", [b"\0" * 99, b"x" * (1 << 19), b'"a', b"\xff"], ids=len)
def test_what_is_no_line_at_all_is_removed(left: bytes, tmp_path: Path) -> None:
    trainer: Any = FakeTrainer()
    path = tmp_path / "log.csv"
    psnb.CSVLog(path).on_epoch(trainer, row(1, loss=0.5))
    whole = path.read_bytes()
    path.write_bytes(whole + left)
    psnb.CSVLog(path).on_epoch(trainer, row(2, loss=0.25))
    assert path.read_bytes() == whole + b"2,10,100,1.5,0.25\r\n"


def test_a_line_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    trainer: Any = FakeTrainer()
    path = tmp_path / "log.csv"
    log = psnb.CSVLog(path)
    log.on_epoch(trainer, row(1, loss=0.5))
    whole = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 7, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            log.on_epoch(trainer, row(2, loss=0.25))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == whole


def test_a_log_of_json_lines_goes_on_behind_what_is_left_of_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer: Any = FakeTrainer()
    path = tmp_path / "log.jsonl"
    psnb.JSONLinesLog(path).on_epoch(trainer, row(1, loss=0.5))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30] + b" " * (1 << 19))  # longer than what is read at once
    psnb.JSONLinesLog(path).on_begin(trainer)
    assert [each["event"] for each in json_lines(path)] == ["epoch", "begin"]
    assert "ended within a line" in caplog.text


def test_a_log_may_be_a_pipe(tmp_path: Path) -> None:
    trainer: Any = FakeTrainer()
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        psnb.JSONLinesLog(path).on_begin(trainer)
        assert json.loads(os.read(reader, 1000))["event"] == "begin"
    finally:
        os.close(reader)


def test_a_log_of_json_lines_has_all_that_happens(tmp_path: Path) -> None:
    trainer: Any = FakeTrainer()
    path = tmp_path / "log.jsonl"
    log = psnb.JSONLinesLog(path, every=60.0)
    log.on_begin(trainer)
    for batch in (10, 20):
        log.on_batch(trainer, psnb.TrainingSnapshot(1, batch, 100, {"loss": math.nan}, 1.0))
    log.on_epoch(trainer, row(1, loss=0.5))
    log.on_checkpoint(trainer, Path("ckpt-1"))
    log.on_failure(trainer, ValueError("bad batch"))
    log.on_end(trainer, psnb.TrainingHistory((row(1),), "interrupted"))
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each.pop("event") for each in found] == [
        *("begin", "batch", "epoch", "checkpoint", "failure", "end")
    ]
    assert found[1].items() >= {"epoch": 1, "batch": 10, "loss": None}.items()
    assert found[2].items() >= {"epoch": 1, "loss": 0.5, "examples": 100}.items()
    assert found[4]["error"] == "ValueError: bad batch"
    assert found[5].items() >= {"epochs": 1, "stopped": "interrupted"}.items()


def test_a_log_of_json_lines_has_the_first_batch_of_each_training(tmp_path: Path) -> None:
    trainer: Any = FakeTrainer()
    log = psnb.JSONLinesLog(tmp_path / "log.jsonl", every=60.0)
    for batch in (10, 20):
        log.on_begin(trainer)
        log.on_batch(trainer, psnb.TrainingSnapshot(1, batch, 100, {}, 1.0))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["batch"] for line in lines if line["event"] == "batch"] == [10, 20]


def test_tensorboard_gets_scalars_by_epoch_and_by_batch(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    trainer: Any = FakeTrainer()
    board = psnb.TensorBoard(tmp_path)
    board.on_begin(trainer)
    board.on_epoch(trainer, row(1, loss=0.5))
    board.on_batch(trainer, psnb.TrainingSnapshot(2, 3, 30, {"loss": 0.25}, 1.0))
    board.on_end(trainer, psnb.TrainingHistory())
    (file,) = tmp_path.iterdir()
    events = [Event.FromString(bytes(record)) for record in psnb.data.Dataset.tfrecords(file)]
    found = [(v.tag, e.step, v.simple_value) for e in events for v in e.summary.value]
    assert found == [("epoch/loss", 1, 0.5), ("batch/loss", 13, 0.25)]


def test_tensorboard_counts_on_from_the_epochs_that_are_resumed(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    trainer: Any = FakeTrainer()
    trainer.history = psnb.TrainingHistory((row(1, loss=0.5), row(2, loss=0.4)))
    board = psnb.TensorBoard(tmp_path)
    for _ in range(2):  # an object may be used for several trainings
        board.on_begin(trainer)
        board.on_batch(trainer, psnb.TrainingSnapshot(3, 4, 40, {"loss": 0.25}, 1.0))
        board.on_epoch(trainer, row(3, loss=0.25))
        board.on_batch(trainer, psnb.TrainingSnapshot(4, 1, 10, {"loss": 0.125}, 1.0))
        board.on_end(trainer, psnb.TrainingHistory())
    events = [
        Event.FromString(bytes(record))
        for file in sorted(tmp_path.iterdir())
        for record in psnb.data.Dataset.tfrecords(str(file))
    ]
    found = [(v.tag, e.step) for e in events for v in e.summary.value]
    assert found == [("batch/loss", 24), ("epoch/loss", 3), ("batch/loss", 31)] * 2
