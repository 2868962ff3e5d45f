"""Threads end with what started them; the fixture in conftest checks it after each test as well."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from psnb._src.data.nodes.prefetch import Autotuner
from psnb.data import AUTOTUNE, Dataset, DatasetIterator, Options
from tests.conftest import DEADLINE, wait_until

D = Dataset


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("psnb-")]


def chain() -> Dataset:
    return D.range(1000).map(lambda x: x, num_parallel_calls=2).prefetch(3).prefetch(AUTOTUNE)


def test_closing_ends_all() -> None:
    with chain().iterator() as iterator:
        next(iterator)
        assert {name.split("-")[1] for name in threads()} == {"prefetch", "map"}
    wait_until(lambda: not threads(), "no threads")
    with pytest.raises(StopIteration):
        next(iterator)


def test_the_end_ends_all() -> None:
    iterator = iter(D.range(5).prefetch(2))
    assert list(iterator) == [0, 1, 2, 3, 4]
    wait_until(lambda: not threads(), "no threads")
    assert list(iterator) == []


def test_being_collected_ends_all() -> None:
    iterator = iter(chain())
    next(iterator)
    del iterator
    gc.collect()
    wait_until(lambda: not threads(), "no threads")


def test_what_is_left_early_is_collected_too() -> None:
    for _ in chain():
        break
    gc.collect()
    wait_until(lambda: not threads(), "no threads")


def test_no_thread_starts_before_an_element_is_asked_for() -> None:
    with chain().iterator():
        assert threads() == []


def drawn_by_threads(iterator: DatasetIterator, count: int = 4) -> list[int]:
    """Return what some threads draw from one iterator, sorted."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # between any two instructions, so to speak
    try:
        with ThreadPoolExecutor(count) as pool:
            found = [pool.submit(lambda: [int(x) for x in iterator]) for _ in range(count)]
            return sorted(x for each in found for x in each.result(DEADLINE))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    "dataset",
    [
        D.range(3000),
        D.from_generator(lambda: iter(range(3000))),
        D.range(3000).shuffle(10, seed=1).prefetch(3),
        D.range(3000).map(lambda x: x, num_parallel_calls=2),
    ],
    ids=["range", "generator", "prefetch", "parallel map"],
)
def test_threads_that_share_an_iterator_get_each_element_once(dataset: Dataset) -> None:
    with dataset.iterator() as iterator:
        assert drawn_by_threads(iterator) == list(range(3000))


def test_closing_does_not_wait_for_a_thread_that_makes_an_element_which_closes() -> None:
    begun, release, closed = threading.Event(), threading.Event(), threading.Event()

    def numbers() -> Iterator[int]:
        try:
            begun.set()
            assert release.wait(DEADLINE)
            yield 1
        finally:
            closed.set()

    iterator = D.from_generator(numbers).iterator()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(next, iterator)
        assert begun.wait(DEADLINE)
        iterator.close()
        release.set()
        assert found.result(DEADLINE) == 1
        assert closed.is_set()
    assert list(iterator) == []


def test_a_generator_is_closed_in_the_end() -> None:
    closed = threading.Event()

    def numbers() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    with D.from_generator(numbers).prefetch(2).iterator() as iterator:
        next(iterator)
    assert closed.wait(DEADLINE)


def test_a_prefetch_reads_as_far_as_its_buffer_and_no_further() -> None:
    read: list[int] = []
    four = threading.Event()

    def numbers() -> Iterator[int]:
        for i in range(100):
            read.append(i)
            if i == 3:
                four.set()
            yield i

    with D.from_generator(numbers).prefetch(3).iterator() as iterator:
        assert next(iterator) == 0
        assert four.wait(DEADLINE)
        assert len(read) == 4


def test_a_prefetch_hands_over_what_there_is_while_the_next_takes_long() -> None:
    release = threading.Event()

    def numbers() -> Iterator[int]:
        yield 0
        assert release.wait(DEADLINE)
        yield 1

    with D.from_generator(numbers).prefetch(3).iterator() as iterator:
        assert next(iterator) == 0
        assert not release.is_set()
        release.set()
        assert list(iterator) == [1]


def test_closing_does_not_wait_for_ever_for_a_consumer_or_a_full_buffer() -> None:
    iterator = D.range(100).prefetch(1).iterator()
    next(iterator)
    iterator.close()
    iterator.close()
    wait_until(lambda: not threads(), "no threads")


def test_parallel_calls_run_at_the_same_time_and_no_more_than_that() -> None:
    both = threading.Barrier(2, timeout=DEADLINE)

    def meet(x: Any) -> Any:
        both.wait()
        return x

    with D.range(6).map(meet, num_parallel_calls=2).iterator() as iterator:
        assert list(iterator) == [0, 1, 2, 3, 4, 5]


def test_what_is_ready_comes_first_if_order_does_not_matter() -> None:
    release = threading.Event()

    def slow_first(x: Any) -> Any:
        if x == 0:
            assert release.wait(DEADLINE)
        return x

    dataset = D.range(4).map(slow_first, num_parallel_calls=2, deterministic=False)
    with dataset.iterator() as iterator:
        found = [int(next(iterator)) for _ in range(3)]
        release.set()
        assert found == [1, 2, 3]
        assert list(iterator) == [0]


def test_the_options_decide_on_order_unless_the_map_does() -> None:
    both = threading.Barrier(2, timeout=DEADLINE)
    second = threading.Event()

    def wait_for_second(x: Any) -> Any:
        both.wait()
        if x == 0:
            assert second.wait(DEADLINE)
        return x

    dataset = D.range(2).map(wait_for_second, AUTOTUNE)
    with dataset.with_options(Options(deterministic=False, threads=2)).iterator() as iterator:
        assert next(iterator) == 1
        second.set()
        assert next(iterator) == 0


def test_an_exception_that_is_none_of_the_datasets_comes_through_a_prefetch() -> None:
    def interrupt(x: Any) -> Any:
        raise KeyboardInterrupt

    with D.range(3).map(interrupt).prefetch(1).iterator() as iterator:
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert list(iterator) == []


def test_elements_are_not_kept_by_threads_that_wait() -> None:
    class Held:
        pass

    seen: list[weakref.ref[Held]] = []

    def note(x: Any) -> Any:
        held = Held()
        seen.append(weakref.ref(held))
        return x

    with D.range(2).map(note, num_parallel_calls=1).iterator() as iterator:
        next(iterator)
        wait_until(lambda: all(each() is None for each in seen), "what was made is gone")


def test_the_buffer_doubles_when_it_was_full_and_is_found_empty() -> None:
    tuner = Autotuner(AUTOTUNE)
    limits = []
    for there in (0, 1, 0, 0, 2, 1, 0, 4, 0):
        tuner.taken(there)
        limits.append(tuner.limit)
    assert limits == [1, 1, 2, 2, 2, 2, 4, 4, 8]
    tuner.limit = 4096
    tuner.taken(4096)
    tuner.taken(0)
    assert tuner.limit == 4096 + 2048
    fixed = Autotuner(3)
    fixed.taken(3)
    fixed.taken(0)
    assert fixed.limit == 3
