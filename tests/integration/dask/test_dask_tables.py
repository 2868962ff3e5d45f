"""Tables as Dask DataFrames, read in Dask's tasks."""

from __future__ import annotations

import numpy as np
import pytest

import psnb
from psnb.errors import ConfigurationError


def test_all_rows_of_a_table_are_a_frame_by_id(strategy: psnb.ParameterServerStrategy) -> None:
    table = strategy.embedding("items", 3, rows=100, initializer=psnb.Normal(seed=1))
    frame = table.to_dask(partition_rows=30)
    assert (frame.npartitions, list(frame.columns)) == (4, ["0", "1", "2"])
    found = frame.compute()
    assert found.index.tolist() == list(range(100))
    np.testing.assert_array_equal(found.to_numpy(), table.lookup(np.arange(100)))
    table.assign([5], np.full((1, 3), 9.0, np.float32))
    assert table.to_dask().loc[5].compute().to_numpy().tolist() == [[9.0] * 3]


def test_a_table_of_any_ids_is_asked_for_some_and_makes_no_rows(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    table = strategy.embedding("users", 2, initializer=0.5)
    with pytest.raises(ConfigurationError, match=r"say which: to_dask\(ids\)"):
        table.to_dask()
    with pytest.raises(ConfigurationError, match="expected integers"):
        table.to_dask([0.5])
    found = table.to_dask([7, 2**40], partition_rows=1).compute()
    assert found.index.tolist() == [7, 2**40]
    assert found.to_numpy().tolist() == [[0.5, 0.5]] * 2
    assert table.statistics().rows == 0


def test_ids_of_a_list_keep_their_bits(strategy: psnb.ParameterServerStrategy) -> None:
    table = strategy.embedding("hashed", 1, initializer=0.5)
    table.assign(np.array([2**63 + 5], "u8"), np.ones((1, 1), np.float32))
    found = table.to_dask([1, 2**63 + 5]).compute()
    assert found.index.tolist() == [1, 2**63 + 5]
    assert found.to_numpy().tolist() == [[0.5], [1.0]]
