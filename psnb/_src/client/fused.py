"""Lookups and pushes of rows of any number of embeddings: one operation for each shard.

Embeddings of equal rows (their length and dtype) that lie on the same shards are asked for, and
pushed, together: ids are numbered, sent and answered with one array for all. What a step costs is
what its bytes cost, not what its tables are. A lookup in one embedding is one of these, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.client.arguments import checked_array, split_finite
from psnb._src.client.ids import Ids, SeenIds, number_together, sample_together
from psnb._src.client.parameter_shards import divided
from psnb._src.client.requests import Request
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.updates import PendingRead, ShardWrite, current_updates, read_request
from psnb._src.placement.layout import ShardId
from psnb._src.server.hashing import add_up_rows, distinct
from psnb._src.server.kernels import all_finite, copy_finite, norm
from psnb._src.server.stored import widened
from psnb._src.server.tables import operations as ops
from psnb._src.transport.message import as_float32
from psnb._src.utils.memory import aligned

RowsPushed = tuple[SparseShards, Any, ArrayLike, ArrayLike | None, ArrayLike | None]
"""An embedding, ids, their gradients, and shows and clicks."""


_NO_USE = np.empty((0, 0), np.float32)


class _Share(NamedTuple):
    """What one shard has of the ids of several embeddings.

    Attributes
    ----------
    shard : ShardId
        The shard.
    names : tuple of str
        The embeddings of which it has some.
    numbers : sequence of int
        Which of all they are.
    at : slice or numpy.ndarray
        Where among all ids its own are.
    ids : numpy.ndarray
        These.
    offsets : numpy.ndarray or None
        Where those of each embedding begin and end; None for a single one.
    """

    shard: ShardId
    names: tuple[str, ...]
    numbers: Sequence[int]
    at: Any
    ids: np.ndarray
    offsets: np.ndarray | None


class _Joined:
    """Joins arrays of ids; of equal results the first is returned, which is sent only once."""

    def __init__(self) -> None:
        self._known: list[np.ndarray] = []

    def __call__(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        if len(parts) == 1:
            return parts[0]
        made = np.concatenate(parts)
        made.flags.writeable = False
        for each in self._known:
            if np.array_equal(each, made):
                return each
        self._known.append(made)
        return made


def _together(several: Sequence[SparseShards]) -> list[list[int]]:
    """Return which of them are of one kind; an embedding that is there twice is apart."""
    groups: dict[object, dict[str, int]] = {}
    for number, each in enumerate(several):
        key: object = each.kind
        while key in groups and each.name in groups[key]:
            key = (key,)
        if key not in groups:
            groups[key] = {}
        groups[key][each.name] = number
    return [[*group.values()] for group in groups.values()]


def _shares(several: Sequence[SparseShards], ids: np.ndarray, bounds: list[int]) -> list[_Share]:
    """Return the shards to ask, each with its ids."""
    found = []
    first = several[0]
    for shard, at in divided(first.shard_ids, ids, first.owners):
        whole = isinstance(at, slice)
        own = bounds if whole else np.searchsorted(at, bounds).tolist()
        # A push without ids of a shard is no step there.
        numbers = [n for n, (start, stop) in enumerate(pairwise(own)) if stop > start]
        names = tuple([several[number].name for number in numbers])
        offsets = None
        if len(names) > 1:
            offsets = np.array([*(own[number] for number in numbers), own[-1]])
            offsets.flags.writeable = False
        # If it is the whole, the same array, so that it is sent only once.
        found.append(_Share(shard, names, numbers, at, ids if whole else ids[at], offsets))
    return found


def reading_rows(
    wanted: Sequence[tuple[SparseShards, ArrayLike | Ids]], *, training: bool = True
) -> list[tuple[list[int], PendingRead]]:
    """Return what reads rows: which of the wanted, and the read of a list of their rows."""
    seen = SeenIds()
    own = [
        ids if type(ids) is Ids else seen.get(ids, each.name, each.rows, each.padding_idx)
        for each, ids in wanted
    ]
    sample_together(own)
    join = _Joined()
    found = []
    for numbers in _together([each for each, _ in wanted]):
        shards, some = [wanted[at][0] for at in numbers], [own[at] for at in numbers]
        found.append((numbers, _reading(shards, some, join, training)))
    return found


def _reading(
    several: Sequence[SparseShards], own: Sequence[Ids], join: _Joined, training: bool
) -> PendingRead:
    first, asked = several[0], [each.flat if each.plain else each.asked for each in own]
    ids, bounds = join(asked), [0, *accumulate([each.size for each in asked])]
    requests: list[Request] = []
    places: list[Any] = []
    updates = current_updates()
    for share in _shares(several, ids, bounds):
        look_up = ops.LookUpRows(share.ids, share.offsets, training, None, first.spec.half)
        on = ops.OnTables(share.names, look_up)
        if updates is None or updates.held(share.shard).isdisjoint(share.names):
            requests.append(Request(share.shard, on))
            places.append(share.at)
            continue
        at = np.arange(ids.size)[share.at]
        for part in on.parts():  # each with the closure's own writes
            assert isinstance(part.operation, ops.LookUpRows)
            requests.append(read_request(share.shard, part.tables[0], part.operation))
            places.append(at[: part.operation.ids.size])
            at = at[part.operation.ids.size :]

    def value(answers: list[np.ndarray]) -> list[np.ndarray]:
        if len(places) == 1 and isinstance(places[0], slice):
            out = widened(as_float32(answers[0]))
        else:
            out = aligned((ids.size, first.dim), first.dtype)
            for at, rows in zip(places, answers, strict=True):
                out[at] = widened(as_float32(rows))
        return [
            out[start:stop] if each.plain else each.spread(out[start:stop])
            for each, (start, stop) in zip(own, pairwise(bounds), strict=True)
        ]

    return PendingRead(first.server_client, requests, value, updates)


class _Gradients:
    """The gradients of an embedding's ids, to be summed by id."""

    def __init__(self, pushed: RowsPushed, own: Ids, kept: bool) -> None:
        self.shards, _, gradients, shows, clicks = pushed
        shards = self.shards
        if shards.made_with is None:
            shards.require_optimizer()
        shape = (*own.shape, shards.dim)
        if not (
            # Mostly; then nothing is to be converted, and it is copied before it may change.
            kept
            and type(gradients) is np.ndarray
            and (gradients.dtype, gradients.shape) == (shards.dtype, shape)
            and gradients.flags.c_contiguous
        ):
            reason = f" for ids of shape {own.shape}"
            gradients = checked_array(gradients, shards.dtype, self._what, shape, reason)
        self.rows = gradients if len(shape) == 2 else gradients.reshape(-1, shards.dim)
        self.use = _NO_USE
        if shards.accessor is not None or shows is not None or clicks is not None:
            self.use = shards.use(own.shape, shows, clicks)
        if own.real is not None:
            self.rows = self.rows[own.real]
            self.use = self.use if shards.accessor is None else self.use[:, own.real]
        self.flat = own.flat
        self.found, self.position = (own.flat, None) if own.plain else own.distinct
        self.bad = own.flat[:0]

    @property
    def _what(self) -> str:
        return f"gradients for embedding {self.shards.name!r}"

    def leave_out_bad(self) -> bool:
        """Leave out what is not finite; return whether there was some, or raise."""
        if all_finite(self.rows) or not self.shards.must_skip(self.rows, self._what):
            return False
        flat, self.rows, self.bad = split_finite(self.flat, self.rows)
        self.found, self.position = distinct(flat)
        return True


def pushing_rows(pushed: Sequence[RowsPushed]) -> list[ShardWrite]:
    """Return the writes of pushes, by shard."""
    seen = SeenIds()
    own = [
        ids if type(ids) is Ids else seen.get(ids, s.name, s.rows, s.padding_idx)
        for s, ids, *_ in pushed
    ]
    number_together(own)
    join = _Joined()
    writes: list[ShardWrite] = []
    for numbers in _together([each[0] for each in pushed]):
        kept = len(numbers) > 1
        writes += _pushing([_Gradients(pushed[at], own[at], kept) for at in numbers], join)
    return writes


def _pushing(several: Sequence[_Gradients], join: _Joined) -> list[ShardWrite]:
    sums, bounds, finite = _summed(several)
    if not finite and True in [each.leave_out_bad() for each in several]:
        sums, bounds, _ = _summed(several)
    shards = [each.shards for each in several]
    first = shards[0]
    norms: list[float | None] | None = None
    if True in [each.sends_norm for each in shards]:
        norms = [
            norm(sums[start:stop]) if each.sends_norm else None
            for each, (start, stop) in zip(shards, pairwise(bounds), strict=True)
        ]
    writes: list[ShardWrite] = []
    for share in _shares(shards, join([each.found for each in several]), bounds):
        part = sums
        if not isinstance(share.at, slice):
            shape = (share.at.size, first.dim)
            buffer = first.server_client.allocate(share.shard, shape, first.dtype)
            part = sums.take(share.at, axis=0, out=buffer, mode="clip")
        part.flags.writeable = False  # it does not change any more
        own_norms = norms and [norms[number] for number in share.numbers]
        push = ops.PushRows(share.ids, part, share.offsets, own_norms, None, None, first.spec.half)
        writes.append((share.shard, ops.OnTables(share.names, push)))
    for each in several:
        if not each.bad.size and each.shards.accessor is None:
            continue
        name, divide = each.shards.name, each.shards.split
        for shard, at in divide(each.bad):
            writes.append((shard, ops.on_table(name, ops.SkipUpdates(each.bad[at].size))))
        writes += recording(each.shards, each.flat, each.use)
    return writes


def recording(shards: SparseShards, ids: np.ndarray, use: np.ndarray) -> list[ShardWrite]:
    """Return the writes of shows and clicks of ids, ``(2, n)``, if the table keeps them."""
    if shards.accessor is None:
        return []
    return [
        (shard, ops.on_table(shards.name, ops.RecordUse(ids[at], use[0, at], use[1, at])))
        for shard, at in shards.split(ids)
    ]


def _summed(several: Sequence[_Gradients]) -> tuple[np.ndarray, list[int], bool]:
    """Return the sums of each id's gradients, where each embedding's are, and if all are finite."""
    first = several[0]
    bounds = [0, *accumulate([each.found.size for each in several])]
    if len(several) == 1 and first.position is None and not first.rows.flags.writeable:
        return first.rows, bounds, all_finite(first.rows)  # of JAX, which never change
    shards, shape = first.shards, (bounds[-1], first.shards.dim)
    sums = None
    if len(shards.shard_ids) == 1:
        sums = shards.server_client.allocate(shards.shard_ids[0], shape, shards.dtype)
    if sums is None:
        sums = np.empty(shape, shards.dtype)
    if len(several) > 1 and not [each for each in several if each.position is not None]:
        np.concatenate([each.rows for each in several], out=sums)
        return sums, bounds, all_finite(sums)
    finite = True
    for each, (start, stop) in zip(several, pairwise(bounds), strict=True):
        if each.position is None:
            finite = copy_finite(each.rows, sums[start:stop]) and finite
        else:
            finite = add_up_rows(each.rows, each.position, sums[start:stop]) and finite
    return sums, bounds, finite
