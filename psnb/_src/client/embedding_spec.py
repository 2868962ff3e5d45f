"""EmbeddingSpec: what an embedding is made as, and the checks of what it is asked to be. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
from numpy.typing import DTypeLike

from psnb._src.client import arguments
from psnb._src.client.arguments import NonFinite
from psnb._src.server.operations import CreateSparse
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.tables.admission import Admission, Always
from psnb._src.server.tables.checks import ExpectedRows
from psnb._src.server.tables.eviction.policy import Eviction, Score
from psnb._src.server.tables.initializers import Initializer, Uniform
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.transport.half_width import computed
from psnb.errors import ConfigurationError

_ALWAYS, _UNIFORM = Always(), Uniform()

_INDEX = 28
"""Bytes a row: two slots of a hash map of 12 at most, and marks of changes and of what leaves."""


@dataclass(frozen=True)
class EmbeddingSpec:
    """What an embedding was made as; see `ParameterServerStrategy.embedding`."""

    name: str
    dim: int
    rows: int | None
    dtype: np.dtype
    optimizer: Optimizer | None = None
    nonfinite: NonFinite = NonFinite.REFUSE
    padding_idx: int | None = None
    admission: Admission = _ALWAYS
    accessor: CtrAccessor | None = None
    initializer: Initializer = _UNIFORM
    slot_dtype: np.dtype | None = None
    half: bool = False
    """Whether rows and gradients of float32 travel with 16 bits."""
    storage: str = "memory"
    eviction: Eviction | None = None
    """When rows leave; over all shards, not of one."""

    @property
    def seed(self) -> int:
        """The seed of the initial rows: of the name, so it is the same on any cluster."""
        return int.from_bytes(hashlib.blake2b(self.name.encode(), digest_size=8).digest())

    @property
    def saved_form(self) -> ExpectedRows:
        """What each of its shards in a checkpoint must be."""
        return ExpectedRows(
            *(self.name, self.dtype, self.optimizer.slots if self.optimizer else (), (self.dim,)),
            fixed=None if self.rows is None else (self.rows, 0, 1),
            uses=self.accessor is not None,
            waits=self.admission.min_count > 1,
            slot_dtype=self.slot_dtype,
            row_wise=self.optimizer.row_wise if self.optimizer else frozenset(),
            recency=() if self.eviction is None else self.eviction.columns,
        )

    @property
    def memory_of_row(self) -> int:
        """The bytes that a row takes on a server, with what is needed to find it, at most."""
        return self.saved_form.row_nbytes + _INDEX

    def creation(self, number: int, shards: int, optimizer: Optimizer | None) -> CreateSparse:
        """Return the function that makes the table of a shard, one of ``shards``."""
        return CreateSparse(
            self.name,
            self.dim,
            self.rows,
            index=number,
            shards=shards,
            dtype=self.dtype.name,
            initializer=self.initializer,
            seed=self.seed,
            optimizer=optimizer,
            admission=self.admission,
            accessor=self.accessor,
            slot_dtype=self.slot_dtype.name if self.slot_dtype else None,
            storage=self.storage,
            eviction=self.eviction and self.eviction.of_one(shards),
        )


def embedding_spec(
    shards: int,
    name: str,
    dim: int,
    rows: int | None = None,
    initializer: Initializer | float | None = None,
    optimizer: Optimizer | None = None,
    dtype: DTypeLike = np.float32,
    nonfinite: str = "refuse",
    padding_idx: int | None = None,
    admission: Admission | None = None,
    accessor: CtrAccessor | None = None,
    slot_dtype: DTypeLike | None = None,
    storage: str = "memory",
    *,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    evict: str | Score = "lru",
    time_to_live: timedelta | int | None = None,
) -> EmbeddingSpec:
    """Return the spec of an embedding over some shards, by the arguments of `embedding`.

    Raises
    ------
    ConfigurationError
        If an argument is of the wrong kind, or some do not fit each other.
    """
    arguments.check_rows(name, dim, rows)
    kind, slot_kind = arguments.as_row_dtypes(dtype, slot_dtype, name)
    arguments.check_optimizer(optimizer, computed(kind), name)
    arguments.check_slots(optimizer, slot_kind, name)
    arguments.check_by_element(optimizer, f"embedding {name!r}")
    arguments.check_accessor(accessor, name, rows)
    eviction = arguments.as_eviction(
        *(name, rows, max_rows, max_bytes, evict, time_to_live, accessor, optimizer)
    )
    spec = EmbeddingSpec(
        name,
        int(dim),
        None if rows is None else int(rows),
        kind,
        optimizer,
        arguments.as_nonfinite(nonfinite, name),
        arguments.as_padding(padding_idx, name, rows),
        arguments.as_admission(admission, name, rows),
        accessor,
        arguments.as_initializer(initializer, name),
        slot_kind,
        storage=arguments.as_storage(storage, name),
        eviction=eviction,
    )
    if eviction is None or eviction.max_rows is None:
        return spec
    most = eviction.max_rows if max_bytes is None else max_bytes // spec.memory_of_row
    if most < shards:
        raise ConfigurationError(
            f"embedding {name!r} may have {most} rows, and is in {shards} shards: each must have "
            "one row at least; give a larger max_rows= or max_bytes="
        )
    return replace(spec, eviction=replace(eviction, max_rows=most))
