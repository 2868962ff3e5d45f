"""Blends: one after the other, of the closures of a round, and on a table."""

from __future__ import annotations

import numpy as np
import pytest

from psnb._src.server.rounds import Rounds
from psnb._src.server.tables.dense import DenseTable, composed
from psnb._src.server.tables.operations import BlendValues, on_table
from psnb.errors import ConfigurationError

SHARES = [0.0, 0.1, 1.0, 0.5]
"""Of what is added to, averaged, set, and averaged again."""


def blend(seed: int, shares: list[float] = SHARES) -> BlendValues:
    rng = np.random.default_rng(seed)
    return BlendValues(np.array(shares), rng.normal(size=len(shares)))


def after(values: np.ndarray, *blends: BlendValues) -> np.ndarray:
    table = DenseTable("v", values, None)
    for each in blends:
        table.run(each)
    return table.read()


def test_a_share_is_kept_and_a_term_is_added() -> None:
    values = np.array([2.0, 2.0, np.inf, -np.inf])
    terms = np.array([3.0, 0.5, 7.0, 0.0])
    found = after(values, BlendValues(np.array([0.0, 0.25, 1.0, 0.0]), terms))
    assert found.tolist() == [5.0, 2.0, 7.0, -np.inf]


def test_arrays_of_another_form_change_nothing() -> None:
    table = DenseTable("v", np.ones(2), None)
    for given in (BlendValues(np.ones(2), np.ones(3)), BlendValues(np.ones(3), np.ones(2))):
        with pytest.raises(ConfigurationError):
            table.run(given)
    assert table.read().tolist() == [1.0, 1.0]


def test_what_is_composed_does_what_one_after_the_other_does() -> None:
    values, several = np.random.default_rng(9).normal(size=4), [blend(1), blend(2), blend(3)]
    whole = None
    for each in several:
        whole = composed(whole, each)
    assert whole is not None
    np.testing.assert_allclose(after(values, whole), after(values, *several), rtol=1e-12)


def test_a_round_averages_what_the_blends_of_each_closure_come_to() -> None:
    rounds, values = Rounds(), np.random.default_rng(9).normal(size=4)
    table = DenseTable("v", values, None)
    of_closures = [[blend(1), blend(2)], [blend(3)], []]
    for commit, several in enumerate(of_closures):
        reserved = [rounds.reserve(table, on_table("v", each)) for each in several]
        rounds.collect("a", commit, reserved)
    (write,) = rounds.averages("a", [0, 1, 2], {"v": table})
    assert write.make is not None
    write.make()
    expected = np.mean([after(values, *each) for each in of_closures], axis=0)
    np.testing.assert_allclose(table.read(), expected, rtol=1e-12)
