"""A run that is followed: parameters on servers in this process, their checkpoints, a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import psnb
from psnb._src.checkpoint.manager import FolderManager
from psnb._src.client.dense_shards import DenseShards
from psnb._src.client.embedding_spec import EmbeddingSpec
from psnb._src.client.handles import shards_of
from psnb._src.client.requests import Request
from psnb._src.client.snapshots import TableSnapshots
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.models.export.exported import Exported
from psnb._src.models.export.loaded import LoadedModel
from psnb._src.models.export.manifest import DenseSources, Fetch, ModelFeed
from psnb._src.models.table_rows import table_source
from psnb._src.server.operations import CreateSparse
from psnb._src.server.optimizers import Adagrad
from psnb._src.utils.paths import AnyPath
from tests.checkpoint.test_deltas import ROWS, Model
from tests.client.in_process import DIM, variable
from tests.models.placing import InProcessStrategy

GRAPH = {
    "inputs": [["feed", "ids"], ["feed", "fixed"], ["dense", "bias"]],
    "nodes": [
        ["lookup", [{"node": 0}, "any"], {}],
        ["lookup", [{"node": 0}, "waiting"], {}],
        ["lookup", [{"node": 1}, "fixed"], {}],
        ["aten.add.Tensor", [{"node": 3}, {"node": 4}], {}],
        ["aten.add.Tensor", [{"node": 6}, {"node": 5}], {}],
        ["aten.add.Tensor", [{"node": 7}, {"node": 2}], {}],
    ],
    "outputs": [{"node": 8}],
}
"""The sum of three rows and a dense parameter."""

IDS = np.array([*range(12), 50, 99, -1])
BATCH = {"ids": IDS, "fixed": np.abs(IDS) % ROWS}


class Run(Model):
    """The parameters; they can be exported."""

    def __init__(self, shards: int = 2) -> None:
        super().__init__(shards)
        start = np.arange(5, dtype=np.float32)
        self.flat = variable(start, shards, Adagrad(0.1), self.servers, "flat")
        self.push(*range(ROWS))
        self.push(*range(ROWS))

    def _create(self, spec: EmbeddingSpec, shards: int) -> None:
        # With the seed that the table has for clients, too, so they agree on rows of new ids.
        for index in range(shards):
            creation = CreateSparse(
                *(spec.name, DIM, spec.rows, index, shards, "float32", spec.initializer, spec.seed),
                optimizer=spec.optimizer,
                admission=spec.admission,
                accessor=spec.accessor,
            )
            self.servers.call([Request(self.servers.shards[index], creation)])

    def parameters(self) -> dict[str, DenseShards | SparseShards]:
        return {**super().parameters(), "flat": shards_of(self.flat)}

    def push(self, *ids: int) -> None:
        super().push(*ids)
        if hasattr(self, "flat"):
            self.flat.push(np.full(5, len(ids), np.float32))

    def to_export(self, example: Any) -> Exported:
        return Exported(
            "torch",
            [ModelFeed("ids", "int64", (None,)), ModelFeed("fixed", "int64", (None,))],
            [Fetch("output", "float32", (None, DIM))],
            0,
            {"bias": self.bias},
            {table.name: table_source(table) for table in self.tables},
            {"program.torch.json": json.dumps(GRAPH).encode()},
            {},
            {},
            DenseSources({"flat": (5, "float32")}, {"bias": ("flat", 2)}),
        )

    @property
    def bias(self) -> np.ndarray:
        return self.flat.read()[2 : 2 + DIM]

    def expected(self) -> np.ndarray:
        """Return what the model is to predict now."""
        ids, fixed = BATCH.values()
        rows = [each.lookup(ids, training=False) for each in (self.any, self.waiting)]
        return rows[0] + rows[1] + self.fixed.lookup(fixed, training=False) + self.bias

    def run(self) -> dict[str, Any]:
        """Return what a coordinator adds to checkpoints."""
        recipes = {name: each.recipe() for name, each in self.parameters().items()}
        return {"recipes": recipes, "closures": 7}

    def manager(self, address: str | Path, keep: int = 9, **more: Any) -> FolderManager:
        return FolderManager(self, address, keep, full_every=4, run=self.run, **more)

    def model(self, folder: Path, manager: FolderManager, **options: Any) -> LoadedModel:
        """Export it, and load that."""
        return psnb.load_model(psnb.export(folder, self, follow=manager, **options))


def assert_predicts(model: LoadedModel, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(model.predict(BATCH), expected)


class _Saved:
    """A strategy in this process, as managers take one."""

    def __init__(self, strategy: InProcessStrategy) -> None:
        self._strategy = strategy

    def parameters(self) -> dict[str, DenseShards | SparseShards]:
        return {name: shards_of(each) for name, each in self._strategy.parameters.items()}

    def prepare_snapshots(self) -> None:
        """Nobody waits for memory here."""

    def snapshots(self, since: Mapping[tuple[str, int], str] | None = None) -> TableSnapshots:
        servers = self._strategy.transport
        return TableSnapshots(servers, self.parameters(), lambda: servers.servers, since)

    def moment(self) -> AbstractContextManager[None]:
        """Nobody else saves or restores here."""
        return nullcontext()

    def settled(self) -> bool:
        """No server takes the place of another here."""
        return False

    def note_checkpoint(self, path: AnyPath) -> None:
        """Nobody recovers here."""


def manager_of(strategy: InProcessStrategy, folder: Path) -> FolderManager:
    """Return a manager that saves what is on servers in this process."""
    return FolderManager(_Saved(strategy), folder, 9, full_every=4)
