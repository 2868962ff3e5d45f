"""Each error says in which part of the chain, at which element and where in a file."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from psnb._src.data.node import Context
from psnb._src.data.nodes.shuffle import BufferIterator
from psnb.data import ArraySpec, Dataset, Options, Ragged
from psnb.errors import ConfigurationError, DatasetError
from tests.data.chains import fails_at_five
from tests.data.elements import Numbers, plain, values

D = Dataset


def until_error(dataset: Dataset) -> tuple[list[Any], DatasetError]:
    """Return what comes before the first error, and that."""
    found = []
    with dataset.iterator() as iterator:
        while True:
            try:
                found.append(plain(next(iterator)))
            except DatasetError as error:
                return found, error


FAILING: dict[str, Callable[[], Dataset]] = {
    "map": lambda: D.range(9).map(fails_at_five),
    "map, parallel": lambda: D.range(9).map(fails_at_five, num_parallel_calls=3),
    "filter": lambda: D.range(9).filter(lambda x: fails_at_five(x) == x),
    "flat_map": lambda: D.range(9).flat_map(lambda x: D.from_tensors(fails_at_five(x))),
    "scan": lambda: D.range(9).scan(0, lambda s, x: (s, fails_at_five(x))),
    "map behind a prefetch": lambda: D.range(9).map(fails_at_five).prefetch(4),
    "map behind a take": lambda: D.range(9).map(fails_at_five).take(8),
    "map beside a zip": lambda: D.zip(D.range(9).map(fails_at_five), D.range(9)).map(
        lambda a, b: a
    ),
}


@pytest.mark.parametrize("make", FAILING.values(), ids=FAILING)
def test_what_comes_before_a_failing_element_is_returned_and_what_comes_after_can_be(
    make: Callable[[], Dataset],
) -> None:
    found, error = until_error(make())
    assert found == [0, 1, 2, 3, 4]
    assert "element 5" in str(error)
    assert "ValueError: five" in str(error)
    assert isinstance(error.__cause__, ValueError)
    with make().ignore_errors().iterator() as iterator:
        assert values(iterator) == [0, 1, 2, 3, 4, 6, 7, 8]
        assert iterator.errors_ignored == 1


def test_it_names_the_function_of_the_node() -> None:
    _, error = until_error(FAILING["map"]())
    assert str(error).startswith("map(fails_at_five), element 5: ")


def test_it_names_file_and_record_through_filters_and_shuffles() -> None:
    files = D.from_files(Numbers(), ["2", "7"]).filter(lambda x: x > 20).shuffle(3, seed=1)
    _, error = until_error(files.map(lambda x: 1 // int(x - 74)).batch(2))
    assert "(7, record 5)" in str(error)


def test_of_a_batch_it_names_where_its_first_element_is() -> None:
    files = D.from_files(Numbers(), ["7"]).batch(3).map(lambda x: 1 // int(x[0] - 73))
    _, error = until_error(files)
    assert "element 1 (7, record 4)" in str(error)


def test_a_record_that_cannot_be_read_costs_the_rest_of_its_file() -> None:
    files = D.from_files(Numbers(bad=74), ["7", "2"])
    found, error = until_error(files)
    assert found == [70, 71, 72]
    assert str(error) == "7, record 4: not good"  # the file first, no settings of readers
    assert values(files.ignore_errors()) == [70, 71, 72, 20, 21]


def test_a_failing_generator_is_over() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    found, error = until_error(D.from_generator(numbers).batch(1))
    assert found == [[1]]
    assert "from_generator(numbers), element 1: OSError: gone" in str(error)
    assert isinstance(error.__cause__, OSError)
    assert values(D.from_generator(numbers).ignore_errors()) == [1]


def test_the_first_ignored_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bad = D.range(6).map(lambda x: 1 // int(x % 2)).ignore_errors()
    with caplog.at_level(logging.WARNING):
        values(bad)
    (record,) = caplog.records
    assert "map(<lambda>), element 0: ZeroDivisionError" in record.getMessage()


def test_elements_before_an_error_come_in_the_next_batch() -> None:
    dataset = D.range(8).map(fails_at_five).batch(3).ignore_errors()
    assert values(dataset) == [[0, 1, 2], [3, 4, 6], [7]]


MISMATCHED = {
    "dtype": (lambda x: x if x < 3 else 0.5, "float64, but a scalar of int64 before"),
    "axes": (lambda x: x if x < 3 else [1], "int64 with 1 axis, but a scalar"),
    "text": (lambda x: {"a": x if x < 3 else "t"}, r"\['a'\] is text, but a scalar"),
    "nesting": (lambda x: x if x < 3 else (x,), "expected arrays.*found a tuple"),
    "tuple": (lambda x: (x, x) if x < 3 else (x,), r"expected a tuple of \(0, 1\), found one of"),
    "keys": (
        lambda x: {"a": {"b": x}} if x < 3 else {"a": {"c": x}},
        r"at \['a'\]: expected a dict of \('b'\), found one of \('c'\)",
    ),
    "None": (lambda x: None, "found a NoneType"),
    "too large": (lambda x: {"n": 2**64}, r"at \['n'\]: the integer .* does not fit 64 bits"),
    "empty": (lambda x: (), "at least one array"),
}


@pytest.mark.parametrize(("function", "match"), MISMATCHED.values(), ids=MISMATCHED)
def test_elements_of_another_kind_are_refused_with_their_path(function: Any, match: str) -> None:
    with pytest.raises(DatasetError, match=match):
        values(D.range(5).map(function))


def test_a_generator_is_held_to_its_signature() -> None:
    signature = ArraySpec((None, 2), np.int64)
    dataset = D.from_generator(
        lambda: iter([np.ones((3, 2), int), np.ones((3, 3), int)]), output_signature=signature
    )
    assert dataset.element_spec == signature
    with pytest.raises(DatasetError, match=r"element 1: .* shape \(3, 3\), expected \(None, 2\)"):
        values(dataset)


def test_different_lengths_are_no_batch_and_the_message_says_what_to_do() -> None:
    dataset = D.range(4).map(np.arange).batch(2)
    with pytest.raises(
        DatasetError, match=r"batch\(.*element 0: .*lengths from 0 to 1; use padded"
    ):
        values(dataset)
    with pytest.raises(DatasetError, match=r"lengths from .*; use padded_batch or ragged_batch"):
        values(D.from_tensor_slices({"x": Ragged.from_rows([[1], [2, 3]])}).batch(2))
    with pytest.raises(DatasetError, match="a Ragged each"):
        values(D.range(4).map(np.arange).ragged_batch(2).batch(2))


def test_what_does_not_fit_padded_shapes_is_refused() -> None:
    dataset = D.range(4).map(np.arange)
    with pytest.raises(
        DatasetError, match=r"shape \(3,\), which does not fit padded_shapes \(2,\)"
    ):
        values(dataset.padded_batch(2, (2,)))
    with pytest.raises(DatasetError, match=r"has 1 axes, padded_shapes says \[1, 2\]"):
        values(dataset.padded_batch(2, (1, 2)))
    with pytest.raises(DatasetError, match=r"padding value 0.5 of the element is no int64"):
        values(dataset.padded_batch(2, padding_values=0.5))


def test_a_batched_function_must_return_as_many() -> None:
    with pytest.raises(DatasetError, match="was given 5 elements and returned 1"):
        values(D.range(5).map(lambda x: x[:1], batched=True))
    with pytest.raises(DatasetError, match="must return a bool for each"):
        values(D.range(5).filter(lambda x: x, batched=True))


def test_functions_that_should_make_datasets_must() -> None:
    with pytest.raises(DatasetError, match="must return a Dataset, found a int64"):
        values(D.range(5).flat_map(lambda x: x))
    with pytest.raises(DatasetError, match="must return a pair"):
        values(D.range(5).scan(0, lambda s, x: x))


def test_rows_that_do_not_match_are_refused() -> None:
    with pytest.raises(DatasetError, match=r"\['b'\] has 2 rows, but \['a'\] has 3"):
        D.from_tensor_slices({"a": [1, 2, 3], "b": [1, 2]})
    with pytest.raises(DatasetError, match="is a scalar"):
        D.from_tensor_slices(5)
    with pytest.raises(DatasetError, match=r"unbatch\(\), element 0: .* scalar"):
        values(D.range(3).unbatch())
    with pytest.raises(DatasetError, match="different elements"):
        _ = D.range(3).concatenate(D.from_tensor_slices(["a"])).element_spec
    other = D.from_tensor_slices([0.5])
    with pytest.raises(DatasetError, match=r"concatenate\(\): .*different dtypes"):
        values(D.range(3).concatenate(other).batch(4))
    stream = D.range(3).filter(lambda x: True)
    with pytest.raises(DatasetError, match=r"concatenate\(\), elements 0 to 3: .*different dtypes"):
        values(stream.concatenate(other).batch(4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: D.range(3).batch(0),
        lambda: D.range(3).batch(1.5),  # type: ignore[arg-type]
        lambda: D.range(3).shuffle(0),
        lambda: D.range(3).repeat(-2),
        lambda: D.range(3).shard(2, 2),
        lambda: D.range(3).shard(0, 0),
        lambda: D.range(3).window(2, shift=0),
        lambda: D.range(3).prefetch(-2),
        lambda: D.range(3).interleave(D.from_tensors, cycle_length=0),
        lambda: D.range(3).map(5),  # type: ignore[arg-type]
        lambda: D.range(3).map(abs, num_parallel_calls=0),
        lambda: D.range(3).concatenate([1]),  # type: ignore[arg-type]
        lambda: D.range(1, 2, 0),
        lambda: D.range("3"),  # type: ignore[arg-type]
        lambda: D.zip(),
        lambda: D.zip(D.range(3), [1, 2]),
        lambda: D.sample_from_datasets([]),
        lambda: D.sample_from_datasets([D.range(3)], [0.0]),
        lambda: D.sample_from_datasets([D.range(3)], [1.0, 2.0]),
        lambda: D.from_generator(iter([1])),  # type: ignore[arg-type]
        lambda: D.range(3).with_options({"threads": 2}),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_cannot_work_are_refused_at_once(make: Callable[[], Dataset]) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_a_parallel_map_takes_its_threads_from_the_options() -> None:
    assert Options(threads=3).parallelism(-1) == 3
    assert Options(threads=3).parallelism(2) == 2


def _stops(number: int) -> int:
    if number == 2:
        raise StopIteration
    return number


@pytest.mark.parametrize("threads", [None, 2])
def test_a_stop_iteration_of_a_function_is_an_error_and_no_end(threads: int | None) -> None:
    found, error = until_error(D.range(9).map(_stops, num_parallel_calls=threads))
    assert found == [0, 1]
    assert "does not end a dataset" in str(error)
    assert len(list(D.range(9).map(_stops, threads).ignore_errors())) == 8


def test_a_buffer_that_fills_for_long_says_so(caplog: pytest.LogCaptureFixture) -> None:
    numbers = D.range(5000).filter(lambda n: n >= 0)  # not to be found by their number
    assert sorted(numbers.shuffle(4000)) == list(range(5000))
    assert not caplog.messages
    iterator = BufferIterator(numbers.node, 4000, 0, Context(0), None, report_seconds=0.0)
    iterator.next_block(1)
    assert re.fullmatch(
        r"shuffle fills its buffer: [\d,]+ of 4,000 elements after 0 s; the first .*",
        caplog.messages[-1],
    )
    state = iterator.state()
    caplog.clear()
    BufferIterator(numbers.node, 4000, 0, Context(0), state, report_seconds=0.0)
    assert caplog.messages


def test_a_small_buffer_that_fills_slowly_tells_so_before_it_is_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    numbers = D.range(100)
    BufferIterator(numbers.node, 100, 0, Context(0), None, report_seconds=0.0).next_block(1)
    assert any(re.search(r" [1-9]\d? of 100 elements", message) for message in caplog.messages)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (([1], [2]), "1 boundaries make 2 buckets, and bucket_batch_sizes has 1"),
        (([3, 1], [2, 2, 2]), r"must be increasing, found \[3, 1\]"),
        (([], [2]), r"must be increasing, found \[\]"),
        (([1], [0, 2]), "bucket_batch_sizes must be 1 or more"),
    ],
)
def test_impossible_buckets_are_refused(arguments: tuple[Any, Any], wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        D.range(3).bucket_by_sequence_length(int, *arguments)


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({"pad_to_bucket_boundary": True}, "a length is 3 or more"),
        ({"pad_to_bucket_boundary": True, "padded_shapes": None}, "say it with padded_shapes"),
        ({"no_padding": True, "padded_shapes": None}, "input elements 1 to 2: .*stacked"),
    ],
)
def test_a_batch_that_a_bucket_cannot_make_is_named(more: dict[str, Any], wrong: str) -> None:
    rows = D.range(6).map(np.arange)
    arguments = {"padded_shapes": [None], **more}
    buckets = rows.bucket_by_sequence_length(len, [1, 3], [1, 2, 3], **arguments)
    with pytest.raises(DatasetError, match=rf"bucket_by_sequence_length.*, element \d: .*{wrong}"):
        values(buckets)


def test_what_is_no_length_is_named() -> None:
    with pytest.raises(DatasetError, match="must return the length as an integer, found float64"):
        values(D.range(6).bucket_by_sequence_length(float, [1, 3], [1, 2, 3]))


def test_what_cannot_be_compared_is_not_unique() -> None:
    with pytest.raises(DatasetError, match="must be integers, booleans or texts"):
        values(D.range(6).map(np.arange).unique())


def test_unique_says_once_that_its_input_has_become_shorter() -> None:
    # Else `ignore_errors` would never end.
    elements = D.range(3).unique().node.iterate(Context(0), [4, 0])
    with pytest.raises(DatasetError, match="fewer elements than when the state was taken"):
        elements.next_block(1)
    assert elements.next_block(1) is None


def test_reduce_names_the_element_of_an_error() -> None:
    with pytest.raises(DatasetError, match="reduce, element 2: ZeroDivisionError"):
        D.range(6).reduce(0, lambda s, x: s + 1 // (2 - int(x)))
    with pytest.raises(DatasetError, match="reduce, element 0: DatasetError: expected a tuple"):
        D.range(6).reduce((0, 1), lambda s, x: s[0])


@pytest.mark.parametrize(
    "carried",
    [
        lambda elements: elements.reduce(0, lambda s, x: s + x["id"]),
        lambda elements: values(elements.scan(0, lambda s, x: (s + x["id"], s))),
    ],
    ids=["reduce", "scan"],
)
def test_a_state_of_integers_never_rounds_ids(carried: Any) -> None:
    elements = D.from_tensor_slices({"id": np.array([2**53 + 1, 2], "u8")})
    with pytest.raises(DatasetError, match=r"become float64, which rounds.*np.uint64\(0\)"):
        carried(elements)


def test_a_state_of_integers_becomes_a_float_where_the_function_divides() -> None:
    assert D.range(3).reduce(0, lambda s, x: (s + x) / 2) == 1.25
    ids = D.from_tensor_slices(np.array([2**53 + 1, 2], "u8"))
    assert ids.reduce(np.uint64(0), lambda s, x: s + x) == 2**53 + 3
