"""What is known of models on a strategy, as others read it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from psnb._src.client.model_records import ModelRecord, ModelRecords, placed_otherwise
from psnb._src.utils.sealed_json import typed

A, B = ("a", (2, 2)), ("b", (2, 2))
RECORD = ModelRecord(
    {"parameters": {"m": (A, B), "m.1": (("c", ()),)}, "state": {}},
    {"words": "m.words"},
    {"mask": "bools"},
    {"metrics": "m.metrics"},
)
SIZES: dict[str, Any] = {"m": [8], "m.1": [1], "m.words": None, "m.metrics": [3]}


def test_a_record_is_the_same_after_it_has_travelled() -> None:
    assert ModelRecord.unpacked(RECORD.packed()) == RECORD
    RECORD.check_sizes("m", SIZES)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arrays": {"parameters": []}}, "Expected `object`"),
        ({"arrays": {"parameters": {"m": 3}}}, "Expected `array`"),
        ({"arrays": {"parameters": {"m": [["a"]]}}}, "Expected `array` of length 2"),
        ({"arrays": {"parameters": {"m": [[1, [2]]]}}}, "Expected `str`"),
        ({"arrays": {"parameters": {"m": [["a", 2]]}}}, "Expected `array`"),
        ({"arrays": {"parameters": {"m": [["a", [-1]]]}}}, "Expected `int` >= 0"),
        ({"arrays": {"parameters": {"m": [["a", [1 << 53]]]}}}, "Expected `int` <= "),
        ({"arrays": {"parameters": {"m": [["a", [2]], ["a", [2]]]}}}, "two of its arrays"),
        ({"tables": {"words": 3}}, r"Expected `str`.*at `\$\.tables"),
        ({"local": []}, r"at `\$\.local`"),
        ({"more": {}}, "unknown field `more`"),
    ],
)
def test_what_is_no_record_is_refused(change: dict[str, Any], said: str) -> None:
    plain = msgspec.to_builtins(RECORD)
    assert typed(plain, ModelRecord) == RECORD
    with pytest.raises(ValueError, match=said):
        typed(plain | change, ModelRecord)


@pytest.mark.parametrize(
    "change", [{"m": [7]}, {"m": None}, {"m": [2, 4]}, {"m.words": [8]}, {"m.metrics": None}]
)
def test_a_record_of_other_parameters_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="model 'm'"):
        RECORD.check_sizes("m", SIZES | change)
    for name in change:
        with pytest.raises(ValueError, match="model 'm'"):
            RECORD.check_sizes("m", {n: each for n, each in SIZES.items() if n != name})


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ((A, B), ""),
        ((A, ("new", (2, 2))), ""),
        ((B, A), "expected 'a' of shape (2, 2), found 'b' of shape (2, 2) at its place"),
        ((("b", (2, 2)), ("c", (2, 2))), "expected 'a' of shape (2, 2), found 'b'"),
        ((A, ("b", (4,))), "expected 'b' of shape (2, 2), found 'b' of shape (4,)"),
        ((A,), "expected 'b' of shape (2, 2), found nothing more"),
        ((A, B, A), "expected nothing more, found 'a'"),
    ],
)
def test_an_array_may_have_another_name_but_not_the_place_of_another(there: Any, said: str) -> None:
    found = placed_otherwise((A, B), there)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_models_that_others_have_placed_wait_until_they_are_used() -> None:
    noted: list[str] = []
    models = ModelRecords(lambda name, record: noted.append(name))
    models.know("m", RECORD)
    models.use("own")
    models.add("own", RECORD)
    assert noted == ["own"]
    assert models.waiting() == ["m"]
    assert not models.use("m")
    assert models.use("m")
    assert models.waiting() == []


def test_what_cannot_be_noted_is_not_known() -> None:
    def fail(name: str, record: ModelRecord) -> None:
        raise OSError("gone")

    models = ModelRecords(fail)
    with pytest.raises(OSError, match="gone"):
        models.add("m", RECORD)
    assert models.all() == {}
