"""Arrays that a user's function fills anew for each element: what keeps elements has copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from psnb.data import Dataset, Ragged
from tests.data.elements import values

D = Dataset


def refilled(shapes: Sequence[tuple[int, ...]]) -> Iterator[Any]:
    """Yield parts of one array, filled with 1, then with 2, and so on."""
    array = np.zeros((4, 4))
    for number, shape in enumerate(shapes, 1):
        array[:] = number
        yield array[tuple(slice(size) for size in shape)]


def generated(shapes: Sequence[tuple[int, ...]]) -> Dataset:
    return D.from_generator(lambda: refilled(shapes))


def into(buffer: Any) -> Callable[[Any], Any]:
    """Return a function that fills one array, or the values of one `Ragged`, and returns it."""

    def fill(number: Any) -> Any:
        (buffer.values if isinstance(buffer, Ragged) else buffer)[...] = number
        return buffer

    return fill


def square(number: int) -> list[Any]:
    return [[number, number], [number, number]]


def within(buffers: Any) -> Callable[[Any], Any]:
    """Return a function that fills arrays which are items of an array, and returns that."""

    def fill(number: Any) -> Any:
        for each in buffers:
            each[...] = number
        return buffers

    return fill


SAME, LONGER, WIDER = [(2, 2)] * 4, [(1, 2), (2, 2), (3, 2)], [(1, 2), (2, 1), (2, 2)]
ARRAY = np.zeros((2, 2))
ITEMS = np.empty(2, object)
ITEMS[:] = [np.zeros(1), np.zeros(2)]
RECORD = np.zeros((), [("x", np.int64)])
PAIRS = [[square(1), square(2)], [square(3), square(4)]]


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        pytest.param(generated(SAME).batch(2), PAIRS, id="batch"),
        pytest.param(D.range(1, 5).map(into(ARRAY)).batch(2), PAIRS, id="map"),
        pytest.param(D.range(1, 5).map(into(ARRAY), 1).batch(2), PAIRS, id="parallel map"),
        pytest.param(
            D.range(1, 4).map(into(RECORD)).map(lambda record: record["x"]).batch(3),
            [[1, 2, 3]],
            id="records",
        ),
        pytest.param(
            generated(LONGER).ragged_batch(3),
            [{"ragged": [[[1, 1]], [[2, 2]] * 2, [[3, 3]] * 3]}],
            id="ragged batch",
        ),
        pytest.param(
            generated(LONGER * 2).padded_batch(2),
            [
                [[[1, 1], [0, 0]], square(2)],
                [[[3, 3]] * 3, [[4, 4], [0, 0], [0, 0]]],
                [[[5, 5], [5, 5], [0, 0]], [[6, 6]] * 3],
            ],
            id="padded batch",
        ),
        pytest.param(
            generated(WIDER).padded_batch(3),
            [[[[1, 1], [0, 0]], [[2, 0], [2, 0]], square(3)]],
            id="padded in all axes",
        ),
        pytest.param(
            D.range(1, 3).map(into(Ragged.from_rows([[0], [0, 0]], int))).shuffle(1).repeat(1),
            [{"ragged": [[1], [1, 1]]}, {"ragged": [[2], [2, 2]]}],
            id="Ragged in a buffer",
        ),
        pytest.param(
            generated(SAME).window(2).flat_map(lambda each: each.batch(2)), PAIRS, id="window"
        ),
        pytest.param(generated(SAME).shuffle(1).batch(2), PAIRS, id="shuffle"),
        pytest.param(generated(SAME).repeat(2).batch(2), PAIRS * 2, id="repeat"),
        pytest.param(generated(SAME * 2).take(4).batch(2), PAIRS, id="take"),
        pytest.param(generated(SAME).cache().repeat(2).batch(2), PAIRS * 2, id="cache"),
        pytest.param(
            D.zip(generated(SAME), generated(SAME)).batch(4),
            [([*PAIRS[0], *PAIRS[1]],) * 2],
            id="zip",
        ),
    ],
)
def test_elements_keep_what_they_were(dataset: Dataset, expected: list[Any]) -> None:
    assert values(dataset) == expected


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param(D.range(1, 3).map(within(ITEMS)), id="map"),
        pytest.param(D.range(1, 3).map(within(ITEMS)).cache(), id="cache"),
        pytest.param(D.from_generator(lambda: map(within(ITEMS), (1, 2))), id="generator"),
    ],
)
def test_arrays_that_are_items_of_arrays_stay_as_they_were_too(dataset: Dataset) -> None:
    held = [[each.tolist() for each in element] for element in list(dataset)]
    assert held == [[[1], [1, 1]], [[2], [2, 2]]]


def test_also_those_of_functions_of_many_elements() -> None:
    buffer = np.zeros(100)

    def fill(numbers: Any) -> dict[str, Any]:
        part = buffer[: len(numbers)]
        part[:] = numbers
        return {"same": part, "ragged": Ragged(part, np.arange(len(part) + 1)), "given": numbers}

    batches = D.range(200).map(fill, batched=True).batch(100)
    first, second = list(batches)
    for name in ("same", "ragged", "given"):
        found = [np.ravel(batch[name]) for batch in (first, second)]
        np.testing.assert_array_equal(np.concatenate(found), np.arange(200))


def test_a_scan_that_changes_its_state_in_place_leaves_the_dataset_as_it_was() -> None:
    initial = np.zeros(2)

    def add(total: Any, number: Any) -> Any:
        total += number
        if number == 2:
            raise ValueError("after the change")
        return total, total

    dataset = D.range(1, 5).scan(initial, add).ignore_errors()
    expected = [[1, 1], [4, 4], [8, 8]]  # nothing of what failed
    assert values(dataset.batch(3)) == [expected]
    assert values(dataset) == expected
    assert initial.tolist() == [0, 0]


def test_iterators_of_a_scan_that_returns_one_array_do_not_meet() -> None:
    buffer = np.zeros(1)

    def add(total: Any, number: Any) -> Any:
        buffer[:] = total + number
        return buffer, buffer

    dataset = D.range(1, 4).scan(np.zeros(1), add)
    pairs = zip(dataset, dataset, strict=True)  # in turn
    assert [(int(a[0]), int(b[0])) for a, b in pairs] == [(1, 1), (3, 3), (6, 6)]


def test_arrays_behind_other_items_of_a_column_are_copied() -> None:
    buffer = np.zeros(2)

    def fill(numbers: np.ndarray) -> np.ndarray:
        made = np.empty(len(numbers), object)
        buffer[:] = numbers[0]
        for place in range(1, len(numbers)):
            made[place] = buffer
        return made  # the first is None

    found = list(Dataset.range(1500).map(fill, batched=True))
    assert found[1].tolist() == [0, 0]
