"""What tf.data's documentation says comes out, written down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb.data import Dataset, Ragged
from tests.data.elements import values

D = Dataset


def fill(n: Any) -> Any:
    return np.full(n, n)


ROWS = Ragged.from_rows([[0], [1, 2, 3, 4], [5, 6, 7], [7, 8, 9, 10, 11], range(15, 21), [21]], int)

CASES = {
    "range(5)": (lambda: D.range(5), [0, 1, 2, 3, 4]),
    "range(2, 5)": (lambda: D.range(2, 5), [2, 3, 4]),
    "range(1, 5, 2)": (lambda: D.range(1, 5, 2), [1, 3]),
    "range(1, 5, -2)": (lambda: D.range(1, 5, -2), []),
    "range(5, 1, -2)": (lambda: D.range(5, 1, -2), [5, 3]),
    "from_tensors keeps it whole": (lambda: D.from_tensors([1, 2, 3]), [[1, 2, 3]]),
    "from_tensors nests": (lambda: D.from_tensors(([1, 2, 3], "A")), [([1, 2, 3], "A")]),
    "from_tensor_slices": (lambda: D.from_tensor_slices([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    "from_tensor_slices of a tuple": (
        lambda: D.from_tensor_slices(([1, 2], [3, 4], [5, 6])),
        [(1, 3, 5), (2, 4, 6)],
    ),
    "from_tensor_slices of a dict": (
        lambda: D.from_tensor_slices({"a": [1, 2], "b": [3, 4]}),
        [{"a": 1, "b": 3}, {"a": 2, "b": 4}],
    ),
    "map": (lambda: D.range(1, 6).map(lambda x: x + 1), [2, 3, 4, 5, 6]),
    "map is given tuples item by item": (
        lambda: D.from_tensor_slices(([1, 2], [3, 4])).map(lambda a, b: (b, a)),
        [(3, 1), (4, 2)],
    ),
    "map may return what is nested otherwise": (
        lambda: D.range(1, 3).map(lambda x: (x, {"b": [1.0, 2.0], "c": "text"})),
        [(1, {"b": [1.0, 2.0], "c": "text"}), (2, {"b": [1.0, 2.0], "c": "text"})],
    ),
    "filter": (lambda: D.from_tensor_slices([1, 2, 3]).filter(lambda x: x < 3), [1, 2]),
    "flat_map": (
        lambda: D.from_tensor_slices([[1, 2, 3], [4, 5, 6]]).flat_map(D.from_tensor_slices),
        [1, 2, 3, 4, 5, 6],
    ),
    "interleave(cycle_length=2, block_length=4)": (
        lambda: D.range(1, 6).interleave(lambda x: D.from_tensors(x).repeat(6), 2, 4),
        [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5],
    ),
    "zip": (
        lambda: D.zip((D.range(1, 4), D.range(4, 7))),
        [(1, 4), (2, 5), (3, 6)],
    ),
    "zip nests": (
        lambda: D.zip((D.range(1, 4), D.range(4, 7), D.range(7, 13).batch(2))),
        [(1, 4, [7, 8]), (2, 5, [9, 10]), (3, 6, [11, 12])],
    ),
    "zip ends with the shortest": (
        lambda: D.zip((D.range(1, 4), D.range(13, 15))),
        [(1, 13), (2, 14)],
    ),
    "concatenate": (lambda: D.range(1, 4).concatenate(D.range(4, 8)), [1, 2, 3, 4, 5, 6, 7]),
    "repeat(3)": (lambda: D.from_tensor_slices([1, 2, 3]).repeat(3), [1, 2, 3] * 3),
    "repeat(0)": (lambda: D.range(3).repeat(0), []),
    "repeat of nothing for ever": (lambda: D.range(0).repeat(), []),
    "batch": (lambda: D.range(8).batch(3), [[0, 1, 2], [3, 4, 5], [6, 7]]),
    "batch(drop_remainder=True)": (lambda: D.range(8).batch(3, True), [[0, 1, 2], [3, 4, 5]]),
    "batch after repeat goes over epochs": (
        lambda: D.range(3).repeat(2).batch(2),
        [[0, 1], [2, 0], [1, 2]],
    ),
    "padded_batch to the longest": (
        lambda: D.range(1, 5).map(fill).padded_batch(2),
        [[[1, 0], [2, 2]], [[3, 3, 3, 0], [4, 4, 4, 4]]],
    ),
    "padded_batch(padded_shapes=5)": (
        lambda: D.range(1, 5).map(fill).padded_batch(2, padded_shapes=(5,)),
        [[[1, 0, 0, 0, 0], [2, 2, 0, 0, 0]], [[3, 3, 3, 0, 0], [4, 4, 4, 4, 0]]],
    ),
    "padded_batch(padding_values=-1)": (
        lambda: D.range(1, 5).map(fill).padded_batch(2, (5,), -1),
        [[[1, -1, -1, -1, -1], [2, 2, -1, -1, -1]], [[3, 3, 3, -1, -1], [4, 4, 4, 4, -1]]],
    ),
    "padded_batch of a tuple": (
        lambda: D.from_generator(
            lambda: iter([([1, 2, 3], [10]), ([4, 5], [11, 12])])
        ).padded_batch(2, padded_shapes=([4], [None]), padding_values=(-1, 100)),
        [([[1, 2, 3, -1], [4, 5, -1, -1]], [[10, 100], [11, 12]])],
    ),
    "padded_batch of several axes": (
        lambda: D.range(1, 3).map(lambda n: np.ones((n, 3 - n), int)).padded_batch(2),
        [[[[1, 1], [0, 0]], [[1, 0], [1, 0]]]],
    ),
    "ragged_batch": (
        lambda: D.range(6).map(np.arange).ragged_batch(2),
        [
            {"ragged": [[], [0]]},
            {"ragged": [[0, 1], [0, 1, 2]]},
            {"ragged": [[0, 1, 2, 3], [0, 1, 2, 3, 4]]},
        ],
    ),
    "ragged_batch of equally long ones": (
        lambda: D.range(2).map(lambda _: [1, 2]).ragged_batch(2),
        [{"ragged": [[1, 2], [1, 2]]}],
    ),
    "ragged_batch of what a function returns whole": (
        lambda: D.range(2).map(lambda x: np.stack([x, -x], 1), batched=True).ragged_batch(2),
        [[[0, 0], [1, -1]]],
    ),
    "ragged_batch of shuffled elements that come one by one": (
        lambda: D.range(2).map(lambda x: [7, 8]).shuffle(1).enumerate().ragged_batch(2),
        [([0, 1], {"ragged": [[7, 8], [7, 8]]})],
    ),
    "ragged_batch of one shape": (
        lambda: D.from_tensor_slices(np.eye(2)).ragged_batch(2),
        [[[1.0, 0.0], [0.0, 1.0]]],
    ),
    "bucket_by_sequence_length": (
        lambda: D.from_tensor_slices(ROWS).bucket_by_sequence_length(len, [3, 5], [2, 2, 2]),
        [
            [[1, 2, 3, 4], [5, 6, 7, 0]],
            [[7, 8, 9, 10, 11, 0], [15, 16, 17, 18, 19, 20]],
            [[0], [21]],
        ],
    ),
    "bucket_by_sequence_length in the order in which they are full, then of length": (
        lambda: D.range(9).bucket_by_sequence_length(lambda n: 9 - n, [3, 6, 8], [9, 2, 2, 1]),
        [[0], [1], [2, 3], [4, 5], [7, 8], [6]],
    ),
    "bucket_by_sequence_length(pad_to_bucket_boundary=True)": (
        lambda: (
            D.from_tensor_slices(ROWS)
            .take(2)
            .bucket_by_sequence_length(len, [3, 6], [1, 2, 9], pad_to_bucket_boundary=True)
        ),
        [[[0, 0]], [[1, 2, 3, 4, 0]]],
    ),
    "bucket_by_sequence_length(no_padding=True)": (
        lambda: D.from_tensor_slices(ROWS).bucket_by_sequence_length(
            len, [2, 4, 5, 6], [2, 2, 2, 2, 2], no_padding=True, drop_remainder=True
        ),
        [[[0], [21]]],
    ),
    "bucket_by_sequence_length of a tuple": (
        lambda: D.from_tensor_slices((ROWS, ROWS)).bucket_by_sequence_length(
            lambda a, b: len(a),
            [5],
            [3, 9],
            padded_shapes=([4], [None]),
            padding_values=(-1, 0),
            drop_remainder=True,
        ),
        [
            (
                [[0, -1, -1, -1], [1, 2, 3, 4], [5, 6, 7, -1]],
                [[0, 0, 0, 0], [1, 2, 3, 4], [5, 6, 7, 0]],
            )
        ],
    ),
    "take_while": (lambda: D.range(10).take_while(lambda x: x < 5), [0, 1, 2, 3, 4]),
    "take_while ends for good": (
        lambda: D.from_tensor_slices([1, 9, 1]).take_while(lambda x: x < 5),
        [1],
    ),
    "take_while is given tuples item by item": (
        lambda: D.from_tensor_slices(([1, 2], [1, 3])).take_while(lambda a, b: a == b),
        [(1, 1)],
    ),
    "unique": (lambda: D.from_tensor_slices([1, 37, 2, 37, 2, 1]).unique(), [1, 37, 2]),
    "unique of text": (lambda: D.from_tensor_slices(list("abca")).unique(), ["a", "b", "c"]),
    "unbatch": (
        lambda: D.from_generator(lambda: iter([[1, 2, 3], [1, 2], [1, 2, 3, 4]])).unbatch(),
        [1, 2, 3, 1, 2, 1, 2, 3, 4],
    ),
    "window(3)": (lambda: D.range(7).window(3), [[0, 1, 2], [3, 4, 5], [6]]),
    "window(3, drop_remainder=True)": (
        lambda: D.range(7).window(3, drop_remainder=True),
        [[0, 1, 2], [3, 4, 5]],
    ),
    "window(3, 2, 1, True)": (
        lambda: D.range(7).window(3, 2, 1, True),
        [[0, 1, 2], [2, 3, 4], [4, 5, 6]],
    ),
    "window(3, 1, 2, True)": (
        lambda: D.range(7).window(3, 1, 2, True),
        [[0, 2, 4], [1, 3, 5], [2, 4, 6]],
    ),
    "window of a tuple": (
        lambda: D.from_tensor_slices(([1, 2, 3, 4], [5, 6, 7, 8])).window(2),
        [([1, 2], [5, 6]), ([3, 4], [7, 8])],
    ),
    "window of a dict": (
        lambda: D.from_tensor_slices({"a": [1, 2, 3], "b": [4, 5, 6]}).window(2),
        [{"a": [1, 2], "b": [4, 5]}, {"a": [3], "b": [6]}],
    ),
    "take": (lambda: D.range(10).take(3), [0, 1, 2]),
    "take(-1)": (lambda: D.range(3).take(-1), [0, 1, 2]),
    "skip": (lambda: D.range(10).skip(7), [7, 8, 9]),
    "skip(-1)": (lambda: D.range(3).skip(-1), []),
    "skip of more than there are": (lambda: D.range(3).skip(5), []),
    "shard": (lambda: D.range(10).shard(3, 0), [0, 3, 6, 9]),
    "shard behind the end": (lambda: D.range(2).shard(4, 3), []),
    "enumerate": (
        lambda: D.from_tensor_slices([1, 2, 3]).enumerate(start=5),
        [(5, 1), (6, 2), (7, 3)],
    ),
    "enumerate nests": (
        lambda: D.from_tensor_slices([(7, 8), (9, 10)]).enumerate(),
        [(0, [7, 8]), (1, [9, 10])],
    ),
    "scan": (
        lambda: D.range(10).scan(0, lambda state, i: (state + i, state + i)),
        [0, 1, 3, 6, 10, 15, 21, 28, 36, 45],
    ),
    "ignore_errors": (
        lambda: D.from_tensor_slices([1, 2, 0, 4]).map(lambda x: 4 // int(x)).ignore_errors(),
        [4, 2, 1],
    ),
    "shuffle(1)": (lambda: D.range(4).shuffle(1), [0, 1, 2, 3]),
    "prefetch(0)": (lambda: D.range(3).prefetch(0), [0, 1, 2]),
}


@pytest.mark.parametrize(("make", "expected"), CASES.values(), ids=CASES)
def test_elements_are_those_of_the_documentation(make: Any, expected: list[Any]) -> None:
    assert values(make()) == expected


@pytest.mark.parametrize("buffered", [False, True])
def test_a_shuffle_draws_from_the_oldest_of_the_buffer(buffered: bool) -> None:
    source = D.range(100).filter(lambda _: True) if buffered else D.range(100)
    order = values(source.shuffle(10))
    assert sorted(order) == list(range(100))
    assert order != list(range(100))
    assert all(element < place + 10 for place, element in enumerate(order))


def test_both_ways_to_shuffle_give_the_same_order() -> None:
    by_index = values(D.range(100).shuffle(10, seed=1))
    assert by_index == values(D.range(100).filter(lambda _: True).shuffle(10, seed=1))


def test_all_orders_of_a_full_shuffle_are_equally_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(1200):
        order = tuple(values(D.range(3).shuffle(3, seed=seed)))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    # Chi-squared with five degrees of freedom is above 20.5 once in a thousand.
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 20.5


def test_epochs_are_shuffled_again_unless_fixed() -> None:
    anew = values(D.range(20).shuffle(20, seed=1).repeat(2))
    assert sorted(anew[:20]) == sorted(anew[20:])
    assert anew[:20] != anew[20:]
    same = values(D.range(20).shuffle(20, seed=1, reshuffle_each_iteration=False).repeat(2))
    assert same[:20] == same[20:]
    unseeded = D.range(20).shuffle(20, reshuffle_each_iteration=False)
    assert values(unseeded) == values(unseeded)


def test_a_seed_makes_iterations_the_same_and_none_makes_them_differ() -> None:
    seeded, unseeded = D.range(20).shuffle(20, seed=1), D.range(20).shuffle(20)
    assert values(seeded) == values(seeded)
    assert values(unseeded) != values(unseeded)


def test_sample_from_datasets_draws_by_weight_and_loses_none() -> None:
    several = [D.range(0, 4000), D.range(10_000, 14_000)]
    found = values(D.sample_from_datasets(several, [0.75, 0.25], seed=1))
    assert sorted(found) == [*range(4000), *range(10_000, 14_000)]
    assert 700 < sum(each < 10_000 for each in found[:1000]) < 800


def test_sample_from_datasets_may_stop_with_the_first_that_ends() -> None:
    several = [D.range(5), D.range(100, 200)]
    found = values(D.sample_from_datasets(several, seed=1, stop_on_empty_dataset=True))
    assert [each for each in found if each < 100] == [0, 1, 2, 3, 4]
    assert len(found) < 105


def test_a_parallel_map_keeps_the_order() -> None:
    assert values(D.range(50).map(lambda x: x, num_parallel_calls=4)) == list(range(50))


def test_batches_of_text_and_of_scalars_have_one_axis() -> None:
    (batch,) = D.from_tensor_slices((["a", "b"], [True, False])).batch(2)
    assert batch[0].tolist() == ["a", "b"]
    assert batch[1].dtype == np.bool_


def test_numbers_of_64_bits_survive() -> None:
    top = 2**64 - 1
    (batch,) = D.from_generator(lambda: iter([top, top - 1])).batch(2)
    assert batch.tolist() == [top, top - 1]


def test_rows_of_a_ragged_are_elements() -> None:
    rows = Ragged.from_rows([[1], [2, 3]])
    assert values(D.from_tensor_slices((rows, [5, 6]))) == [([1], 5), ([2, 3], 6)]


def test_reduce_carries_a_state_through_all_elements() -> None:
    assert D.range(5).reduce(np.int64(0), lambda state, _: state + 1) == 5
    assert D.range(5).reduce(np.int64(0), lambda state, x: state + x) == 10
    pairs = D.from_tensor_slices(([1, 2], [3, 4]))
    assert pairs.reduce((0, 1), lambda s, x: (s[0] + x[0], s[1] * x[1])) == (3, 12)
    assert D.range(0).reduce(7, lambda state, _: state) == 7


def test_reduce_leaves_the_first_state_as_it_was() -> None:
    def add(state: np.ndarray, element: np.ndarray) -> np.ndarray:
        state += element
        return state

    first = np.zeros(2)
    for _ in range(2):
        assert D.range(4).reduce(first, add).tolist() == [6, 6]
    assert first.tolist() == [0, 0]


def test_as_numpy_iterator_gives_the_elements() -> None:
    assert [int(each) for each in D.range(3).as_numpy_iterator()] == [0, 1, 2]
