"""Tests of what is restored: strictly, what fits, what is chosen, under other names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.checkpoint.manager import FolderManager
from psnb._src.client.handles import shards_of
from psnb._src.client.variable import Variable
from psnb.errors import CheckpointError, ConfigurationError
from tests.checkpoint.fakes import Strategy
from tests.checkpoint.saved import InHand, damage, in_hand
from tests.client.in_process import DIM, embedding, variable


class Model:
    """A strategy without Dask, with any variables and tables."""

    def __init__(self, directory: Path, **made: Any) -> None:
        self.made, self.noted = made, list[Path]()
        self.manager = FolderManager(self, directory, max_to_keep=3)

    def parameters(self) -> dict[str, Any]:
        return {name: shards_of(each) for name, each in self.made.items()}

    def prepare_snapshots(self) -> None:
        """Nobody waits for memory here."""

    def snapshots(self, since: object = None) -> InHand:
        return InHand([in_hand(name, each) for name, each in self.parameters().items()])

    def moment(self) -> AbstractContextManager[None]:
        """Nobody else saves or restores here."""
        return nullcontext()

    def settled(self) -> bool:
        """No server takes the place of another here."""
        return False

    def note_checkpoint(self, path: Path) -> None:
        self.noted.append(path)

    def __getitem__(self, name: str) -> Any:
        return self.made[name]


def filled(name: str, number: float, shape: tuple[int, ...] = (3,), **options: Any) -> Variable:
    return variable(np.full(shape, number, np.float32), name=name, **options)


def model(directory: Path, number: float, **more: Any) -> Model:
    """Make one with two layers and a head, all of whose values are this number."""
    layers = {name: filled(name, number) for name in ("deep.0", "deep.1", "head")}
    return Model(directory, **layers, **more)


@pytest.fixture
def old(tmp_path: Path) -> Model:
    """One that was saved when all was 1."""
    made = model(tmp_path, 1)
    made.manager.save({"step": 7})
    return made


def numbers(model: Model) -> dict[str, float]:
    return {name: float(each.read().reshape(-1)[0]) for name, each in model.made.items()}


def test_all_that_does_not_fit_is_reported_at_once_and_nothing_changed(
    old: Model, tmp_path: Path
) -> None:
    other = Model(
        tmp_path,
        **{
            "deep.0": filled("deep.0", 2),
            "deep.1": variable(np.full((4, 2), 2.0), name="deep.1", optimizer=psnb.Adagrad(0.1)),
            "new": filled("new", 2),
        },
    )
    with pytest.raises(CheckpointError) as raised:
        other.manager.restore()
    assert str(raised.value).splitlines() == [
        f"checkpoint '{tmp_path}/ckpt-000001' does not fit the parameters:",
        "  missing in it: 'new': expected kind 'variable', shape [3], dtype 'float32', slots []",
        "  only in it: 'head': found kind 'variable', shape [3], dtype 'float32', slots []",
        "  different: 'deep.1': expected shape [4, 2], found [3]; "
        "expected dtype 'float64', found 'float32'; expected slots ['accumulator'], found []",
        "nothing was changed; CheckpointManager.restore(strict=False) restores what fits, names= "
        "what you choose, rename= what has another name now",
    ]
    assert numbers(other) == {"deep.0": 2, "deep.1": 2, "new": 2}
    assert other.noted == []


def test_long_lists_are_shortened_with_a_count(old: Model, tmp_path: Path) -> None:
    more = {f"more.{i}": filled(f"more.{i}", 2) for i in range(37)}
    with pytest.raises(CheckpointError, match="missing in it: 27 more") as raised:
        model(tmp_path, 2, **more).manager.restore()
    assert len(str(raised.value).splitlines()) == 13


def test_without_strict_what_fits_is_restored_and_the_rest_is_reported(
    old: Model, tmp_path: Path
) -> None:
    other = Model(
        tmp_path,
        **{
            "deep.0": filled("deep.0", 2),
            "deep.1": filled("deep.1", 2, (5,)),
            "new": filled("new", 2),
        },
    )
    restored = other.manager.restore(strict=False)
    assert numbers(other) == {"deep.0": 1, "deep.1": 2, "new": 2}
    assert restored.restored == ("deep.0",)
    assert list(restored.missing) == ["new"]
    assert list(restored.unexpected) == ["head"]
    assert restored.different == {"deep.1": "expected shape [5], found [3]"}
    assert restored == {"step": 7}
    assert str(restored).splitlines()[1] == "  restored: 'deep.0'"
    assert "  metadata: {'step': 7}" in str(restored).splitlines()


def test_damage_is_refused_without_strict_too(old: Model, tmp_path: Path) -> None:
    file = damage(tmp_path / "ckpt-000001", "head")
    other = model(tmp_path, 2)
    with pytest.raises(CheckpointError, match=f"{file} is damaged, where 'head' is"):
        other.manager.restore(strict=False)
    assert numbers(other) == {"deep.0": 2, "deep.1": 2, "head": 2}


@pytest.mark.parametrize("damaged", [False, True])
def test_only_what_is_chosen_by_patterns_is_restored_and_read(
    old: Model, tmp_path: Path, damaged: bool
) -> None:
    if damaged:
        damage(tmp_path / "ckpt-000001", "head")
    other = model(tmp_path, 2, new=filled("new", 2))
    assert other.manager.restore(names="deep*").restored == ("deep.0", "deep.1")
    assert numbers(other) == {"deep.0": 1, "deep.1": 1, "head": 2, "new": 2}


def test_several_patterns_choose_together(old: Model, tmp_path: Path) -> None:
    other = model(tmp_path, 2)
    other.manager.restore(names=["*.1", "he?d"])
    assert numbers(other) == {"deep.0": 2, "deep.1": 1, "head": 1}


def test_what_is_chosen_and_missing_is_reported(old: Model, tmp_path: Path) -> None:
    other = model(tmp_path, 2, **{"deep.2": filled("deep.2", 2)})
    with pytest.raises(CheckpointError, match=r"missing in it: 'deep\.2'") as raised:
        other.manager.restore(names="deep*")
    assert "head" not in str(raised.value)


RENAMES: dict[str, Any] = {
    "a mapping": {"deep.0": "backbone.0", "deep.1": "backbone.1"},
    "a function": lambda name: name.replace("deep", "backbone"),
}


@pytest.mark.parametrize("rename", RENAMES)
def test_parameters_get_what_had_another_name(old: Model, tmp_path: Path, rename: str) -> None:
    other = Model(tmp_path, **{f"backbone.{i}": filled(f"backbone.{i}", 2) for i in range(2)})
    restored = other.manager.restore(names="backbone*", rename=RENAMES[rename])
    assert restored.restored == ("backbone.0", "backbone.1")
    assert numbers(other) == {"backbone.0": 1, "backbone.1": 1}


def test_a_difference_of_a_renamed_one_tells_both_names(old: Model, tmp_path: Path) -> None:
    other = Model(tmp_path, stem=filled("stem", 2, (4,)))
    with pytest.raises(CheckpointError, match=r"'stem': .* found \[3\] in 'deep\.0'"):
        other.manager.restore(names="stem", rename={"deep.0": "stem"})


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"names": "depe*"}, r"no parameter is called 'depe\*'; there are 'deep.0', 'deep.1'"),
        ({"names": ["deep*", 3]}, "must be patterns like 'deep\\*', found 3"),
        ({"rename": 3}, "rename must be a mapping"),
        ({"rename": {"head": None}}, "rename must give names, found None for 'head'"),
        ({"rename": {"head": "deep.0"}}, "gives 'deep.0' and 'head' .* the same name, 'deep.0'"),
    ],
)
def test_choices_that_make_no_sense_are_refused_and_nothing_changed(
    old: Model, tmp_path: Path, choice: Any, message: str
) -> None:
    other = model(tmp_path, 2)
    with pytest.raises(ConfigurationError, match=message):
        other.manager.restore(**choice, strict=False)
    assert set(numbers(other).values()) == {2}


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ({}, True),
        ({"strict": False}, True),
        ({"names": "deep*"}, False),
        ({"rename": {"deep.0": "deep.1", "deep.1": "deep.0"}}, False),
    ],
)
def test_recovery_goes_back_to_what_was_restored_as_a_whole_only(
    old: Model, tmp_path: Path, options: Any, noted: bool
) -> None:
    other = model(tmp_path, 2)
    other.manager.restore(**options)
    assert other.noted == ([tmp_path / "ckpt-000001"] if noted else [])


def test_what_only_the_checkpoint_has_is_reported_or_left_out(tmp_path: Path) -> None:
    strategy = Strategy()
    manager = FolderManager(strategy, tmp_path, max_to_keep=1)
    manager.save()
    del strategy.made["c"]
    with pytest.raises(CheckpointError, match="only in it: 'c': found kind 'variable'"):
        manager.restore()
    assert manager.restore(strict=False).restored == ("a", "b")


TABLES: dict[str, Callable[[int], Any]] = {
    "fixed": lambda shards: embedding(10, shards, psnb.Adam(0.1)),
    "any": lambda shards: embedding(None, shards, psnb.Adam(0.1)),
    "v": lambda shards: variable(np.ones((7, DIM), np.float32), shards, psnb.Adam(0.1), name="v"),
}
IDS = np.arange(7)
ONES = np.ones((7, DIM), np.float32)


def push(parameter: Any) -> None:
    parameter.push(*((ONES,) if isinstance(parameter, Variable) else (IDS, ONES)))


def value(parameter: Any) -> Any:
    return parameter.read() if isinstance(parameter, Variable) else parameter.lookup(IDS)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 2)])
def test_a_renamed_one_keeps_its_optimizer_state_in_another_number_of_shards(
    tmp_path: Path, kind: str, before: int, after: int
) -> None:
    old = Model(tmp_path, old=TABLES[kind](before))
    push(old["old"])
    old.manager.save()
    push(old["old"])
    new = Model(tmp_path, new=TABLES[kind](after))
    new.manager.restore(rename={"old": "new"})
    push(new["new"])
    np.testing.assert_array_equal(value(new["new"]), value(old["old"]))  # Adam has two slots


@contextmanager
def deep(cluster: Client, partitioner: Any, prefix: str) -> Iterator[tuple[Any, Any]]:
    """Give a strategy with a variable and a table, and its coordinator."""
    with psnb.ParameterServerStrategy(cluster, partitioner=partitioner) as strategy:
        strategy.variable(np.ones((5, 2), np.float32), name=f"{prefix}.w", optimizer=psnb.Adam())
        strategy.embedding(f"{prefix}.ids", 2, optimizer=psnb.Adagrad(0.5))
        yield strategy.parameters, psnb.ClusterCoordinator(strategy)


def test_a_warm_start_takes_layers_of_another_partitioner_on_a_cluster(
    cluster: Client, tmp_path: Path
) -> None:
    with deep(cluster, psnb.FixedShards(2), "deep") as (p, coordinator):
        p["deep.w"].push(np.ones((5, 2), np.float32))
        p["deep.ids"].push([3, 4], np.ones((2, 2), np.float32))
        psnb.CheckpointManager(coordinator, tmp_path).save()
        w, rows = p["deep.w"].read(), p["deep.ids"].lookup([3, 4])
    with deep(cluster, psnb.MaxSize(20), "stem") as (p, coordinator):
        manager = psnb.CheckpointManager(coordinator, tmp_path)
        manager.restore(rename=lambda name: name.replace("deep", "stem"))
        np.testing.assert_array_equal(p["stem.w"].read(), w)
        np.testing.assert_array_equal(p["stem.ids"].lookup([3, 4]), rows)


def test_recovery_leaves_out_what_only_the_checkpoint_has(cluster: Client, tmp_path: Path) -> None:
    with deep(cluster, None, "deep") as (p, coordinator):
        p["deep.w"].assign(np.full((5, 2), 3, np.float32))
        path = psnb.CheckpointManager(coordinator, tmp_path).save({"step": 7})
    with psnb.ParameterServerStrategy(cluster) as strategy:
        w = strategy.variable(np.ones((5, 2), np.float32), name="deep.w", optimizer=psnb.Adam())
        assert strategy.recover(path) == {"step": 7}
        assert w.read()[0, 0] == 3


def parameters_of(tmp_path: Path, *names: str) -> dict[str, Any]:
    return Model(tmp_path, **{name: filled(name, 2) for name in names}).parameters()


def test_what_is_not_needed_later_may_be_missing_on_either_side(old: Model, tmp_path: Path) -> None:
    path = tmp_path / "ckpt-000001"
    more = parameters_of(tmp_path, "deep.0", "deep.1", "new")
    same = parameters_of(tmp_path, "deep.0", "deep.1", "head")
    for parameters, here, there in (
        (more, {"new"}, {"head"}),
        (same, {"head"}, {}),  # an earlier psnb saved it
    ):
        parts = (lambda now, before: "", here, there)
        found = Checkpoint(path, parameters, models=lambda run, parts=parts: parts)  # type: ignore[misc]
        assert found.restored.restored == ("deep.0", "deep.1")
        assert found.complete
    with pytest.raises(CheckpointError, match="missing in it: 'new'"):
        Checkpoint(path, more)


def test_what_lies_elsewhere_is_different(old: Model, tmp_path: Path) -> None:
    parts = lambda now, before: "it has moved" * (now == before == "head"), (), ()
    parameters = parameters_of(tmp_path, "deep.0", "deep.1", "head")
    with pytest.raises(CheckpointError, match="different: 'head': it has moved\n"):
        Checkpoint(tmp_path / "ckpt-000001", parameters, models=lambda run: parts)
