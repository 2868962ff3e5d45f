"""Chains that hypothesis makes up, against lists."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from psnb.data import Dataset
from tests.data.elements import plain, values

Step = tuple[str, Callable[[Dataset], Dataset], Callable[[list[Any]], list[Any]]]

N = st.integers(1, 5)
M = st.integers(0, 7)


def _cut(items: list[Any], size: int, drop: bool) -> list[list[Any]]:
    parts = [items[i : i + size] for i in range(0, len(items), size)]
    return [part for part in parts if len(part) == size or not drop]


def _windows(items: list[Any], size: int, shift: int, stride: int) -> list[Any]:
    found = [items[i : i + (size - 1) * stride + 1 : stride] for i in range(0, len(items), shift)]
    return [x for window in found for x in window]


def _buckets(items: list[Any], sizes: tuple[int, ...]) -> list[Any]:
    found: list[Any] = []
    held: list[list[Any]] = [[], [], []]
    for x in items:
        mine = held[(x % 5 >= 1) + (x % 5 >= 3)]
        mine.append(x)
        if len(mine) == sizes[(x % 5 >= 1) + (x % 5 >= 3)]:
            found += mine
            mine.clear()
    return found + [x for mine in held for x in mine]


STEPS = st.one_of(
    M.map(lambda n: (f"take {n}", lambda d: d.take(n), lambda x: x[:n])),
    M.map(lambda n: (f"skip {n}", lambda d: d.skip(n), lambda x: x[n:])),
    st.tuples(N, N).map(
        lambda p: (
            f"shard {p}",
            lambda d: d.shard(max(p), min(p) - 1),
            lambda x: x[min(p) - 1 :: max(p)],
        )
    ),
    st.integers(0, 3).map(lambda n: (f"repeat {n}", lambda d: d.repeat(n), lambda x: x * n)),
    N.map(
        lambda n: (
            f"filter {n}",
            lambda d: d.filter(lambda x: x % (n + 1) != 0),
            lambda x: [each for each in x if each % (n + 1)],
        )
    ),
    N.map(lambda n: (f"map {n}", lambda d: d.map(lambda x: x + n), lambda x: [e + n for e in x])),
    N.map(
        lambda n: (
            f"batched map {n}",
            lambda d: d.map(lambda x: x + n, batched=True),
            lambda x: [each + n for each in x],
        )
    ),
    N.map(lambda n: (f"prefetch {n}", lambda d: d.prefetch(n), lambda x: x)),
    st.tuples(N, st.booleans()).map(
        lambda p: (
            f"batch and unbatch {p}",
            lambda d: d.batch(*p).unbatch(),
            lambda x: [each for part in _cut(x, *p) for each in part],
        )
    ),
    st.tuples(N, N, N).map(
        lambda p: (
            f"window {p}",
            lambda d: d.window(*p).flat_map(lambda w: w),
            lambda x: _windows(x, *p),
        )
    ),
    N.map(
        lambda n: (
            f"zip with {n} skipped",
            lambda d: Dataset.zip(d, d.skip(n)).map(lambda a, b: a + b),
            lambda x: [a + b for a, b in zip(x, x[n:], strict=False)],
        )
    ),
    N.map(
        lambda n: (
            f"take_while {n}",
            lambda d: d.take_while(lambda x: x % (n + 2) != n + 1),
            lambda x: list(itertools.takewhile(lambda e: e % (n + 2) != n + 1, x)),
        )
    ),
    st.just(("unique", lambda d: d.unique(), lambda x: list(dict.fromkeys(x)))),
    st.tuples(N, N, N).map(
        lambda p: (
            f"buckets {p}",
            lambda d: d.bucket_by_sequence_length(lambda x: x % 5, [1, 3], p).unbatch(),
            lambda x: _buckets(x, p),
        )
    ),
    st.just(("concatenate", lambda d: d.concatenate(d), lambda x: x + x)),
    st.just(("cache", lambda d: d.cache(), lambda x: x)),
    N.map(
        lambda n: (
            f"enumerate from {n}",
            lambda d: d.enumerate(n).map(lambda i, x: i * x),
            lambda x: [i * each for i, each in enumerate(x, n)],
        )
    ),
)


@given(st.integers(0, 12), st.lists(STEPS, max_size=4), st.data())
def test_chains_are_what_lists_would_be_and_resume_anywhere(
    count: int, steps: list[Step], data: st.DataObject
) -> None:
    def make() -> Dataset:
        dataset = Dataset.range(count)
        for _, step, _ in steps:
            dataset = step(dataset)
        return dataset

    expected = list(range(count))
    for _, _, model in steps:
        expected = model(expected)
    assert values(make()) == expected

    taken = data.draw(st.integers(0, len(expected)))
    with make().iterator() as iterator:
        assert [plain(next(iterator)) for _ in range(taken)] == expected[:taken]
        state = json.loads(json.dumps(iterator.state()))
    with make().iterator(state) as iterator:
        assert values(iterator) == expected[taken:]


@given(st.integers(0, 40), st.integers(1, 50), st.integers(0, 2**64), st.integers(0, 40))
def test_shuffles_lose_nothing_and_resume_anywhere(
    count: int, buffer_size: int, seed: int, taken: int
) -> None:
    for source in (Dataset.range(count), Dataset.range(count).filter(lambda _: True)):
        dataset = source.shuffle(buffer_size, seed)
        expected = values(dataset)
        assert sorted(expected) == list(range(count))
        with dataset.iterator() as iterator:
            for _ in range(min(taken, count)):
                next(iterator)
            state = iterator.state()
        with dataset.iterator(state) as iterator:
            assert values(iterator) == expected[taken:]


PASSING: dict[str, Callable[[Dataset], Dataset]] = {
    "batch": lambda d: d.batch(3).unbatch(),
    "ragged_batch": lambda d: d.batch(2).map(lambda x: x).unbatch(),
    "shuffle": lambda d: d.shuffle(4, seed=1),
    "small shuffle": lambda d: d.shuffle(2, seed=2),
    "prefetch": lambda d: d.prefetch(3),
    "parallel map": lambda d: d.map(lambda x: x, num_parallel_calls=2),
    "buckets": lambda d: d.bucket_by_sequence_length(lambda x: x % 3, [1, 2], [2, 3, 1]).unbatch(),
    "unique": lambda d: d.unique(),
    "window": lambda d: d.window(2).flat_map(lambda w: w),
    "enumerate": lambda d: d.enumerate().map(lambda i, x: x),
    "concatenate": lambda d: d.concatenate(Dataset.range(100, 103)),
    "interleave": lambda d: d.interleave(Dataset.from_tensors, cycle_length=3),
    "cache": lambda d: d.cache(),
    "filter": lambda d: d.filter(lambda x: True),
    "take": lambda d: d.take(1000),
    "batched map": lambda d: d.map(lambda x: x, batched=True),
    "sample": lambda d: Dataset.sample_from_datasets([d, Dataset.range(100, 105)], seed=3),
    "scan": lambda d: d.scan(0, lambda s, x: (s, x)),
    "zip": lambda d: Dataset.zip(Dataset.range(100), d).map(lambda a, b: b),
}


@given(
    st.integers(0, 14),
    st.sets(st.integers(0, 14)),
    st.lists(st.sampled_from(sorted(PASSING)), max_size=3),
    st.data(),
)
def test_failing_elements_cost_no_others_and_resuming_repeats_no_error(
    count: int, failing: set[int], steps: list[str], data: st.DataObject
) -> None:
    def fail(x: Any) -> Any:
        if x in failing:
            raise ValueError(x)
        return x

    def make() -> Dataset:
        dataset = Dataset.range(count).map(fail)
        for step in steps:
            dataset = PASSING[step](dataset)
        return dataset.ignore_errors()

    with make().iterator() as iterator:
        elements = values(iterator)
        errors = iterator.errors_ignored
    real = [each for each in elements if each < 100]
    assert sorted(real) == sorted(set(range(count)) - failing)
    assert errors == len(failing & set(range(count)))

    taken = data.draw(st.integers(0, len(elements)))
    with make().iterator() as iterator:
        for _ in range(taken):
            next(iterator)
        state = json.loads(json.dumps(iterator.state()))
    with make().iterator(state) as iterator:
        assert values(iterator) == elements[taken:]
        assert iterator.errors_ignored == errors
