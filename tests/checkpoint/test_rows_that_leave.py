"""Checkpoints of tables of which rows leave: deltas carry which have, and ages are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.checkpoint.following import WantedParameter, newer_checkpoint
from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.client.embedding import Embedding
from psnb._src.client.handles import shards_of
from psnb._src.server.tables.checks import SavedShard, check_saved, forms
from psnb._src.server.tables.eviction.policy import Eviction
from psnb._src.utils.paths import AnyPath
from psnb.errors import InvalidArrayError
from tests.checkpoint.delta_model import Model, manager_of, manifest, own_parts
from tests.client.in_process import DIM

BOUND = 24

Row = tuple[list[float], list[float], int, int, int]


class Leaving(Model):
    """As that of other tables, with one of which rows leave."""

    def __init__(self, shards: int = 2, bound: int | None = BOUND, **more: Any) -> None:
        super().__init__(shards)
        how = Eviction(bound, "lfu" if bound else "lru", None, 3)
        more = {"eviction": how} | more
        self.leaving = self._table("leaving", None, shards, **more)

    @property
    def tables(self) -> tuple[Embedding, ...]:
        return self.leaving, self.any

    def look(self, *ids: int) -> None:
        self.leaving.lookup(ids)

    def minute(self) -> None:
        for host in self.servers._hosts:
            host.tick()

    def rows(self) -> dict[int, Row]:
        """Return all that is known of each id, with how long ago it was used."""
        states = shards_of(self.leaving).shard_states()
        found: dict[int, Row] = {}
        for state in states:
            ages = state["step"] - state["last_update"], state["minutes"] - state["last_minute"]
            each = (state[key].tolist() for key in ("values", "slot.accumulator"))
            uses = state["uses"].tolist()
            rest = zip(*each, *(age.tolist() for age in ages), uses, strict=True)
            found |= dict(zip(state["ids"].tolist(), rest, strict=True))
        return found


def restored(path: AnyPath, shards: int, bound: int = BOUND) -> Leaving:
    model = Leaving(shards, bound)
    Checkpoint(path, model.parameters()).load()
    return model


@pytest.mark.parametrize("seed", range(3))
def test_deltas_are_restored_as_they_were_saved(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    model, expected = Leaving(2), []
    manager = manager_of(model, tmp_path, full_every=5)
    for _ in range(7):
        for _ in range(random.integers(1, 4)):
            ids = random.choice(99, 4, replace=False)
            model.leaving.push(ids, random.normal(size=(4, DIM)).astype(np.float32))
            if random.random() < 0.3:
                model.minute()
        expected.append((manager.save(), model.rows()))
    depths = [manifest(path).depth for path, _ in expected]
    assert max(depths) >= 2
    for path, rows in expected:
        found = restored(path, 2)
        assert found.rows() == rows
        saved = psnb.checkpoint.load(path)["leaving"]
        assert saved.ids.tolist() == sorted(rows)
        assert len(saved) == len(rows)
        assert saved.lookup([*rows]).tolist() == [values for values, *_ in rows.values()]


def test_another_number_of_servers_keeps_rows_and_their_ages(tmp_path: Path) -> None:
    model = Leaving(2)
    manager = manager_of(model, tmp_path)
    model.push(*range(4))
    manager.save()
    for start in range(4, 24, 4):  # of which one shard has more than the other
        model.leaving.push(range(start, start + 4), np.ones((4, DIM), np.float32))
        model.minute() if start % 8 else None
    model.leaving.push([1], np.ones((1, DIM), np.float32))
    rows, path = model.rows(), manager.save()
    assert manifest(path).depth == 1
    for shards in (1, 3):
        found = restored(path, shards, 3 * BOUND).rows()
        assert found == rows


def test_what_has_left_is_not_found_by_those_that_follow(tmp_path: Path) -> None:
    model = Leaving(1)
    manager = manager_of(model, tmp_path)
    wanted = {"leaving": WantedParameter({"dim": DIM}, {})}
    model.push(*range(BOUND))
    manager.save()
    before = newer_checkpoint(tmp_path, 0, wanted)
    assert before is not None
    model.push(100, 101)
    rows, path = model.rows(), manager.save()
    assert manifest(path).depth == 1
    assert len(rows) == BOUND
    after = newer_checkpoint(tmp_path, 1, wanted, before)
    assert after is not None
    table = after.values["leaving"]
    assert table._layers[1] is before.values["leaving"]._layers[0]
    assert table.ids.tolist() == sorted(rows)
    assert len(table) == BOUND
    gone = np.array([each for each in range(BOUND) if each not in rows], np.uint64)
    assert table.found(gone)[1].all()
    assert gone.size == 2


def test_nothing_is_written_of_a_table_that_rests(tmp_path: Path) -> None:
    model = Leaving(2)
    manager = manager_of(model, tmp_path)
    model.push(1, 2)
    manager.save()
    assert own_parts(manager.save()) == []


def test_a_smaller_bound_lets_those_leave_that_would(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Leaving(1)
    model.push(*range(10))
    model.push(3, 4, 5)
    path = manager_of(model, tmp_path).save()
    found = restored(path, 1, 3)
    assert "'leaving': more rows were loaded than" in caplog.text
    assert "7 of them have left" in caplog.text
    assert {*found.rows()} == {3, 4, 5}
    assert found.leaving.statistics().rows == 3
    caplog.clear()
    restored(path, 2, 20)
    assert caplog.text == ""


def test_a_checkpoint_of_a_table_without_a_bound_is_restored(tmp_path: Path) -> None:
    model = Leaving(2, eviction=None)
    model.push(*range(10))
    path = manager_of(model, tmp_path).save()
    rows = restored(path, 1).rows()
    assert {*rows} == {*range(10)}
    assert {tuple(row[2:]) for row in rows.values()} == {(0, 0, 0)}


def test_a_table_without_a_bound_takes_deltas_of_one_with(tmp_path: Path) -> None:
    model = Leaving(2)
    manager = manager_of(model, tmp_path)
    for start in range(0, 40, 5):
        model.push(*range(start, start + 5))
        path = manager.save()
    other = Leaving(3, eviction=None)
    Checkpoint(path, other.parameters()).load()
    states = shards_of(other.leaving).shard_states()
    assert {*np.concatenate([state["ids"] for state in states]).tolist()} == {*model.rows()}


def test_removed_ids_of_another_shard_are_refused(tmp_path: Path) -> None:
    table = Leaving(1).leaving
    (state,) = shards_of(table).shard_states()
    expected = shards_of(table).saved_form
    for removed, part, wrong in (
        (np.array([3], np.uint64), False, "nothing was saved before"),
        (np.arange(9, dtype=np.uint64), True, "is none of shard 1 of 2"),
        (np.array([3], np.int64), True, "expected uint64"),
    ):
        arrays = {**state, "removed": removed}

        def read(name: str, start: int = 0, stop: int | None = None, of: Any = arrays) -> Any:
            return of[name][start:stop]

        saved = SavedShard(1 if part else 0, 2 if part else 1, forms("e", arrays), read, part)
        with pytest.raises(InvalidArrayError, match=wrong):
            check_saved(expected, saved)
