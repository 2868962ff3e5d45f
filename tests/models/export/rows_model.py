"""A model of one table's rows alone; without pytest and JAX, which processes would import."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from psnb._src.models.export.exported import Exported, RowChunk, TableSource
from psnb._src.models.export.manifest import DenseSources, Fetch, ModelFeed
from psnb._src.server.tables.admission import Always
from psnb._src.server.tables.initializers import Normal

GRAPH = {
    "inputs": [["feed", "ids"]],
    "nodes": [["lookup", [{"node": 0}, "t"], {}]],
    "outputs": [{"node": 1}],
}
"""A program that returns the rows of ids: chunks of a model without a framework's tracing."""


class Model:
    """Rows of one table by id."""

    def __init__(self, *chunks: RowChunk, rows: int | None = None, **options: Any) -> None:
        self.chunks, self.rows = chunks, rows
        self.options = {
            "padding_idx": None,
            "initializer": Normal(stddev=0.1),
            "admission": Always(),
            "seed": 2**64 - 3,
            "dtype": np.dtype(np.float32),
            **options,
        }

    def to_export(self, example: Any) -> Exported:
        scored = bool(self.chunks) and self.chunks[0].scores is not None
        table = TableSource(
            "t", 3, rows=self.rows, scored=scored, chunks=self._chunks, **self.options
        )
        return Exported(
            "torch",
            [ModelFeed("ids", "int64", (None, 2))],
            [Fetch("output", "float32", (None, 2, 3))],
            0,
            {},
            {"t": table},
            {"program.torch.json": json.dumps(GRAPH).encode()},
            {},
            {},
            DenseSources({}, {}),
        )

    def _chunks(self) -> Iterator[RowChunk]:
        yield from self.chunks
