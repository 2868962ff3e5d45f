"""What the stages of an iterator count."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from psnb._src.data import stages
from psnb._src.data.stages import StageLog, log_stages
from psnb._src.utils.stages import Stages
from psnb.data import Dataset, Options


class _Time:
    """A clock that goes forward when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def takes(self, seconds: float) -> Any:
        """Return a function of an element that takes so long."""

        def work(element: Any) -> Any:
            self.now += seconds
            return element

        return work


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> _Time:
    time = _Time()
    monkeypatch.setattr(stages, "perf_counter", time)
    return time


@pytest.fixture
def log() -> Iterator[StageLog]:
    log = StageLog()
    log_stages(log)
    yield log
    log_stages(None)


def by_name(stages: Stages) -> dict[str, Any]:
    """Return the stages by the name of their method."""
    return {each.name.partition("(")[0]: each for each in stages}


def test_stages_come_from_the_source_on_with_what_each_has_given() -> None:
    iterator = iter(Dataset.range(100).filter(lambda x: x % 2 == 0).batch(8))
    assert [each.elements for each in iterator.stages()] == [0, 0, 0]
    for _ in range(3):
        next(iterator)
    source, kept, batches = iterator.stages()
    assert source.name == "range(start=0, stop=100, step=1)"
    # Filters read ahead.
    assert (source.elements, kept.elements, batches.elements) == (100, 24, 3)


def test_the_time_of_a_stage_is_its_own(time: _Time) -> None:
    chain = Dataset.range(10).map(time.takes(1.0)).map(time.takes(0.25)).batch(5)
    iterator = iter(chain)
    list(iterator)
    _, first, second, batches = iterator.stages()
    assert (first.seconds, second.seconds, batches.seconds) == (10.0, 2.5, 0.0)
    assert iterator.stages().slowest == first


def test_an_error_takes_time_too(time: _Time) -> None:
    def failing(element: Any) -> Any:
        time.now += 1
        raise ValueError

    iterator = iter(Dataset.range(3).map(failing).ignore_errors())
    list(iterator)
    assert by_name(iterator.stages())["map"].seconds == 3.0
    assert by_name(iterator.stages())["map"].elements == 0


def test_what_reads_ahead_waits_and_its_input_counts_in_the_other_thread() -> None:
    go, made = threading.Event(), threading.Event()

    def slow(element: int) -> int:
        if element == 2:
            made.set()
            assert go.wait(10)
        return element

    with Dataset.range(4).map(slow).prefetch(2).iterator() as iterator:
        assert next(iterator) == 0
        assert made.wait(10)
        stages = by_name(iterator.stages())
        assert stages["prefetch"].waits
        assert (stages["prefetch"].level, stages["prefetch"].limit) == (1, 2)
        assert stages["map"].elements == 2
        go.set()
        assert list(iterator) == [1, 2, 3]
    assert by_name(iterator.stages())["prefetch"].level is None


def test_the_time_of_an_input_that_is_read_ahead_is_not_taken_off(time: _Time) -> None:
    go = threading.Event()

    def slow(element: int) -> int:
        if element:
            assert go.wait(10)
        time.now += 1
        return element

    with Dataset.range(2).map(slow).prefetch(1).iterator() as iterator:
        next(iterator)
        assert by_name(iterator.stages())["prefetch"].seconds == 1.0
        go.set()


def test_a_closed_iterator_has_no_open_stages() -> None:
    with Dataset.range(9).map(abs).prefetch(2).batch(2).repeat(2).iterator() as iterator:
        next(iterator)
        book = iterator._counters.stages
        assert len(book._open) == 5
    assert book._open == {}


def test_buffers_tell_how_full_they_are() -> None:
    def three(element: int) -> Dataset:
        return Dataset.range(3)

    with (
        Dataset.range(50)
        .interleave(three, cycle_length=4)
        .shuffle(10)
        .map(lambda x: x, num_parallel_calls=2)
        .iterator() as iterator
    ):
        next(iterator)
        stages = by_name(iterator.stages())
    assert (stages["shuffle"].level, stages["shuffle"].limit) == (10, 10)
    assert (stages["interleave"].level, stages["interleave"].limit) == (4, 4)
    assert stages["map"].limit == 2


def test_inputs_that_are_read_again_and_again_count_together() -> None:
    iterator = iter(Dataset.range(5).flat_map(lambda n: Dataset.range(3)).repeat(2))
    list(iterator)
    found = [(each.name.partition("(")[0], each.elements, each.depth) for each in iterator.stages()]
    assert found == [("range", 10, 1), ("range", 30, 1), ("flat_map", 30, 0), ("repeat", 30, 0)]


def test_inputs_side_by_side_are_indented() -> None:
    pairs = Dataset.zip((Dataset.range(4), Dataset.range(9).filter(lambda n: n > 1)))
    iterator = iter(pairs)
    list(iterator)
    found = [(each.name.partition("(")[0], each.depth) for each in iterator.stages()]
    assert found == [("range", 1), ("range", 1), ("filter", 1), ("zip", 0)]


def test_parts_that_only_pass_elements_on_are_no_stages() -> None:
    iterator = iter(Dataset.range(4).map(abs).with_options(Options(threads=1)).prefetch(0).batch(2))
    list(iterator)
    assert list(by_name(iterator.stages())) == ["range", "map", "batch"]


def test_a_snapshot_does_not_keep_an_iterator_alive_and_forgotten_ones_are_counted(
    log: StageLog,
) -> None:
    dataset = Dataset.range(10).map(abs)
    for _ in range(3):
        iterator = iter(dataset)
        next(iterator)
        next(iterator)
    del iterator
    gc.collect()
    (stages,) = log.statistics().values()
    assert by_name(stages)["map"].elements == 6
    assert log.profile(dataset.node)._open == {}


def test_a_log_keeps_the_parts_of_one_dataset_together_and_other_chains_apart(
    log: StageLog,
) -> None:
    for start in (0, 4):
        list(Dataset.range(8).skip(start).take(4).map(abs))
    list(Dataset.range(3).batch(2))
    mapped, batched = log.statistics().values()
    assert by_name(mapped)["map"].elements == 8
    assert by_name(batched)["batch"].elements == 2


def test_iterations_of_other_threads_are_not_in_a_log(log: StageLog) -> None:
    thread = threading.Thread(target=lambda: list(Dataset.range(3)))
    thread.start()
    thread.join()
    assert log.statistics() == {}


def test_a_log_forgets_the_chains_that_were_not_begun_for_the_longest_time(log: StageLog) -> None:
    dataset = Dataset.range(1)
    for _ in range(20):
        dataset = dataset.map(abs)
        list(dataset)
    assert len(log.statistics()) == 16


def test_long_names_are_cut_and_files_go_by_their_format(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\n")
    iterator = iter(Dataset.text_lines(tmp_path / "lines").padded_batch(2, [], "-" * 70))
    next(iterator)
    files, padded = iterator.stages()
    assert files.name == "files(TextLines)"
    assert (len(padded.name), padded.name[-1]) == (60, "…")
