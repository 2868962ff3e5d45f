from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.data.formats.tf_example import FixedLen, VarLen, encode_example
from psnb._src.data.ragged import Ragged
from psnb.errors import ConfigurationError, DatasetError
from tests.data.formats import protobuf
from tests.data.formats.protobuf import bytes_list, example, float_list, int64_list, part
from tests.data.formats.samples import parse_examples, plain
from tests.utils.id_forms import FORMS

INT = {"x": FixedLen((), "int64")}


def messages(*contents: bytes) -> Ragged:
    return Ragged.from_rows([np.frombuffer(content, np.uint8) for content in contents], np.uint8)


def parse(features: dict[str, Any], *contents: bytes) -> list[Any]:
    return plain(parse_examples(messages(*contents), features))


def test_the_bytes_of_an_example_are_these() -> None:
    # What TensorFlow's SerializeToString gives for {"a": [1, 300], "b": [1.0], "c": [b"z"]}.
    golden = bytes.fromhex(
        "0a2a"  # features
        "0a0c 0a0161 1207 1a050a0301ac02"  # a: int64_list, packed
        "0a0d 0a0162 1208 12060a040000803f"  # b: float_list, packed
        "0a0b 0a0163 1206 0a040a027a7a"  # c: bytes_list
    )
    values = {"a": [1, 300], "b": [1.0], "c": [b"zz"]}
    assert encode_example(values) == golden
    features = {"a": FixedLen(2, int), "b": VarLen("float32"), "c": FixedLen((), bytes)}
    assert parse(features, golden) == [{"a": [1, 300], "b": [1.0], "c": b"zz"}]


numbers = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5)
reals = st.lists(st.floats(width=32, allow_nan=False), max_size=5)
strings = st.lists(st.binary(max_size=200), max_size=3)


@given(st.lists(st.tuples(numbers, reals, strings), min_size=1, max_size=5), st.booleans())
def test_what_another_encoder_writes_is_read(rows: list[Any], packed: bool) -> None:
    contents = [
        example(
            {
                "i": int64_list(i, packed),
                "other": int64_list([5]),
                "f": float_list(f, packed),
                "b": bytes_list(b),
            }
        )
        for i, f, b in rows
    ]
    features = {"f": VarLen("float32"), "b": VarLen(bytes), "i": VarLen("int64")}
    expected = [{"f": f, "b": b, "i": i} for i, f, b in rows]
    assert parse(features, *contents) == expected


@given(numbers, reals, strings)
def test_what_is_encoded_is_read(i: list[int], f: list[float], b: list[bytes]) -> None:
    content = encode_example({"i": np.array(i, np.int64), "f": np.array(f, np.float32), "b": b})
    fixed = {
        "i": FixedLen(len(i), "int64"),
        "f": FixedLen((len(f), 1), "float32"),
        "b": FixedLen(len(b), bytes, [b""] * len(b)),
    }
    assert parse(fixed, content) == [{"i": i, "f": [[value] for value in f], "b": b}]


@pytest.mark.parametrize("form", [each for each in FORMS if "negative" not in each])
def test_integers_of_any_form_keep_their_bits(form: str) -> None:
    make, expected = FORMS[form]
    column = VarLen("int64")
    (found,) = parse({"x": column}, encode_example({"x": make()}))
    assert [n % 2**64 for n in found["x"]] == expected


@pytest.mark.parametrize("scalar", [np.float32, torch.tensor, jax.numpy.float32])
def test_floats_of_any_form_keep_their_fractions(scalar: Callable[[float], Any]) -> None:
    for values in ([scalar(0.5), scalar(2.0)], scalar(0.5)):
        (found,) = parse({"x": VarLen("float32")}, encode_example({"x": values}))
        assert found["x"][0] == 0.5


@pytest.mark.parametrize("values", [[1, "a"], [1, None], [1, 2**64], {"a": 1}, [1j], [-1, 2**63]])
def test_values_that_an_example_cannot_hold_are_refused(values: Any) -> None:
    with pytest.raises(ConfigurationError, match="feature 'x'"):
        encode_example({"x": values})


def test_fields_may_come_in_any_order_and_unknown_ones_are_skipped() -> None:
    unknown = protobuf.varint(9 * 8) + b"\x05" + protobuf.varint(9 * 8 + 1) + bytes(8)
    unknown += protobuf.varint(900 * 8 + 5) + bytes(4) + part(7, b"junk")
    entry = unknown + part(2, unknown + int64_list([7]) + unknown) + part(1, b"x")
    assert parse(INT, unknown + part(1, unknown + part(1, entry)) + unknown) == [{"x": 7}]


def test_the_last_of_several_entries_of_a_name_counts() -> None:
    two = example({"x": int64_list([1])}) + example({"x": int64_list([2])})
    assert parse(INT, two) == [{"x": 2}]


def test_the_last_of_several_lists_of_a_feature_counts() -> None:
    lists = int64_list([1]) + float_list([1.0]) + int64_list([2])
    assert parse(INT, example({"x": lists})) == [{"x": 2}]


def test_a_list_in_parts_is_joined() -> None:
    lists = int64_list([1, 2]) + int64_list([3], packed=False)
    content = example({"x": lists})
    assert parse({"x": FixedLen(3, "int64")}, content) == [{"x": [1, 2, 3]}]
    assert parse({"x": VarLen("int64")}, content) == [{"x": [1, 2, 3]}]


def test_records_may_have_their_features_in_orders_of_their_own() -> None:
    names = ["a", "b", "c"]
    features = {name: FixedLen((), "int64") for name in names}
    contents = [
        example({name: int64_list([ord(name)]) for name in order})
        for order in (names, names[::-1], [*names[1:], "z", "a"])
    ]
    assert parse(features, *contents) == [{"a": 97, "b": 98, "c": 99}] * 3


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 200, 20_000])
def test_names_and_lists_may_be_of_any_length(length: int) -> None:
    name = "\x01" * length
    numbers, reals = list(range(length)), [0.5] * length
    content = example({name: int64_list(numbers), "y": float_list(reals), name + "z": b""})
    features = {
        name: FixedLen(length, "int64"),
        "y": FixedLen(length, "float32"),
        name + "z": VarLen("int64"),
    }
    expected = {name: numbers, "y": reals, name + "z": []}
    # Twice: the second time it is known in which order they come.
    assert parse(features, content, content) == [expected] * 2


def test_missing_features_take_their_default() -> None:
    features = {
        "x": FixedLen(2, "int64", [1, 2]),
        "y": FixedLen((), bytes, b"?"),
        "z": FixedLen((2, 1), "float32", 0.5),
        "r": VarLen("int64"),
    }
    given = {"x": [3, 4], "y": b"!", "z": [1.0, 2.0], "r": [1]}
    default = {"x": [1, 2], "y": b"?", "z": [[0.5], [0.5]], "r": []}
    assert parse(features, b"", encode_example(given), encode_example({"x": [], "r": []})) == [
        default,
        {"x": [3, 4], "y": b"!", "z": [[1.0], [2.0]], "r": [1]},
        default,
    ]


@pytest.mark.parametrize(
    ("feature", "content", "problem"),
    [
        (FixedLen((), "int64"), b"", "record 1: feature 'x' is missing, and has no default"),
        (FixedLen(3, "int64"), example({"x": int64_list([1])}), "has 1 values, not 3"),
        (FixedLen((), "int64"), example({"x": int64_list([1, 2])}), "has 2 values, not 1"),
        (FixedLen((), "int64"), example({"x": float_list([1])}), "holds float32, not int64"),
        (VarLen(bytes), example({"x": float_list([1])}), "holds float32, not bytes"),
        (VarLen("int64"), b"\x0a\x05abc", "this is not a tf.train.Example"),
        (VarLen("int64"), b"\xff" * 20, "this is not a tf.train.Example"),
        (VarLen("int64"), b"\x0b", "this is not a tf.train.Example"),
        (VarLen("int64"), b"\x00\x00", "this is not a tf.train.Example"),
        (VarLen("int64"), example({"x": part(3, part(1, b"\x80"))}), "'x' is malformed"),
        (VarLen("int64"), example({"x": part(3, part(1, b"\xff" * 10 + b"\0"))}), "malformed"),
        (VarLen("float32"), example({"x": part(2, part(1, b"abc"))}), "'x' is malformed"),
        (FixedLen((), "float32"), example({"x": part(2, part(1, b"abc"))}), "'x' is malformed"),
        (FixedLen((), bytes), example({"x": part(1, b"\x0a\x09a")}), "'x' is malformed"),
    ],
)
def test_what_is_wrong_with_a_record_is_reported(
    feature: Any, content: bytes, problem: str
) -> None:
    good = {"int64": int64_list([1, 2, 3]), "float32": float_list([1.0]), bytes: bytes_list([b""])}
    first = example({"x": good[feature.dtype]})
    if isinstance(feature, FixedLen) and feature.dtype == "int64" and feature.shape == ():
        first = example({"x": int64_list([1])})
    with pytest.raises(DatasetError, match=problem):
        parse({"x": feature}, first, content)


def test_the_first_of_several_bad_records_is_named() -> None:
    features = {"a": VarLen("int64"), "b": VarLen("int64")}
    bad = part(3, part(1, b"\x80"))
    good = int64_list([1])
    contents = [example(row) for row in ({"a": good, "b": good}, {"b": bad}, {"a": bad})]
    with pytest.raises(DatasetError, match="record 1: feature 'b'"):
        parse(features, *contents)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedLen((), "int32"),
        lambda: FixedLen((-1,), "int64"),
        lambda: FixedLen(2, "int64", [1, 2, 3]),
        lambda: VarLen("no such"),
        lambda: parse_examples(messages(), {}),
        lambda: parse_examples(messages(), {"x": "int64"}),  # type: ignore[dict-item]
        lambda: encode_example({"x": [object()]}),
        lambda: encode_example({"x": 1j}),
    ],
)
def test_what_no_example_holds_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


FEATURES = {
    "a": FixedLen((), "int64", 0),
    "b": FixedLen(2, "float32", 0),
    "c": FixedLen((), bytes, b""),
    "d": VarLen("int64"),
    "e": VarLen("float32"),
    "f": VarLen(bytes),
}
VALID = example(
    {
        "a": int64_list([1]),
        "b": float_list([1.0, 2.0], packed=False),
        "c": bytes_list([b"c"]),
        "d": int64_list([1, 2], packed=False),
        "e": float_list([1.0]),
        "f": bytes_list([b"", b"f"]),
    }
)


@given(st.lists(st.tuples(st.integers(0, len(VALID)), st.binary(max_size=3)), max_size=4))
def test_mutated_messages_are_read_or_refused(edits: list[tuple[int, bytes]]) -> None:
    content = VALID
    for at, new in edits:
        content = content[:at] + new + content[at + len(new) :]
    with suppress(DatasetError):
        parse(FEATURES, content)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with suppress(DatasetError):
        parse(FEATURES, content, example({"d": content, "f": content}))


def test_scalars_of_any_size_are_read_under_names_of_any_length() -> None:
    numbers = [sign * 2**bits - less for bits in range(63) for sign in (1, -1) for less in (0, 1)]
    names = ["a" * length + end for length in range(20) for end in "bc"]
    messages = [
        encode_example({name: numbers[(i + k) % len(numbers)] for k, name in enumerate(names)})
        for i in range(len(numbers))
    ]
    records = Ragged.from_rows([np.frombuffer(message, np.uint8) for message in messages])
    columns = parse_examples(records, {name: FixedLen((), "int64") for name in names})
    for k, name in enumerate(names):
        assert list(columns[name]) == [numbers[(i + k) % len(numbers)] for i in range(len(numbers))]
