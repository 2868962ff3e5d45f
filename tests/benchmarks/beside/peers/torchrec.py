"""TorchRec on the CPU: two processes of one core, tables sharded over both, in step through gloo.

Each round exchanges ids, rows and gradients; rows are updated in the backward pass. A row of
TorchRec has a multiple of four floats: of each wide row the first one is used.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn import functional
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from tests.benchmarks.beside import criteo
from tests.benchmarks.beside.peers.torch import perceptron
from tests.benchmarks.beside.two import Step, Two

FEATURES = [f"f{field}" for field in range(criteo.FIELDS)]
WIDE = 4


def tables(dim: int) -> EmbeddingBagCollection:
    """Return one table a feature."""
    configs = [
        EmbeddingBagConfig(
            name=f"t{dim}{name}",
            embedding_dim=dim,
            num_embeddings=rows,
            feature_names=[name],
            init_fn=nn.init.zeros_,
        )
        for name, rows in zip(FEATURES, criteo.CARDINALITIES, strict=True)
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


class WideDeep(nn.Module):
    """The model."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.wide = tables(criteo.DIM), tables(WIDE)
        self.network = perceptron()

    def forward(self, ids: KeyedJaggedTensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        hidden = torch.cat([self.deep(ids).values(), numbers], 1)
        wide = self.wide(ids).values()[:, ::WIDE].sum(1)
        found: torch.Tensor = self.network(hidden)[:, 0] + wide
        return found


def distribute() -> DistributedModelParallel:
    """Return the model, sharded over the processes."""
    model = WideDeep()
    own = {"lr": criteo.RATE, "eps": criteo.EPSILON}
    for each in (model.deep, model.wide):
        apply_optimizer_in_backward(torch.optim.Adagrad, each.parameters(), own)
    topology = Topology(world_size=2, compute_device="cpu")
    sharders: Any = [EmbeddingBagCollectionSharder()]
    plan = EmbeddingShardingPlanner(topology=topology).collective_plan(
        model, sharders, distributed.GroupMember.WORLD
    )
    return DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)


def make(port: int, rank: int) -> Step:
    """Return the step of a process."""
    torch.set_num_threads(1)
    os.environ |= {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    model = distribute()
    dense = [each for name, each in model.named_parameters() if "network" in name]
    optimizer = torch.optim.Adagrad(
        dense, criteo.RATE, initial_accumulator_value=criteo.ACCUMULATOR, eps=criteo.EPSILON
    )
    data = {size: criteo.batches(size, rank) for size in criteo.SIZES}

    def step(size: int) -> float:
        ids, numbers, labels = next(data[size])
        jagged = KeyedJaggedTensor(
            FEATURES,
            torch.from_numpy(np.ascontiguousarray(ids.T).reshape(-1).astype(np.int64)),
            lengths=torch.ones(criteo.FIELDS * size, dtype=torch.int32),
        )
        optimizer.zero_grad()
        logits = model(jagged, torch.from_numpy(numbers))
        loss = functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


if __name__ == "__main__":
    from tests.benchmarks.beside.peers import torchrec as own

    Two(partial(own.make, 20_000 + os.getpid() % 10_000)).serve("torchrec")
