"""ParameterMarks: all parameters as they were at one moment, in the memory of their servers.

They are loaded from there as they are from a checkpoint (`psnb._src.client.whole_tables`), but each
shard from the very server that has it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

import numpy as np

from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.requests import Request
from psnb._src.client.server_client import ServerClient
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.whole_tables import (
    SavedPart,
    TableLoad,
    load_tables,
    loading,
    others_waiting,
)
from psnb._src.placement.layout import ShardId
from psnb._src.server import operations as ops
from psnb._src.server.tables.checks import Form
from psnb._src.server.tables.saved_files import FilePart
from psnb.errors import StaleMarkError


class ParameterMarks:
    """All tables at one moment; taken when it is made, while no closure runs.

    One thread's.

    Parameters
    ----------
    server_client : ServerClient
        The client of the servers.
    shards : sequence of ShardId
        All shards of the strategy.
    parameters : mapping of str to DenseShards or SparseShards
        All parameters, by name.
    """

    def __init__(
        self,
        server_client: ServerClient,
        shards: Sequence[ShardId],
        parameters: Mapping[str, DenseShards | SparseShards],
    ) -> None:
        self._client, self._shards = server_client, tuple(shards)
        self._parameters, self._name = dict(parameters), uuid.uuid4().hex
        try:
            with others_waiting(server_client, self._shards):  # whose commits are in it wholly
                sets = [Request(shard, ops.SetMark(self._name)) for shard in self._shards]
                self._moments = server_client.call(sets)
        except BaseException:  # an interrupt, too: some may have it
            server_client.attempt(self.drops())
            raise

    def loading(self, parameters: Mapping[str, DenseShards | SparseShards]) -> Iterator[None]:
        """Load all of it; yields once, before anything is changed.

        Parameters
        ----------
        parameters : mapping of str to DenseShards or SparseShards
            All that there are now: one that was made since stays as it is.

        Raises
        ------
        StaleMarkError
            If a server does not have it any more, or a parameter is another one. Raised later than
            that, it means that a part was loaded.
        ServerMemoryError
            If a server has no memory for it; nothing was changed.
        ServerLostError
            If a server is gone.
        """
        for name, each in self._parameters.items():
            if name not in parameters or parameters[name].tables != each.tables:
                raise StaleMarkError(
                    f"parameter {name!r} was dropped or made again since the mark: nothing was "
                    "changed. Go back to a checkpoint"
                )
        asked = [
            Request(shard, ops.DescribeMark(self._name, moment))
            for shard, moment in zip(self._shards, self._moments, strict=True)
        ]
        found = dict(zip(self._shards, self._client.call(asked), strict=True))
        loads = [
            _load(shard, table, found[shard], 0 if isinstance(each, DenseShards) else None)
            for each in self._parameters.values()
            for shard, table in each.tables
        ]
        with loading(self._client, loads):
            yield
            load_tables(self._client, loads)

    def drops(self) -> list[Request]:
        """Return the requests that have servers forget it; they may be repeated."""
        return [Request(each, ops.DropMark(self._name)) for each in self._shards]


def _load(shard: ShardId, table: str, mark: ops.DescribedMark, at: int | None) -> TableLoad:
    marked = mark.tables[table]
    there = FilePart(table, 0, "", {})  # one a table
    part = SavedPart(_Elsewhere(), marked.rows, marked.removed, mark.key, there)
    total = marked.rows if marked.whole else 0
    return TableLoad(
        (shard, table),
        [(part, 0, marked.rows, at)],
        marked.row_nbytes,
        marked.tail,
        rows=total,
        clears=marked.whole,
        beside=marked.beside,
    )


class _Elsewhere:
    """What only a server has, as `SavedArrays`: it is asked for when that server has it no more."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """See `SavedArrays`."""
        self._refuse()

    def read(
        self, name: str, start: int = 0, stop: int | None = None, *, flat: bool = False
    ) -> np.ndarray:
        """See `SavedArrays`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StaleMarkError(
            "a server was lost, or has left, while parameters went back to a mark that it had"
        )
