"""How servers keep the tables of a model: the options of `distribute` by the table's name.

Everything is checked before anything of the model is placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from psnb._src.client.embedding_spec import EmbeddingSpec
from psnb._src.server.tables.sharding import shard_of_ids
from psnb._src.transport.half_width import computed
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

TableOptions = Mapping[str, Mapping[str, Any]]
"""By the name of a table: arguments of `ParameterServerStrategy.embedding`."""

_STORED = ("dtype", "slot_dtype", "storage")
_GROWING = ("admission", "accessor", "max_rows", "max_bytes", "evict", "time_to_live")


def check_options(given: TableOptions | None, tables: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what was given for each table, nothing for most.

    Raises
    ------
    ConfigurationError
        If it is no mapping of names to mappings, or a table or an option is unknown.
    """
    options = {} if given is None else given
    if not isinstance(options, Mapping):
        raise ConfigurationError(
            'tables must be a mapping such as {"ads": {"dtype": "bfloat16"}}, found '
            f"{shown(options)}"
        )
    if unknown := [each for each in options if each not in tables]:
        there = f"those that it has are {list(tables)}" if tables else "it has none"
        raise ConfigurationError(f"tables: the model has no table {shown(unknown[0])}; {there}")
    for name, own in options.items():
        if not isinstance(own, Mapping):
            raise ConfigurationError(
                f"tables: the options of {name!r} must be a mapping such as "
                f'{{"dtype": "bfloat16"}}, found {shown(own)}'
            )
        if unknown := [each for each in own if each not in (*_STORED, *_GROWING)]:
            raise ConfigurationError(
                f"tables: {name!r} has no option {shown(unknown[0])}: a model says what else its "
                f"tables are. Options are {', '.join((*_STORED, *_GROWING))}"
            )
    return {name: dict(options.get(name, {})) for name in tables}


def check_dtype(name: str, spec: EmbeddingSpec, own: np.dtype) -> None:
    """Raise ConfigurationError if rows would be computed with in another dtype than the model's."""
    if computed(spec.dtype) != own:
        raise ConfigurationError(
            f"tables: {name!r} is of {own} in the model, and would be computed with as "
            f"{computed(spec.dtype)} with dtype={spec.dtype.name!r}: half width is for float32"
        )


def too_many(spec: EmbeddingSpec, shards: int, ids: np.ndarray) -> str:
    """Return why rows of these ids cannot all be in a table at once; nothing if they can."""
    most = None if spec.eviction is None else spec.eviction.of_one(shards).max_rows
    if most is None or not ids.size:
        return ""
    owners = shard_of_ids(np.asarray(ids).view(np.uint64), shards, growing=True)
    largest = int(np.bincount(owners).max())
    if largest <= most:
        return ""
    return (
        f"table {spec.name!r} is to have {ids.size:,} rows at once, {largest:,} of them in one of "
        f"its {shards} shards, which may have {most:,} (max_rows= divided by the shards): give a "
        "larger max_rows= or max_bytes=, or fewer rows"
    )


def kept(spec: EmbeddingSpec) -> str:
    """Return how servers keep a table."""
    eviction = None if spec.eviction is None else spec.eviction.describe()
    accessor = None if spec.accessor is None else spec.accessor.describe()
    parts = {
        "dtype": spec.dtype,
        "slot_dtype": spec.slot_dtype or computed(spec.dtype),
        "storage": spec.storage,
        "admission": spec.admission.describe(),
        "accessor": accessor,
        "eviction": eviction,
    }
    return ", ".join(f"{what} {value}" for what, value in parts.items() if value is not None)
