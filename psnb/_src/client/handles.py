"""The user's parameters (`Variable`, `Embedding`), and `shards_of`: the internals of one."""

from __future__ import annotations

from typing import TypeAlias, overload

from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.embedding import Embedding
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.variable import Variable

Handle: TypeAlias = Variable | Embedding


@overload
def shards_of(handle: Variable) -> DenseShards: ...


@overload
def shards_of(handle: Embedding) -> SparseShards: ...


def shards_of(handle: Handle) -> DenseShards | SparseShards:
    """Return how a parameter is spread over servers."""
    return handle._shards
