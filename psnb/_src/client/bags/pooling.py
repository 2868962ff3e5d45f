"""Lookups and pushes of bags whose rows are summed on the servers, where that is fewer bytes.

Each shard sums the rows that it has, for the bags that have some there, and gets the gradients of
those bags. `_sums_are_fewer_bytes` decides; otherwise, rows travel as those of other ids do
(`psnb._src.client.fused`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from psnb._src.client.bags.combining import Bags, Combiner
from psnb._src.client.fused import pushing_rows, reading_rows, recording
from psnb._src.client.sparse_shards import SparseShards, share
from psnb._src.client.updates import PendingRead, ShardWrite, read_request
from psnb._src.placement.layout import ShardId
from psnb._src.server.kernels import norm
from psnb._src.server.tables import operations as ops
from psnb._src.transport.message import as_float32


class _Share(NamedTuple):
    """What one shard has of bags.

    Attributes
    ----------
    shard : ShardId
        The shard.
    ids : numpy.ndarray
        Its ids.
    members : BagMembers
        Which of these are in the bags that have some.
    bags : numpy.ndarray
        Which bags these are, ascending.
    """

    shard: ShardId
    ids: np.ndarray
    members: ops.BagMembers
    bags: np.ndarray


def _shares(shards: SparseShards, bags: Bags) -> Iterator[_Share]:
    """Yield what each shard has."""
    parts = shards.split(bags.ids)
    divided = bags.divided([at for _, at in parts])
    for (shard, at), (members, own) in zip(parts, divided, strict=True):
        yield _Share(shard, share(bags.ids, at), members, own)


def fetch_bags(shards: SparseShards, bags: Bags, *, training: bool) -> np.ndarray:
    """Return the row of each bag, ``(bags, dim)``."""
    if not _sums_are_fewer_bytes(shards, bags, shards.spec.dtype.itemsize):
        ((_, reading),) = reading_rows([(shards, bags.ids)], training=training)
        (rows,) = reading.fetch()
        return bags.combine(rows)
    shares, half = [*_shares(shards, bags)], shards.spec.half
    requests = [
        read_request(
            each.shard,
            shards.name,
            ops.LookUpRows(each.ids, None, training, each.members, half),
        )
        for each in shares
    ]
    out = np.zeros((bags.count, shards.dim), shards.dtype)
    answers = PendingRead(shards.server_client, requests, list).fetch()
    for each, sums in zip(shares, answers, strict=True):
        out[each.bags] += as_float32(sums)  # each bag is there once
    return bags.scaled(out)


def pushing_bags(
    shards: SparseShards,
    bags: Bags,
    gradients: np.ndarray,
    use: np.ndarray,
    rows: np.ndarray | None,
) -> list[ShardWrite]:
    """Return the writes of a push, by shard.

    ``use`` are shows and clicks of the ids, if the table keeps them; ``rows`` as for `Bags.spread`.
    """
    # What may be not finite is summed here, where each id's sum can be refused or left out.
    fewer = _sums_are_fewer_bytes(shards, bags, shards.dtype.itemsize)
    if not (fewer and bags.give_finite(gradients)):
        shows, clicks = use if use.size else (None, None)
        return pushing_rows([(shards, bags.ids, bags.spread(gradients, rows), shows, clicks)])
    norms = None
    if shards.sends_norm:  # of all sums, of which no server has all
        norms = [norm(bags.spread(gradients, rows))]
    scaled = bags.scaled(gradients)
    writes: list[ShardWrite] = []
    for each in _shares(shards, bags):
        shape = (each.bags.size, shards.dim)
        part = shards.server_client.allocate(each.shard, shape, shards.dtype)
        part = scaled.take(each.bags, axis=0, out=part, mode="clip")
        part.flags.writeable = False  # it does not change any more
        push = ops.PushRows(each.ids, part, None, norms, None, each.members, shards.spec.half)
        writes.append((each.shard, ops.on_table(shards.name, push)))
    return [*writes, *recording(shards, bags.ids, use)]


def _sums_are_fewer_bytes(shards: SparseShards, bags: Bags, itemsize: int) -> bool:
    """Return whether the sums of bags, or their gradients, are fewer bytes than those of ids.

    The ids travel in either case. With sums, so do the members; and each shard has a sum of each
    bag that has one of its ids. Of rows, a number takes ``itemsize`` bytes unless they are halved;
    sums are never stored, so never in half width.
    """
    if bags.combiner is Combiner.MAX:  # a gradient goes to one of the rows, which must be known
        return False
    of, count = bags.members, len(shards.shard_ids)
    row = shards.dim * (2 if shards.spec.half else itemsize)
    sum_ = shards.dim * (2 if shards.spec.half else shards.dtype.itemsize)
    # How many of the shards have some of a bag, on average: ids are as good as random.
    expected = count * (1 - (1 - 1 / count) ** np.diff(of.bounds)).sum()
    sums = expected * (sum_ + of.bounds.itemsize) + of.position.nbytes + of.factors.nbytes
    return bool(sums < bags.ids.size * row)
