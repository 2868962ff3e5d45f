"""Marks of tables of all kinds, to which they go back: what is in them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.client import whole_tables
from psnb._src.client.handles import shards_of
from psnb._src.client.requests import Request
from psnb._src.client.tables.marks import ParameterMarks
from psnb._src.server import operations as ops
from psnb._src.server import snapshots
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.marks import MOST_MARKS
from psnb._src.server.optimizers import Adam
from psnb._src.server.snapshots import RowSnapshot
from psnb._src.server.tables.eviction.policy import Eviction
from psnb._src.server.tables.operations import (
    ClearTable,
    OnTables,
    PushRows,
    PutSegment,
    SkipUpdates,
    on_table,
)
from psnb.errors import CheckpointError, ConfigurationError, ServerMemoryError, StaleMarkError
from tests.checkpoint.delta_model import Model, State, assert_same, manager_of
from tests.checkpoint.test_rows_that_leave import Leaving
from tests.client.in_process import DIM, asked, embedding, variable

IN_TAIL = ("step", "minutes", "removed")

MODELS = pytest.mark.parametrize("make", [Model, Leaving])


def marked(model: Model) -> ParameterMarks:
    servers = model.servers
    return ParameterMarks(servers, servers.shards, model.parameters())


def go_back(model: Model, mark: ParameterMarks) -> None:
    for _ in mark.loading(model.parameters()):
        pass


def everything(model: Model) -> dict[str, State]:
    """Return what is in each shard, in the order of ids."""
    return {
        f"{name}/{number}": {key: _sorted(state, key) for key in state}
        for name, each in model.parameters().items()
        for number, state in enumerate(each.shard_states())
    }


def _sorted(state: State, key: str) -> np.ndarray:
    ids = "waiting.ids" if key.startswith("waiting.") else "ids"
    by_row = ids in state and len(state[key]) == len(state[ids]) and key not in IN_TAIL
    return state[key][np.argsort(state[ids])] if by_row else state[key]


def train(model: Model, random: np.random.Generator, times: int = 8) -> None:
    for _ in range(times):
        match random.integers(6):
            case 0 if isinstance(model, Leaving):
                model.look(*random.integers(0, 40, 3).tolist())
                model.minute()
            case 1 if not isinstance(model, Leaving):
                model.waiting.shrink(0.5, 30)
            case 2 if not isinstance(model, Leaving):
                model.waiting.end_day()
            case _:
                ids = random.choice(10 if model.fixed in model.tables else 40, 6, replace=False)
                model.push(*ids.tolist())
                model.any.push(random.integers(0, 10_000, 5), np.ones((5, DIM), np.float32))


@MODELS
@pytest.mark.parametrize("seed", range(4))
def test_tables_go_back_to_marks_in_any_order_again_and_again(
    make: Callable[[], Model], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "CHUNK", 8)  # of two numbers: a variable has several
    random = np.random.default_rng(seed)
    model = make()
    train(model, random)
    marks = []
    for _ in range(3):
        marks.append((marked(model), everything(model)))
        train(model, random)
    for at in random.integers(0, 3, 8):
        mark, content = marks[at]
        go_back(model, mark)
        assert_same(everything(model), content)
        train(model, random, 3)


def test_what_tables_count_and_which_rows_leave_next_goes_back() -> None:
    model = Leaving()

    def use(first: int) -> None:
        """Have rows leave, and updates skipped, of each table."""
        for start in range(first, first + 60, 6):
            model.push(*range(start, start + 6))
        every = [table for each in model.parameters().values() for table in each.tables]
        skip = [Request(shard, on_table(name, SkipUpdates(3))) for shard, name in every]
        model.servers.call(skip)

    def beside() -> dict[str, dict[str, list[int]]]:
        return {
            f"{name}/{shard.number}": {key: each.tolist() for key, each in found.items()}
            for parameter in model.parameters().values()
            for shard, name in parameter.tables
            for found in [model.servers.shard(shard.number).table(name).beside()]
        }

    use(0)
    mark, before = marked(model), beside()
    use(60)
    later = beside()
    assert {name for name in before if later[name] == before[name]} == set()
    assert later["leaving/0"]["queue"] != before["leaving/0"]["queue"] != []
    go_back(model, mark)
    assert beside() == before


def test_what_has_not_changed_is_not_loaded() -> None:
    model = Model()
    model.push(*range(8))
    mark = marked(model)
    model.any.push([3, 500], np.ones((2, DIM), np.float32))
    model.servers.carried.clear()
    go_back(model, mark)
    carried = asked(model.servers)
    # `waiting`, of which it is not known what waits, is loaded as a whole.
    put = [each for each in carried if isinstance(each, ops.PutSaved) and each.table != "waiting"]
    assert [(each.table, each.stop) for each in put] == [("any", 1)]
    gone = [each for each in carried if isinstance(each, ops.RemoveSaved)]
    assert [(each.table, each.stop) for each in gone] == [("any", 1)]
    cleared = [each for each in carried if isinstance(each, OnTables)]
    assert [each.tables for each in cleared if isinstance(each.operation, ClearTable)] == [
        ("waiting",)
    ] * 2


def test_table_of_which_rows_leave_is_loaded_as_a_whole_as_others_are_to_leave_next() -> None:
    model = Leaving()
    model.push(*range(8))
    mark = marked(model)
    model.push(1)
    model.servers.carried.clear()
    go_back(model, mark)
    cleared = [each for each in asked(model.servers) if isinstance(each, OnTables)]
    assert {each.tables for each in cleared if isinstance(each.operation, ClearTable)} == {
        ("leaving",)
    }


def test_parts_of_a_variable_go_back_that_change_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "CHUNK", 8)  # a row
    model = Model(shards=1)
    mark, content = marked(model), everything(model)
    for row in (0, 2, 1):
        model.w.scatter_add([row], np.ones((1, 2), np.float32))
        go_back(model, mark)
        assert_same(everything(model), content)


def test_use_of_rows_goes_back_over_the_end_of_a_day() -> None:
    model = Formed(FORMS["use"])
    model.formed.push([1, 2], np.ones((2, DIM), np.float32), shows=np.ones(2, np.float32))
    mark, content = marked(model), everything(model)
    for _ in range(2):
        model.formed.end_day()
        model.formed.push([2], np.ones((1, DIM), np.float32), shows=np.ones(1, np.float32))
        go_back(model, mark)
        assert_same(everything(model), content)


@MODELS
def test_requests_that_come_late_change_nothing(make: Callable[[], Model]) -> None:
    model = make()
    model.push(1, 2)
    mark = marked(model)
    model.push(1, 2)
    model.servers.carried.clear()
    go_back(model, mark)
    late = [e for e in model.servers.carried if isinstance(e.operation, ops.OnLoadingShard)]
    model.push(1, 2)
    content = everything(model)
    assert {type(each.operation.operation) for each in late} >= {OnTables, ops.PutSaved}
    assert all(isinstance(each, CheckpointError) for each in model.servers.attempt(late))
    assert_same(everything(model), content)


def test_requests_that_come_late_within_a_load_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, finish = Leaving(), whole_tables._finish
    model.push(1, 2)
    mark, content = marked(model), everything(model)
    model.push(3)

    def repeat(*arguments: Any) -> None:
        late = [e for e in model.servers.carried if "ClearTable" in str(e.operation)]
        outcomes = model.servers.attempt(late)  # some are the last change, of which nothing came
        assert any(isinstance(each, CheckpointError) for each in outcomes)
        finish(*arguments)

    monkeypatch.setattr(whole_tables, "_finish", repeat)
    go_back(model, mark)
    assert_same(everything(model), content)


def test_mark_that_was_dropped_takes_no_note_and_is_refused() -> None:
    model = Model()
    mark, content = marked(model), everything(model)
    model.servers.call(mark.drops())
    model.servers.call(mark.drops())  # sent again
    model.push(1)
    with pytest.raises(StaleMarkError, match=r"has no such mark.*Nothing was changed"):
        go_back(model, mark)
    assert everything(model)["w/0"]["values"].tolist() != content["w/0"]["values"].tolist()
    every = [marked(model) for _ in range(MOST_MARKS)]
    with pytest.raises(ConfigurationError, match=rf"has {MOST_MARKS} marks.*mark.drop\(\)"):
        marked(model)
    model.servers.call(every.pop().drops())
    marked(model)


def test_marks_of_an_owner_that_has_gone_are_dropped() -> None:
    model = Model()
    mark = marked(model)
    model.servers.call([Request(each, ops.OpenLog()) for each in model.servers.shards])
    with pytest.raises(StaleMarkError, match="has no such mark"):
        go_back(model, mark)


def test_mark_that_is_asked_for_again_stays_of_the_first_moment() -> None:
    model = Model()
    mark, content = marked(model), everything(model)
    model.push(1)
    again = [Request(each, ops.SetMark(mark._name)) for each in model.servers.shards]
    model.servers.call(again)
    go_back(model, mark)
    assert_same(everything(model), content)


def test_mark_of_a_server_that_was_asked_late_is_of_another_moment() -> None:
    model = Model()
    mark = marked(model)
    model.servers.call(mark.drops()[:1])  # as that of a server that came since
    model.servers.call([Request(model.servers.shards[0], ops.SetMark(mark._name))])
    with pytest.raises(StaleMarkError, match="has no such mark"):
        go_back(model, mark)


def test_table_that_was_made_again_since_is_refused_and_nothing_changed() -> None:
    model = Model()
    mark = marked(model)
    model.push(1)
    model.move(model.any)
    content = everything(model)
    with pytest.raises(StaleMarkError, match=r"table 'any' of shard 0.*made again"):
        go_back(model, mark)
    assert_same(everything(model), content)


def test_parameter_that_was_made_since_stays_as_it_is() -> None:
    model = Model()
    mark = marked(model)
    later = model._table("later", None, 2)
    later.assign([5], np.full((1, DIM), 7, np.float32))
    go_back(model, mark)
    assert later.lookup([5]).tolist() == [[7] * DIM]


def test_mark_for_which_there_was_no_memory_is_refused_and_updates_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Model()
    model.push(1, 2)
    mark = marked(model)

    def no_memory(self: Any, rows: np.ndarray) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(RowSnapshot, "_keep", no_memory)
        model.push(1, 2)
    content = everything(model)
    with pytest.raises(StaleMarkError, match=r"had no memory to keep '.*' as it was"):
        go_back(model, mark)
    assert_same(everything(model), content)


def test_without_memory_to_go_back_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    model.push(1, 2)
    mark, before = marked(model), everything(model)
    model.push(1)
    content = everything(model)

    def no_memory(self: Any) -> None:
        raise MemoryError("none")

    with monkeypatch.context() as patched:
        patched.setattr(RowSnapshot, "renumbering", no_memory)
        with pytest.raises(ServerMemoryError, match=r"no memory to go back.*Nothing was changed"):
            go_back(model, mark)
        assert_same(everything(model), content)
    go_back(model, mark)
    assert_same(everything(model), before)


def test_server_that_has_lost_the_mark_meanwhile_is_noticed() -> None:
    model = Model()
    model.push(1, 2)
    mark = marked(model)
    model.push(1, 2)
    loading = mark.loading(model.parameters())
    next(loading)
    model.servers.call(mark.drops())  # as that of a replica that lacks it
    with pytest.raises(StaleMarkError, match=r"while parameters went back"):
        list(loading)
    assert not [
        each
        for each in asked(model.servers)
        if isinstance(each, OnTables) and isinstance(each.operation, PutSegment)
    ]


def test_commit_that_was_taken_back_is_not_applied_when_it_is_sent_again() -> None:
    model = Model()
    shard = model.servers.shards[0]
    part = Part(
        [on_table("any", PushRows(np.array([2], np.uint64), np.ones((1, DIM), np.float32)))]
    )
    commit = ops.CommitPart(Commit("writer", 1, shards=(shard,)), part)
    mark, before = marked(model), everything(model)
    model.servers.call([Request(shard, commit)])
    assert len(everything(model)["any/0"]["ids"]) == 1
    go_back(model, mark)
    model.servers.call([Request(shard, commit)])
    assert_same(everything(model), before)


FORMS = {
    "half width": {"dtype": "bfloat16", "slot_dtype": "bfloat16"},
    "half width on disk": {"dtype": "float16", "storage": "disk"},
    "fixed on disk": {"rows": 10_000, "storage": "disk"},
    "use": {"accessor": psnb.CtrAccessor()},
    "some admitted": {"admission": psnb.Probability(0.5)},
}


class Formed(Model):
    """One table of another form, with Adam, and a large variable."""

    def __init__(self, form: dict[str, Any]) -> None:
        super().__init__()
        made = {"rows": None, "optimizer": Adam(0.1), "transport": self.servers, "name": "formed"}
        self.formed = embedding(**made | form)
        self.large = variable(np.ones((3, 700_000), np.float32), 2, Adam(), self.servers, "large")

    def parameters(self) -> dict[str, Any]:
        return {each.name: shards_of(each) for each in (self.formed, self.large)}


@pytest.mark.second_tier("the same for other forms of rows: each compiles loops")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("seed", range(3))
def test_tables_of_all_forms_go_back(form: dict[str, Any], seed: int) -> None:
    random, model = np.random.default_rng(seed), Formed(form)

    def some(times: int) -> None:
        for _ in range(times):
            ids = random.integers(0, 10_000, 300)
            model.formed.push(ids, random.normal(size=(300, DIM)).astype(np.float32))
            if "accessor" in form:
                model.formed.push(
                    ids[:9], np.ones((9, DIM), np.float32), shows=np.ones(9, np.float32)
                )
            if random.random() < 0.3:
                rows = random.integers(0, 3, 1)
                model.large.scatter_add(rows, random.normal(size=(1, 700_000)).astype(np.float32))
            elif random.random() < 0.3:
                model.large.push(np.ones((3, 700_000), np.float32))

    some(3)
    marks = []
    for _ in range(2):
        marks.append((marked(model), everything(model)))
        some(3)
    for at in random.integers(0, 2, 5):
        mark, content = marks[at]
        go_back(model, mark)
        assert_same(everything(model), content)
        some(2)


@MODELS
def test_delta_after_tables_went_back_has_what_they_have(
    make: Callable[[], Model], tmp_path: Path
) -> None:
    random, model = np.random.default_rng(0), make()
    manager = manager_of(model, tmp_path)
    train(model, random)
    manager.save()
    mark, content = marked(model), everything(model)
    train(model, random)
    manager.save()
    go_back(model, mark)
    path = manager.save()
    train(model, random)
    other = make()
    Checkpoint(path, other.parameters()).load()
    assert_same(everything(other), content)


def test_what_went_back_takes_no_more_memory_and_is_not_loaded_as_a_whole_again() -> None:
    model = Model()
    model.any.push(range(40), np.ones((40, DIM), np.float32))
    mark = marked(model)
    for _ in range(2):
        model.any.push([3], np.ones((1, DIM), np.float32))
        model.servers.carried.clear()
        go_back(model, mark)
        carried = asked(model.servers)
        put = [each for each in carried if isinstance(each, ops.PutSaved)]
        assert [(each.table, each.stop) for each in put if each.table != "waiting"] == [("any", 1)]


def test_no_time_is_over_of_rows_while_they_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Leaving(eviction=Eviction(None, "lru", 3, 2))
    model.push(1, 2)
    mark, before = marked(model), everything(model)
    for _ in range(5):
        model.push(3)
        model.minute()
    finish = whole_tables._finish

    def late(*arguments: Any) -> None:
        for _ in range(5):
            model.minute()
        finish(*arguments)

    monkeypatch.setattr(whole_tables, "_finish", late)
    go_back(model, mark)
    assert_same(everything(model), before)
