"""A strategy whose servers are in this process; it counts what it carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from psnb._src.client.arguments import as_nonfinite
from psnb._src.client.dense_shards import DenseShard, DenseShards
from psnb._src.client.embedding import Embedding
from psnb._src.client.embedding_spec import embedding_spec
from psnb._src.client.model_records import ModelRecord, ModelRecords
from psnb._src.client.requests import Request
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.client.variable import Variable
from psnb._src.placement.layout import ShardId
from psnb._src.protocol.modes import Async, Mode
from psnb._src.server.operations import CreateDense
from psnb._src.server.optimizer import Optimizer
from tests.client.in_process import InProcess


class CopyingInProcess(InProcess):
    """A transport whose answers are copies, as they are between processes."""

    def attempt(
        self, requests: Sequence[Request], seen: dict[ShardId, int] | None = None
    ) -> list[Any]:
        found = super().attempt(requests, seen)
        return [np.array(each) if isinstance(each, np.ndarray) else each for each in found]


if TYPE_CHECKING:
    from psnb import ParameterServerStrategy as _Strategy
else:  # which has a cluster
    _Strategy = object


class InProcessStrategy(_Strategy):
    """Places parameters on servers in this process."""

    def __init__(self, shards: int = 2, mode: Mode | None = None) -> None:
        self.mode = mode or Async()
        self.transport = CopyingInProcess(shards)
        self._parameters: dict[str, Variable | Embedding] = {}
        self._models = ModelRecords(lambda name, record: None)

    @property
    def __psnb_models__(self) -> ModelRecords:
        return self._models

    @property
    def __psnb_shards__(self) -> int:
        return len(self.transport.shards)

    @property
    def parameters(self) -> Mapping[str, Variable | Embedding]:
        return self._parameters

    def variable(  # type: ignore[override]
        self,
        initial_value: ArrayLike,
        name: str | None = None,
        optimizer: Optimizer | None = None,
        nonfinite: str = "refuse",
    ) -> Variable:
        name = name or f"v{len(self._parameters)}"
        value = np.array(initial_value)
        shard = self.transport.shards[len(self._parameters) % len(self.transport.shards)]
        self.transport.call([Request(shard, CreateDense(name, value, optimizer))])
        parts = [DenseShard(shard, name, 0, 0)]
        form = name, value.shape, value.dtype, optimizer
        spread = DenseShards(*form, parts, self.transport, as_nonfinite(nonfinite, name))
        return self._parameters.setdefault(name, Variable(spread))  # type: ignore[return-value]

    def embedding(self, *form: Any, **options: Any) -> Embedding:  # type: ignore[override]
        shards = self.transport.shards
        spec = embedding_spec(len(shards), *form, **options)
        for number, shard in enumerate(shards):
            creation = spec.creation(number, len(shards), spec.optimizer)
            self.transport.call([Request(shard, creation)])
        made = Embedding(SparseShards(spec, shards, self.transport))
        return self._parameters.setdefault(spec.name, made)  # type: ignore[return-value]

    def again(self) -> InProcessStrategy:
        """Return it as another process finds it: with parameters, and no handle of a model."""
        found = InProcessStrategy(mode=self.mode)
        found.transport, found._parameters = self.transport, self._parameters
        for name, record in self.__psnb_models__.all().items():
            found.__psnb_models__.know(name, ModelRecord.unpacked(record.packed()))
        return found

    def calls(self) -> int:
        """Return how many round trips there were since it was asked the last time."""
        found, self.transport.calls = self.transport.calls, 0
        return found
