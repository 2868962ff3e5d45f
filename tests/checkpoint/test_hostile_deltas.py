"""Deltas that were made to harm are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import psnb
from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.server.tables.checks import ROW_USE
from psnb.errors import CheckpointError
from tests.checkpoint.delta_model import ROWS, Model, State, assert_same, manager_of
from tests.checkpoint.saved import forge, rewrite


@pytest.fixture
def delta(model: Model, tmp_path: Path) -> Path:
    """A delta of one shard, with three ids of ten."""
    model = Model(1)
    model.push(*range(ROWS))
    model.push(*range(ROWS))
    manager = manager_of(model, tmp_path)
    manager.save()
    model.push(3, 5, 8)
    model.waiting.lookup([77])
    path = manager.save()
    assert isinstance(path, Path)
    return path


HOSTILE: dict[str, tuple[str, Callable[[State], object], str]] = {
    "an id twice": ("any", lambda s: s["ids"].fill(3), "id 3 is there 3 times"),
    "an id beyond the rows": ("fixed", lambda s: s["ids"].fill(10), "expected 0 to 9, found 10"),
    "short values": ("any", lambda s: s.update(values=s["values"][:2]), "values of 'any'"),
    "other dtypes": ("any", lambda s: s.update(values=s["values"].astype("f8")), "float32"),
    "a slot less": ("fixed", lambda s: s.pop("slot.accumulator"), "expected arrays"),
    "no use": (
        "waiting",
        lambda s: [s.pop(each) for each in ROW_USE],
        "(expected|different) arrays",
    ),
    "an id that waits and had a row before": (
        "waiting",
        lambda s: s["waiting.ids"].__setitem__(0, 9),
        "ids and waiting.ids of 'waiting': id 9 is there 2 times",
    ),
    "steps below 0": ("any", lambda s: s["step"].fill(-1), "step of 'any'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_delta_is_refused_and_nothing_changed(delta: Path, case: str) -> None:
    name, change, message = HOSTILE[case]
    rewrite(delta, name, change)
    model = Model(1)
    before = model.content()
    said = rf"-01\.bin is damaged, where '{name}' is: .*{message}"
    with pytest.raises(CheckpointError, match=said):
        Checkpoint(delta, model.parameters()).load()
    with pytest.raises(CheckpointError, match=said):
        psnb.checkpoint.load(delta)[name]
    assert_same(model.content(), before)


def test_a_delta_without_what_it_builds_on_is_refused(delta: Path) -> None:
    def alone(content: dict[str, Any]) -> None:
        for entry in content["parameters"]:
            entry["shards"] = [each[-1:] for each in entry["shards"]]

    forge(delta, alone)
    with pytest.raises(CheckpointError, match="expected 10 rows, found 3"):
        Checkpoint(delta, Model(1).parameters())


def test_a_variable_in_two_parts_is_refused(delta: Path) -> None:
    def two(content: dict[str, Any]) -> None:
        still, w = (entry["shards"][0] for entry in content["parameters"][:2])
        w += still
        content["parameters"].pop(0)

    forge(delta, two)
    with pytest.raises(CheckpointError, match="'w' must be in one part a shard"):
        psnb.checkpoint.load(delta)["w"]
