"""Tests of a shard's operations."""

from typing import Any

import numpy as np
import pytest

from psnb.errors import ConfigurationError, InternalError
from psnb.server import SGD, Adagrad, Constant, Optimizer
from psnb.server.shard import Shard

SPARSE: dict[str, Any] = {
    "name": "e",
    "dim": 2,
    "rows": 10,
    "index": 0,
    "shards": 1,
    "dtype": "float32",
    "initializer": Constant(1.0),
    "seed": 0,
    "optimizer": None,
}


def dense(name: str, size: int = 3, optimizer: Optimizer | None = None) -> dict[str, Any]:
    return {"name": name, "values": np.zeros(size, np.float32), "optimizer": optimizer}


@pytest.fixture
def shard() -> Shard:
    """Return a server with a dense table ``v`` and a sparse one ``e``."""
    shard = Shard("shard 0 at home")
    shard.call("", "create_dense", dense("v", optimizer=SGD(1.0)))
    shard.call("", "create_sparse", SPARSE)
    return shard


def test_operations_reach_the_table_of_that_name(shard: Shard) -> None:
    shard.call("", "create_dense", dense("w"))
    shard.call("v", "push", {"gradient": np.ones(3, np.float32)})
    assert shard.call("v", "read", {}).tolist() == [-1, -1, -1]
    assert shard.call("w", "read", {}).tolist() == [0, 0, 0]


def test_embedding_tables_answer_lookups(shard: Shard) -> None:
    found = shard.call("e", "lookup", {"ids": np.array([3, 4], np.uint64)})
    assert found.tolist() == [[1, 1], [1, 1]]


def test_unknown_table_is_named_with_the_server(shard: Shard) -> None:
    with pytest.raises(ConfigurationError, match="shard 0 at home holds no 'x'"):
        shard.call("x", "read", {})


@pytest.mark.parametrize("operation", ["explode", "nbytes", "_values", "__init__"])
@pytest.mark.parametrize("table", ["v", "e"])
def test_what_is_no_operation_of_a_table_is_refused(
    shard: Shard, table: str, operation: str
) -> None:
    with pytest.raises(InternalError, match=f"'{table}' has no operation '{operation}'"):
        shard.call(table, operation, {})


def test_unknown_operation_of_the_shard_is_refused(shard: Shard) -> None:
    with pytest.raises(InternalError, match="shard 0 at home has no operation 'explode'"):
        shard.call("", "explode", {})


def test_creating_a_table_again_as_if_it_had_not_been_done_is_no_error(shard: Shard) -> None:
    shard.call("", "create_dense", dense("v"))
    assert shard.call("v", "read", {}).tolist() == [0, 0, 0]


def test_dropped_table_is_gone_and_its_name_free(shard: Shard) -> None:
    assert shard.call("", "drop", {"name": "v"}) is None
    with pytest.raises(ConfigurationError, match="holds no 'v'"):
        shard.call("v", "read", {})
    shard.call("", "create_dense", dense("v", 5))
    assert shard.call("v", "read", {}).shape == (5,)


def test_dropping_what_is_not_there_does_nothing(shard: Shard) -> None:
    assert shard.call("", "drop", {"name": "x"}) is None
    assert set(shard.call("", "statistics", {})) == {"v", "e"}


def test_statistics_count_parameters_and_optimizer_state() -> None:
    shard = Shard("shard 0")
    shard.call("", "create_dense", dense("plain", 100))
    shard.call("", "create_dense", dense("slotted", 100, Adagrad()))
    assert shard.call("", "statistics", {}) == {"plain": 400, "slotted": 800}


def test_statistics_of_an_embedding_grow_with_its_rows() -> None:
    shard = Shard("shard 0")
    shard.call("", "create_sparse", {**SPARSE, "rows": None})
    before = shard.call("", "statistics", {})["e"]
    shard.call("e", "lookup", {"ids": np.arange(10_000, dtype=np.uint64)})
    assert shard.call("", "statistics", {})["e"] - before >= 10_000 * 2 * 4
