"""All rows of a table at once: as tensors of a state, and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from psnb._src.parameters import Embedding, shards_of
from psnb._src.torch_models.as_tensors import tensor_of

_PART = 4 << 20
"""Bytes of a table that are read or written at a time."""

IDS, ROWS = "ids", "rows"
"""What the state of a table of any id consists of."""


def read_table(name: str, table: Embedding) -> dict[str, Tensor]:
    """Return what a table holds: all rows, or those that ids have got, in their order."""
    if table.rows is not None:
        step = _rows_of_a_part(table)
        parts = [
            table.lookup(np.arange(start, min(start + step, table.rows)), training=False)
            for start in range(0, table.rows, step)
        ]
        return {name: torch.from_numpy(np.concatenate(parts))}
    states = shards_of(table).shard_states()
    ids = np.concatenate([state["ids"] for state in states]).view(np.int64)
    order = np.argsort(ids)
    rows = np.concatenate([state["values"] for state in states])
    return {f"{name}.{IDS}": tensor_of(ids[order]), f"{name}.{ROWS}": tensor_of(rows[order])}


def write_rows(table: Embedding, ids: np.ndarray, rows: np.ndarray) -> None:
    """Write rows in parts, so that no server stands still for long."""
    step = _rows_of_a_part(table)
    for start in range(0, len(ids), step):
        part = slice(start, start + step)
        table.assign(ids[part], np.ascontiguousarray(rows[part], table.dtype))


def replace_rows(table: Embedding, ids: np.ndarray, rows: np.ndarray) -> None:
    """Let a table of any id hold these rows and no others; those that stay keep their use."""
    shards = shards_of(table)
    states = shards.shard_states()
    kept = [np.isin(state["ids"], ids.view(np.uint64)) for state in states]
    if not all(each.all() for each in kept):
        shards.load_states([_those(state, each) for state, each in zip(states, kept, strict=True)])
    write_rows(table, ids, rows)


def _those(state: dict[str, np.ndarray], kept: np.ndarray) -> dict[str, np.ndarray]:
    """Return the state of a shard with some of its rows."""
    return {
        key: array if key == "step" or key.startswith("waiting.") else array[kept]
        for key, array in state.items()
    }


def _rows_of_a_part(table: Embedding) -> int:
    return max(1, _PART // (table.dim * table.dtype.itemsize))
