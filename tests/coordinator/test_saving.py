"""Saves that are made by themselves, without Dask and files."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from psnb._src.checkpoint.save_schedule import SaveSchedule
from psnb._src.coordinator.saving import Saves, Saving
from psnb._src.monitor.events import EventKind, EventLog
from psnb._src.monitor.statistics import CheckpointStatistics
from psnb.errors import CheckpointError, CoordinatorClosedError
from tests.conftest import DEADLINE, wait_until
from tests.coordinator.queues import in_thread


class Manager:
    """Counts its saves."""

    def __init__(self, directory: str = "there") -> None:
        self.directory = Path(directory)
        self.status = CheckpointStatistics("saved", held=0.25)
        self.saves = 0
        self.on_save: Callable[[], object] = lambda: None

    def save(self, *, timeout: float | None = None) -> Path:
        self.on_save()
        self.saves += 1
        return self.directory / f"ckpt-{self.saves}"


class Scene:
    """A manager that saves after each closure."""

    def __init__(self) -> None:
        self.events, self.completed, self.saver = EventLog(), 0, Manager()
        self.saving = Saving(self.events)
        self.schedule = self.use(self.saver)

    def use(self, manager: Any, steps: int | None = 1) -> SaveSchedule:
        schedule = SaveSchedule(None, steps, now=0.0)
        self.saving.use(Saves(manager, schedule, lambda: self.completed, 300.0))
        return schedule

    def poll(self) -> None:
        """Poll, and wait for what that begins."""
        self.saving.poll()
        wait_until(lambda: not saving_threads(), "the save has ended")

    def told(self, kind: EventKind) -> list[str]:
        return [event.message for event in self.events.all() if event.kind is kind]


def saving_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "psnb-saving"]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_save_that_is_due_begins_with_a_poll_and_not_before(scene: Scene) -> None:
    scene.poll()
    scene.completed = 1
    assert scene.saver.saves == 0
    scene.poll()
    assert scene.saver.saves == 1
    scene.poll()
    assert scene.saver.saves == 1
    (told,) = scene.told(EventKind.CHECKPOINT_SAVED)
    assert told == "saved 'there/ckpt-1'; closures were held for 0.25 s"


def test_polling_does_not_wait_and_begins_no_second_save(scene: Scene) -> None:
    begun, end = threading.Event(), threading.Event()

    def on_save() -> None:
        begun.set()
        assert end.wait(10)

    scene.saver.on_save, scene.completed = on_save, 1
    scene.saving.poll()
    assert begun.wait(10)
    scene.completed = 5
    scene.saving.poll()
    assert len(saving_threads()) == 1
    end.set()
    wait_until(lambda: not saving_threads(), "the save has ended")
    assert scene.saver.saves == 1
    scene.poll()  # what completed while it saved is not in it
    assert scene.saver.saves == 2


def test_a_failure_is_reported_once_and_tried_again_later_and_success_is_reported(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "psnb")

    def fails() -> None:
        raise OSError("no space left")

    def again() -> None:
        scene.schedule._not_before = 0.0  # the pause is over
        scene.poll()

    scene.saver.on_save, scene.completed = fails, 1
    scene.poll()
    assert not scene.schedule.due(0.0, 9)  # not at once
    again()
    again()
    assert scene.schedule.failures == 3
    (told,) = scene.told(EventKind.CHECKPOINT_FAILED)
    assert "OSError: no space left; that was in 'there'" in told
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [told]
    scene.saver.on_save = lambda: None
    again()
    (told,) = scene.told(EventKind.CHECKPOINT_SAVED)
    assert "after 3 attempts that failed" in told
    scene.completed = 2
    scene.poll()
    assert "attempts" not in scene.told(EventKind.CHECKPOINT_SAVED)[-1]


def test_the_reason_of_a_failure_is_shown_though_all_of_it_is_too_long(scene: Scene) -> None:
    def fail() -> None:
        raise CheckpointError(f"server 0 cannot write it: No space left on device; {'x' * 500}")

    scene.saver.on_save, scene.completed = fail, 1
    scene.saver.directory = Path("/a" * 100)
    scene.poll()
    (told,) = scene.told(EventKind.CHECKPOINT_FAILED)
    assert told.startswith("no checkpoint can be saved: server 0 cannot write it: No space left on")
    assert told.endswith("it is tried again in 1 s, then less and less often")


def test_of_the_managers_of_a_directory_only_the_last_saves_by_itself(scene: Scene) -> None:
    other, newer = Manager("elsewhere"), Manager()
    scene.use(other)
    scene.use(newer)
    scene.completed = 1
    scene.poll()
    assert (scene.saver.saves, other.saves, newer.saves) == (0, 1, 1)
    scene.use(Manager(), None)
    scene.use(Manager("elsewhere"), None)
    scene.completed = 2
    scene.poll()
    assert (other.saves, newer.saves) == (1, 1)


def test_what_one_manager_cannot_save_another_one_does(scene: Scene) -> None:
    def fails() -> None:
        raise OSError

    other = Manager("elsewhere")
    scene.saver.on_save = fails
    scene.use(other)
    scene.completed = 1
    scene.poll()
    assert (scene.schedule.failures, other.saves) == (1, 1)


def test_a_save_that_a_close_overtakes_is_no_failure(scene: Scene) -> None:
    def closed() -> None:
        raise CoordinatorClosedError("the strategy was closed")

    scene.saver.on_save, scene.completed = closed, 1
    scene.poll()
    assert scene.told(EventKind.CHECKPOINT_FAILED) == []


@pytest.fixture
def held(scene: Scene) -> Iterator[threading.Event]:
    """Begin a save that goes on until this is set."""
    go_on = threading.Event()
    scene.saver.on_save, scene.completed = lambda: go_on.wait(DEADLINE), 1
    yield go_on
    go_on.set()
    scene.saving.finish()


def test_who_waits_for_the_end_still_waits_after_an_interrupt(
    scene: Scene, held: threading.Event
) -> None:
    # Python 3.11 takes a thread for ended whose `join` was interrupted.
    scene.saving.poll()

    def waits() -> bool:
        stack = traceback.extract_stack(sys._current_frames()[main])
        return stack[-1].name == "wait" and "finish" in [each.name for each in stack]

    def interrupt() -> None:
        wait_until(waits, "the main thread waits")
        os.kill(os.getpid(), signal.SIGINT)

    main = threading.get_ident()
    interrupting = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        scene.saving.finish()
    interrupting.result(DEADLINE)
    waiting = in_thread(scene.saving.finish)
    assert not waiting.done()
    assert not scene.saver.saves
    held.set()
    waiting.result(DEADLINE)
    assert scene.saver.saves == 1


def test_no_save_of_training_outlives_it(scene: Scene, held: threading.Event) -> None:
    trainer = Saves(scene.saver, SaveSchedule(None, 1, now=0.0), lambda: 1, 300.0)  # type: ignore[arg-type]

    def train() -> int:
        with suppress(ValueError), scene.saving.training(trainer):
            scene.saving.poll()
            raise ValueError("a step failed")
        ended.set()
        return scene.saver.saves

    ended = threading.Event()
    scene.use(scene.saver, None)
    training = in_thread(train)
    assert not ended.wait(0.3)
    held.set()
    assert training.result(DEADLINE) == 1
