"""Learning rates that a user's function gives: before a commit, once, and the same for copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.messages import Failed
from psnb._src.server.operations import ApplyCommit, CommitParts, CreateDense, EndRound, PreparePart
from psnb._src.server.schedules import PiecewiseConstant, Warmup
from psnb._src.server.tables.operations import (
    Preview,
    PushGradient,
    ReadValues,
    TuneOptimizer,
    on_table,
)
from tests.server.pair import ONES, Pair, push, push_rows, result, same

asked: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    asked.clear()


def counting(step: int) -> float:
    """Return another rate each time."""
    asked.append(step)
    return float(len(asked))


def failing_from_two(step: int) -> float:
    return [1.0, 1.0][step]


def tuned(pair: Pair, rate: Any, *tables: str) -> Pair:
    for table in tables:
        pair.send("a", on_table(table, TuneOptimizer({"learning_rate": rate})))
        pair.flow()
    asked.clear()
    return pair


def step(pair: Pair, table: str) -> int:
    return int(pair.shard("a").table(table).state()["step"][0])


def test_a_rate_that_fails_refuses_the_whole_commit_and_names_table_and_step() -> None:
    pair = tuned(Pair(), failing_from_two, "w")
    for _ in range(2):
        pair.commit(push("w"))
    before = pair.read("a")
    (answer,) = pair.commit(push("v"), push_rows(1, 2), push("w"))
    assert isinstance(answer, Failed)
    assert type(answer.error).__name__ == "ConfigurationError"
    assert str(answer.error).startswith(
        "'w': the learning rate tests.server.test_learning_rates.failing_from_two fails for step "
        "2: IndexError("
    )
    assert pair.read("a") == before
    assert [step(pair, table) for table in ("v", "w", "e")] == [0, 2, 0]
    assert pair.shard("a").table("e").extent == 0


@pytest.mark.parametrize("told", [float("nan"), float("inf"), -1.0, "fast", None, ONES])
def test_what_is_no_rate_refuses_the_commit(told: Any) -> None:
    pair = Pair()
    rate = iter([1.0, told])  # the first is for step 0, when it is set
    tuned(pair, lambda step: next(rate), "v")
    with pytest.raises(ValueError, match="finite and not below 0: for step 0 it is"):
        result(pair.commit(push()))
    assert pair.read("a") == [0, 0]


def test_several_pushes_of_a_commit_are_several_steps_and_all_are_checked_first() -> None:
    pair = tuned(Pair(), failing_from_two, "v")
    with pytest.raises(ValueError, match="for step 2"):
        result(pair.commit(push(), push(), push()))
    assert pair.read("a") == [0, 0]
    result(pair.commit(push(), push()))
    assert pair.read("a") == [2, 2]


def test_a_commit_that_comes_again_is_not_decided_again() -> None:
    pair = tuned(Pair(), counting, "v")
    for _ in range(2):
        pair.commit(push(), number=7)
    assert asked == [0]
    assert pair.read("a") == [1, 1]


def test_what_is_prepared_is_applied_even_if_the_rate_fails_now() -> None:
    pair = tuned(Pair(), failing_from_two, "v")
    commits = [Commit("w", number) for number in range(3)]
    for commit in commits:
        pair.do(PreparePart(commit, Part([push()])))
    for commit in commits:
        pair.do(ApplyCommit(commit))
    assert pair.read("a") == [3, 3]
    with pytest.raises(ValueError, match="for step 3"):
        result(pair.commit(push(), number=3))


def test_a_function_set_between_the_steps_of_a_commit_cannot_make_it_fail() -> None:
    pair = Pair()
    pair.do(PreparePart(Commit("w", 0), Part([push()])))
    rate = iter([1.0])
    tuned(pair, lambda step: next(rate), "v")
    pair.do(ApplyCommit(Commit("w", 0)))
    assert pair.read("a") == [1, 1]


def test_a_number_set_between_the_steps_of_a_commit_counts_at_once() -> None:
    pair = tuned(Pair(), counting, "v")
    pair.do(PreparePart(Commit("w", 0), Part([push()])))
    tuned(pair, 0.25, "v")
    pair.do(ApplyCommit(Commit("w", 0)))
    assert pair.read("a") == [0.25, 0.25]


def test_a_copy_takes_the_rate_of_the_primary_and_asks_for_none() -> None:
    pair = Pair()
    pair.fill()
    tuned(pair, counting, "v", "e")
    pair.commit(push(), push(), push_rows(1, 2))  # once, for its occurrences
    pair.commit(push_rows(1, 2))
    pair.send("a", PreparePart(Commit("w", 100), Part([push()])))
    pair.send("a", ApplyCommit(Commit("w", 100)))
    pair.flow()
    assert len(asked) == 5
    assert pair.read("b") == pair.read("a") == [8, 8]  # the 1st, the 2nd and the 5th
    assert same(pair.shard("a"), pair.shard("b"))


def test_a_copy_that_takes_over_goes_on_with_the_next_step() -> None:
    pair = Pair()
    pair.fill()
    tuned(pair, failing_from_two, "v")
    for _ in range(2):
        pair.commit(push())
    pair.flow()
    pair.promote()
    with pytest.raises(ValueError, match="for step 2"):
        result(pair.commit(push(), host="b"))
    assert pair.read("b") == [2, 2]


def test_a_round_is_one_step_at_the_rate_of_its_pushes() -> None:
    pair = tuned(Pair(), failing_from_two, "v")
    for turn in range(2):
        closures = [2 * turn, 2 * turn + 1]
        for number in closures:
            part = Part([push(), push()], round_number=turn)
            pair.do(CommitParts(Commit("w", number), {0: part}))
        pair.do(EndRound("w", turn, closures, {}))
    assert step(pair, "v") == 2
    with pytest.raises(ValueError, match="for step 2"):
        pair.do(CommitParts(Commit("w", 4), {0: Part([push()], round_number=2)}))


def test_a_schedule_of_psnbs_own_goes_by_the_step_at_which_an_update_is_applied() -> None:
    pair = tuned(Pair(), Warmup(PiecewiseConstant([1], [1.0, 0.5]), 1, 0.25), "v")
    commits = [Commit("w", number) for number in range(3)]
    for commit in commits:
        pair.do(PreparePart(commit, Part([push()])))
    for commit in commits:
        pair.do(ApplyCommit(commit))
    assert pair.read("a") == [1.75, 1.75]


def test_a_function_set_before_the_end_of_a_round_cannot_make_it_fail() -> None:
    pair = Pair()
    pair.do(CommitParts(Commit("w", 0), {0: Part([push()], round_number=0)}))
    rate = iter([1.0])
    tuned(pair, lambda step: next(rate), "v")
    for _ in range(2):
        pair.do(EndRound("w", 0, [0], {}))
    assert pair.read("a") == [1, 1]


def test_a_preview_that_fails_leaves_the_table_as_it_was() -> None:
    pair = tuned(Pair(), failing_from_two, "v")
    preview = Preview([PushGradient(-ONES)] * 3, ReadValues())
    with pytest.raises(ValueError, match="for step 2"):
        pair.do(on_table("v", preview))
    assert pair.read("a") == [0, 0]
    assert step(pair, "v") == 0


def test_a_table_without_optimizer_refuses_a_push_before_anything_is_written() -> None:
    pair = Pair()
    pair.do(CreateDense("x", np.zeros(2, np.float32), None))
    with pytest.raises(ValueError, match="'x' has no optimizer"):
        result(pair.commit(push(), push("x")))
    assert pair.read("a") == [0, 0]
