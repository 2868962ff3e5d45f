"""What closures push in a round: held by closure, averaged over those that count."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from psnb._src.server.optimizers import SGD
from psnb._src.server.rounds import Rounds, square_norm
from psnb._src.server.tables.dense import DenseTable
from psnb._src.server.tables.initializers import Constant
from psnb._src.server.tables.operations import OnTables, PushGradient, PushRows, RecordUse, on_table
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sparse import SparseTable
from psnb._src.server.tables.table import Table


class Kept:
    """Rounds, and the tables that are pushed to: a variable of so many numbers, and rows."""

    def __init__(self, numbers: int = 1, dtype: str = "f8") -> None:
        self.rounds = Rounds()
        self.tables: dict[str, Table] = {
            "v": DenseTable("v", np.zeros(numbers, dtype), SGD(1.0)),
            "e": SparseTable(
                *("e", 1, None, 0, 1, "float64", Constant(0.0), 0, SGD(1.0)),
                accessor=CtrAccessor(),
            ),
        }

    def collect(self, writer: str, number: int, writes: list[OnTables]) -> None:
        reserved = [self.rounds.reserve(self.tables[each.tables[0]], each) for each in writes]
        self.rounds.collect(writer, number, reserved)

    def averages(self, writer: str, closures: Sequence[int]) -> list[OnTables]:
        found = self.rounds.averages(writer, closures, self.tables)
        return [each.write for each in found]


def dense(*gradient: float) -> OnTables:
    return on_table("v", PushGradient(np.array(gradient)))


def sparse(ids: list[int], gradients: list[list[float]]) -> OnTables:
    return on_table("e", PushRows(np.array(ids, np.uint64), np.array(gradients)))


def gradient(write: OnTables) -> list[float]:
    assert isinstance(write.operation, PushGradient)
    found: list[float] = write.operation.gradient.tolist()
    return found


def test_gradients_are_divided_by_the_number_of_closures() -> None:
    kept = Kept(2)
    kept.collect("a", 1, [dense(1.0, 2.0)])
    kept.collect("a", 0, [dense(3.0, 4.0), dense(1.0, 1.0)])
    (write,) = kept.averages("a", [0, 1])
    assert (write.tables, gradient(write)) == (("v",), [2.5, 3.5])


def test_gradients_of_equal_ids_are_summed_over_closures() -> None:
    kept = Kept()
    kept.collect("a", 0, [sparse([3, 5, 3], [[1.0], [2.0], [3.0]])])
    kept.collect("a", 1, [sparse([5, 9], [[4.0], [8.0]])])
    (write,) = kept.averages("a", [0, 1])
    assert isinstance(write.operation, PushRows)
    assert write.operation.ids.tolist() == [3, 5, 9]
    assert write.operation.gradients.tolist() == [[2.0], [3.0], [4.0]]


def test_a_closure_that_did_not_push_to_a_table_counts_there_too() -> None:
    kept = Kept()
    kept.collect("a", 0, [dense(4.0)])
    kept.collect("a", 1, [sparse([1], [[6.0]])])
    of_v, of_e = kept.averages("a", [0, 1])
    assert gradient(of_v) == [2.0]
    assert isinstance(of_e.operation, PushRows)
    assert of_e.operation.gradients.tolist() == [[3.0]]


def test_only_closures_that_have_completed_count() -> None:
    kept = Kept()
    kept.collect("a", 0, [dense(4.0)])
    kept.collect("a", 1, [dense(100.0)])
    (write,) = kept.averages("a", [0])
    assert gradient(write) == [4.0]


def test_pushes_are_summed_in_the_order_in_which_closures_are_named() -> None:
    kept, gradients = Kept(), (1e16, 1.0, -1e16)
    for number, each in enumerate(gradients):
        kept.collect("w", number, [dense(each)])
    for closures in itertools.permutations(range(3)):
        (write,) = kept.averages("w", closures)
        assert gradient(write) == [sum(gradients[each] for each in closures) / 3]


def test_what_a_closure_commits_first_counts() -> None:
    kept = Kept()
    kept.collect("a", 0, [dense(4.0)])
    kept.collect("a", 0, [dense(5.0)])
    (write,) = kept.averages("a", [0])
    assert gradient(write) == [4.0]


def test_the_order_of_arrival_does_not_matter_to_the_last_digit() -> None:
    numbers = np.random.default_rng(0).normal(size=9).astype(np.float32)
    found = []
    for order in (range(9), reversed(range(9))):
        kept = Kept(dtype="f4")
        for commit in order:
            kept.collect("a", commit, [on_table("v", PushGradient(numbers[commit : commit + 1]))])
        (write,) = kept.averages("a", range(9))
        found.append(gradient(write))
    assert found[0] == found[1]


def test_what_comes_beside_pushes_comes_after_them_as_it_was() -> None:
    kept = Kept()
    record = on_table("e", RecordUse(np.ones(1, np.uint64), np.ones(1, "f4"), np.ones(1, "f4")))
    kept.collect("a", 0, [record, sparse([1], [[6.0]])])
    found = kept.averages("a", [0])
    assert [type(write.operation) for write in found] == [PushRows, RecordUse]


def test_a_gradient_that_was_pushed_is_not_changed() -> None:
    kept, ones = Kept(2), np.ones(2)
    ones.flags.writeable = False
    kept.collect("a", 0, [on_table("v", PushGradient(ones))])
    kept.collect("a", 1, [dense(2.0, 3.0)])
    (write,) = kept.averages("a", [0, 1])
    assert gradient(write) == [1.5, 2.0]


def test_a_round_is_over_once_it_has_ended() -> None:
    kept = Kept()
    kept.collect("a", 0, [dense(1.0)])
    assert not kept.rounds.over("a", 0)
    kept.rounds.end("a", 0)
    assert kept.rounds.over("a", 0)
    assert not kept.rounds.over("a", 1)
    assert kept.averages("a", [0]) == []
    assert not kept.rounds.held()


def test_the_end_of_a_round_forgets_what_another_coordinator_has_left() -> None:
    kept = Kept()
    kept.collect("closed", 0, [dense(1.0)])
    assert kept.rounds.held() == {"closed": [0]}
    kept.rounds.end("a", 0)
    assert not kept.rounds.held()


def test_the_norm_is_that_of_the_average() -> None:
    kept = Kept()
    kept.collect("a", 0, [sparse([1, 2], [[4.0], [6.0]])])
    kept.collect("a", 1, [sparse([1], [[2.0]])])
    (write,) = kept.averages("a", [0, 1])
    assert isinstance(write.operation, PushRows)
    assert square_norm(write.operation) == 9 + 9
    assert square_norm(PushGradient(np.array([3.0, 4.0]))) == 25
