"""A model of which checkpoints of what changed are saved, and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

import psnb
from psnb._src.checkpoint.folders import store_at
from psnb._src.checkpoint.loading import Checkpoint
from psnb._src.checkpoint.manager import FolderManager
from psnb._src.checkpoint.manifest import Manifest
from psnb._src.client.arguments import NonFinite
from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.embedding import Embedding
from psnb._src.client.embedding_spec import EmbeddingSpec
from psnb._src.client.handles import shards_of
from psnb._src.client.requests import Request
from psnb._src.client.snapshots import TableSnapshots
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.server.operations import CreateSparse
from psnb._src.server.optimizers import Adagrad
from psnb._src.server.tables.initializers import Uniform
from psnb._src.utils.paths import AnyPath
from tests.checkpoint.saved import released
from tests.client.in_process import DIM, InProcess, variable

State = dict[str, np.ndarray]

ROWS, SIZE = 10, (3, 2)


class Model:
    """Variables of which one never changes, and tables of three kinds, as a strategy has them."""

    def __init__(self, shards: int = 2) -> None:
        self.servers = InProcess(3)
        self.still = self._variable("still", shards)
        self.w = self._variable("w", shards)
        use: dict[str, Any] = {"admission": psnb.CountFilter(2), "accessor": psnb.CtrAccessor()}
        self.fixed = self._table("fixed", ROWS, shards)
        self.any = self._table("any", None, shards)
        self.waiting = self._table("waiting", None, shards, **use, storage="disk")
        self.meanwhile: Callable[[], object] = bool

    def _variable(self, name: str, shards: int) -> psnb.Variable:
        return variable(np.ones(SIZE, np.float32), shards, Adagrad(0.1), self.servers, name)

    def _table(self, name: str, rows: int | None, shards: int, **more: Any) -> Embedding:
        spec = EmbeddingSpec(
            name, DIM, rows, np.dtype(np.float32), Adagrad(0.1), NonFinite.REFUSE, **more
        )
        self._create(spec, shards)
        return Embedding(SparseShards(spec, self.servers.shards[:shards], self.servers))

    def _create(self, spec: EmbeddingSpec, shards: int) -> None:
        for index in range(shards):
            creation = CreateSparse(
                *(spec.name, DIM, spec.rows, index, shards, "float32", Uniform(), 3),
                optimizer=spec.optimizer,
                admission=spec.admission,
                accessor=spec.accessor,
                storage=spec.storage,
                eviction=spec.eviction and spec.eviction.of_one(shards),
            )
            self.servers.call([Request(self.servers.shards[index], creation)])

    @property
    def tables(self) -> tuple[Embedding, ...]:
        return self.fixed, self.any, self.waiting

    def parameters(self) -> dict[str, DenseShards | SparseShards]:
        every = (self.still, self.w, *self.tables)
        return {each.name: shards_of(each) for each in every}

    def prepare_snapshots(self) -> None:
        """Nobody waits for memory here."""

    def snapshots(self, since: Mapping[tuple[str, int], str] | None = None) -> TableSnapshots:
        taken = TableSnapshots(self.servers, self.parameters(), lambda: self.servers.servers, since)
        self.meanwhile()
        return taken

    def moment(self) -> AbstractContextManager[None]:
        """Nobody else saves or restores here."""
        return nullcontext()

    def settled(self) -> bool:
        """No server takes the place of another here."""
        return False

    def note_checkpoint(self, path: AnyPath) -> None:
        """Nobody recovers here."""

    def push(self, *ids: int) -> None:
        self.w.push(np.full(SIZE, 0.5, np.float32))
        for table in self.tables:
            table.push(ids, np.ones((len(ids), DIM), np.float32))

    def move(self, table: Embedding) -> None:
        """Have a table on servers that know nothing of what has changed before."""
        shards = shards_of(table)
        states = shards.shard_states()
        self._create(shards.spec, len(states))
        shards.load_states(states)

    def content(self) -> dict[str, State]:
        return {name: joined(each.shard_states()) for name, each in self.parameters().items()}


def joined(states: list[State]) -> State:
    """Return what is in all shards, the same for any number of them."""
    whole = {key: np.concatenate([state[key] for state in states]) for key in states[0]}
    whole["step"] = whole["step"].max(keepdims=True)
    for ids in ("ids", "waiting.ids"):
        if ids in whole:
            order = np.argsort(whole[ids])
            waits = ids.startswith("waiting.")
            of = [k for k in whole if k != "step" and k.startswith("waiting.") == waits]
            whole |= {key: whole[key][order] for key in of}
    return whole


def assert_same(found: dict[str, State], expected: dict[str, State]) -> None:
    assert found.keys() == expected.keys()
    for name, state in expected.items():
        assert found[name].keys() == state.keys()
        for key, array in state.items():
            np.testing.assert_array_equal(found[name][key], array, err_msg=f"{key} of {name}")


def restored(path: AnyPath, shards: int = 1) -> dict[str, State]:
    model = Model(shards)
    Checkpoint(path, model.parameters()).load()
    return model.content()


def manifest(path: AnyPath) -> Manifest:
    with released(store_at(path.parent).use(path)) as stored:
        return stored.manifest()


def own_parts(path: AnyPath) -> list[str]:
    """Return the parameters of the parts that were written for a checkpoint."""
    said = manifest(path)
    return [
        name
        for name, each in said.entries.items()
        for shard in each.shards
        for part in shard
        if said.own(part.file)
    ]


def manager_of(
    model: Model, address: str | Path, full_every: int = 4, keep: int = 9, **more: Any
) -> FolderManager:
    return FolderManager(model, address, keep, full_every=full_every, **more)


def forget_memory() -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


MEMORY = "memory://checkpoints/run"
