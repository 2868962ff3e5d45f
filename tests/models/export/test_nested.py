"""Tests of what models return: structures of arrays, and their form in JSON."""

from __future__ import annotations

import json
import pickle
from collections import namedtuple
from typing import Any

import pytest

from psnb._src.models.export.nested import check_nested, leaves_of, nested

Pair = namedtuple("Pair", "first second")
Renamed = namedtuple("Renamed", "class x", rename=True)  # type: ignore[misc]


@pytest.mark.parametrize(
    "structure", [0, None, (0, 1), [0, {"a": 1}], Pair(0, (1, 2)), Renamed(0, Pair(1, 2))]
)
def test_a_structure_comes_back_from_its_form(structure: Any) -> None:
    form = json.loads(json.dumps(check_nested(structure)))
    found = nested(form, range(3))
    assert found == structure
    assert getattr(found, "_fields", None) == getattr(structure, "_fields", None)
    again = pickle.loads(pickle.dumps(found))
    assert (again, type(again)) == (structure, type(found))


def test_fields_of_named_tuples_name_their_leaves() -> None:
    form = check_nested({"pair": Pair(0, (1, 2))})
    assert list(leaves_of(form)) == [(0, "pair.first"), (1, "pair.second.0"), (2, "pair.second.1")]


@pytest.mark.parametrize(
    "form",
    [
        *(7, True, {"named": {}}, {"named": {"A": [0]}}, {"named": {"A": {}, "B": {}}}),
        *({"named": {"A": {"x": 7}}}, {"named": {"import os": {"x": 0}}}, {"named": 0}),
    ],
)
def test_a_forged_form_is_refused(form: Any) -> None:
    with pytest.raises(ValueError, match=r"no structure|valid identifiers"):
        nested(form, range(3))
