"""SparseShards: how an embedding is spread over servers, written and saved.

Its rows are looked up and pushed with those of others: see `psnb._src.client.fused`.

It keeps no state, so any number of threads may use one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.client.arguments import checked_array, checked_ids
from psnb._src.client.embedding_spec import EmbeddingSpec
from psnb._src.client.parameter_shards import ParameterShards, divided
from psnb._src.client.requests import on_table
from psnb._src.client.server_client import ServerClient
from psnb._src.client.updates import ShardWrite
from psnb._src.client.whole_tables import SavedState, TableLoad, read_segments, read_states
from psnb._src.placement.layout import ShardId
from psnb._src.server.hashing import distinct
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.admission import Always
from psnb._src.server.tables.checks import MINUTES, ExpectedRows
from psnb._src.server.tables.row_use import CtrAccessor
from psnb._src.server.tables.sharding import Owner, shard_of_ids
from psnb._src.transport.half_width import computed
from psnb.errors import ConfigurationError, InvalidArrayError


class SparseShards(ParameterShards):
    """A description of an embedding, and the access to its shards, which ``shard_ids`` names."""

    def __init__(
        self, spec: EmbeddingSpec, shards: Sequence[ShardId], server_client: ServerClient | None
    ) -> None:
        tables = [(shard, spec.name) for shard in shards]
        super().__init__(spec.name, spec.optimizer, tables, server_client, spec.nonfinite)
        self.dim, self.rows, self.dtype = spec.dim, spec.rows, computed(spec.dtype)
        self.padding_idx, self.admission = spec.padding_idx, spec.admission
        self.accessor = spec.accessor
        self.spec, self.shard_ids = spec, tuple(shards)
        # If a whole push goes to one shard, that can compute its norm itself. Else pushes are sent
        # with their norm, which takes time, if they may be clipped by it.
        sees_all = len(shards) == 1 and isinstance(spec.admission, Always)
        self.sends_norm = not sees_all and self.clips_by_norm
        # Tables that are looked up and pushed in one operation have all of this in common.
        alone = spec.name if spec.half else None  # halves have a common exponent
        kind = self.shard_ids, spec.dim, spec.dtype, spec.slot_dtype, spec.rows is None, alone
        self.kind = f"{id(server_client)} {kind}"  # a text, as that knows its hash
        self.knows_norm = sees_all or self.sends_norm

    def __reduce__(self) -> tuple[Any, ...]:
        return SparseShards, (self.spec, self.shard_ids, None)

    def elsewhere(self, strategy: str, server_client: ServerClient) -> SparseShards:
        shards = [shard._replace(strategy=strategy) for shard in self.shard_ids]
        return SparseShards(self.spec, shards, server_client)

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint must match to be loaded, as JSON can hold it."""
        form = self.saved_form
        found = {
            "kind": "embedding",
            "dim": self.dim,
            "rows": self.rows,
            "dtype": self.spec.dtype.name,
            "slots": list(form.slots),
        }
        if form.slots and form.slot_dtype:
            found["slot_dtype"] = form.slot_dtype.name
        if form.row_wise:
            found["row_wise"] = sorted(form.row_wise)
        return found

    def recipe(self) -> dict[str, Any]:
        """Return what `describe` lacks of how it was made, as JSON can hold it."""
        spec = self.spec
        return {
            "nonfinite": spec.nonfinite.value,
            "padding_idx": spec.padding_idx,
            "initializer": spec.initializer.describe(),
            "admission": spec.admission.describe() if spec.rows is None else None,
            "accessor": None if spec.accessor is None else spec.accessor.describe(),
            "storage": spec.storage,
            "eviction": None if spec.eviction is None else spec.eviction.describe(),
        }

    @property
    def saved_form(self) -> ExpectedRows:
        return self.spec.saved_form

    def shard_states(self) -> list[dict[str, np.ndarray]]:
        """Return ids, values and optimizer state of every shard, for checkpoints."""
        return read_states(self.server_client, self.tables)

    def segments(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield what `shard_states` returns, without its tail, in pieces of a few MB."""
        for table in self.tables:
            yield from read_segments(self.server_client, table)

    def loads(
        self, states: Sequence[SavedState], only: Collection[int] | None = None
    ) -> list[TableLoad]:
        """Return what its tables get of its shards in a checkpoint, of which it has any number.

        For all of its tables, or those on the shards in ``only``. Each shard counts its own steps
        and minutes; all continue from the highest count, and rows keep their ages.
        """
        growing, here, there = self.rows is None, len(self.tables), len(states)
        most, minutes = max(e.step for e in states), max(e.minutes for e in states)
        tail = {"step": np.array([most]), **({MINUTES: np.array([minutes])} if growing else {})}
        moved = [
            replace(
                e, parts=[replace(p, later=(most - e.step, minutes - e.minutes)) for p in e.parts]
            )
            for e in states
        ]
        found = []
        for number, table in enumerate(self.tables):
            if only is not None and table[0].number not in only:
                continue
            # Both numbers are what the same number of an id leaves: by `here` and by `there`.
            alike = math.gcd(here, there)
            own = [each for at, each in enumerate(moved) if at % alike == number % alike]
            found.append(
                TableLoad(
                    table,
                    [(part, 0, part.count, None) for each in own for part in each.parts],
                    self.saved_form.row_nbytes,
                    tail,
                    last=[each.parts[-1] for each in own],
                    owner=None if here == alike else Owner(number, here, growing),
                    one_in=here // alike,
                    rows=sum(each.rows[number] for each in own if each.rows),
                    clears=growing,  # fixed rows are all replaced
                )
            )
        return found

    def assigning(self, ids: ArrayLike, values: ArrayLike) -> list[ShardWrite]:
        """Return the writes that replace rows."""
        what = f"values for embedding {self.name!r}"
        flat = checked_ids(ids, self.name, self.rows)
        array = checked_array(values, self.dtype, what, (*flat.shape, self.dim))
        found, position = distinct(flat.reshape(-1))
        last = np.empty(found.size, np.intp)
        last[position] = np.arange(position.size)  # of equal ids, the last value counts
        rows = array.reshape(-1, self.dim)[last]
        return [
            (shard, ops.on_table(self.name, ops.PutRows(share(found, at), rows[at])))
            for shard, at in self.split(found)
        ]

    def use(
        self, shape: tuple[int, ...], shows: ArrayLike | None, clicks: ArrayLike | None
    ) -> np.ndarray:
        """Return shows and clicks, float32 ``(2, n)``; empty if the table keeps none."""
        if self.accessor is None:
            if shows is not None or clicks is not None:
                self.require_accessor()
            return np.empty((0, math.prod(shape)), np.float32)
        use = np.empty((2, *shape), np.float32)
        for i, (what, given, default) in enumerate([("shows", shows, 1), ("clicks", clicks, 0)]):
            array = np.asarray(default if given is None else given)
            if given is not None and array.shape != shape:
                raise InvalidArrayError(
                    f"{what} for embedding {self.name!r}: expected shape {shape}, found "
                    f"{array.shape}"
                )
            if array.dtype.kind not in "biuf" or not (np.isfinite(array) & (array >= 0)).all():
                raise InvalidArrayError(
                    f"{what} for embedding {self.name!r}: expected finite numbers not below 0"
                )
            use[i] = array
        return use.reshape(2, -1)

    def require_accessor(self) -> CtrAccessor:
        """Return the accessor, or raise ConfigurationError if there is none."""
        if self.accessor is None:
            raise ConfigurationError(
                f"embedding {self.name!r} does not remember how its rows are used: make it with "
                "accessor=psnb.CtrAccessor()"
            )
        return self.accessor

    def row_use(self, ids: ArrayLike) -> np.ndarray:
        """Return shows, clicks and days unseen, ``(3, *ids.shape)``; 0 for ids without a row."""
        checked = checked_ids(ids, self.name, self.rows)
        flat = checked.reshape(-1)
        found = np.zeros((3, flat.size), np.float32)
        parts = self.split(flat)
        requests = [on_table(shard, self.name, ops.ReadUse(flat[at])) for shard, at in parts]
        for (_, at), part in zip(parts, self.server_client.call(requests), strict=True):
            found[:, at] = part.T
        return found.reshape(3, *checked.shape)

    def owners(self, flat: np.ndarray) -> np.ndarray:
        return shard_of_ids(flat, len(self.shard_ids), growing=self.rows is None)

    def split(self, flat: np.ndarray) -> list[tuple[ShardId, Any]]:
        """Return the shards to ask, each with the positions of its ids."""
        return divided(self.shard_ids, flat, self.owners)


def share(ids: np.ndarray, at: Any) -> np.ndarray:
    """Return a shard's part; if it is the whole, the same array, so that it is sent only once."""
    return ids if isinstance(at, slice) else ids[at]
