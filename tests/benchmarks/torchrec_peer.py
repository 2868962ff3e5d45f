"""TorchRec on the wide & deep work of `clicks`: two processes of one core, on the CPU.

``python -m tests.benchmarks.torchrec_peer 512`` prints examples a second, as JSON. Run by an
interpreter that has torchrec and fbgemm-gpu-cpu of the release that fits its torch (1.8 for torch
2.13); see `peers`. TorchRec shards the tables over the processes and trains in step: each round
exchanges ids, rows and gradients through gloo. The optimizers are the same, in the backward pass
for rows. A row of TorchRec has a multiple of four floats: of each wide row it uses the first one.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from tests.benchmarks import clicks

PROCESSES, ROUNDS, RUNS = 2, {512: 50, 4096: 12}, 5
FEATURES = [f"f{number}" for number in range(clicks.FIELDS)]
ROWS = clicks.ROWS // clicks.FIELDS
WIDE = 4


def tables(dim: int) -> EmbeddingBagCollection:
    """Return one table a feature."""
    configs = [
        EmbeddingBagConfig(
            name=f"t{dim}{name}", embedding_dim=dim, num_embeddings=ROWS, feature_names=[name]
        )
        for name in FEATURES
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


class WideDeep(nn.Module):
    """The model."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.wide = tables(clicks.DIM), tables(WIDE)
        inputs = clicks.FIELDS * clicks.DIM + clicks.NUMBERS
        self.network = nn.Sequential(
            *(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()),
            nn.Linear(128, 1),
        )

    def forward(self, ids: KeyedJaggedTensor, numbers: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        hidden = torch.cat([self.deep(ids).values(), numbers], 1)
        wide = self.wide(ids).values()[:, ::WIDE].sum(1)
        found: torch.Tensor = self.network(hidden)[:, 0] + wide
        return found


def distribute() -> DistributedModelParallel:
    """Return the model, sharded over the processes."""
    model = WideDeep()
    own = {"lr": clicks.RATE, "eps": 1e-7}
    for each in (model.deep, model.wide):
        apply_optimizer_in_backward(torch.optim.Adagrad, each.parameters(), own)
    topology = Topology(world_size=PROCESSES, compute_device="cpu")
    sharders: Any = [EmbeddingBagCollectionSharder()]
    plan = EmbeddingShardingPlanner(topology=topology).collective_plan(
        model, sharders, distributed.GroupMember.WORLD
    )
    return DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)


def train(rank: int, port: int, size: int) -> None:
    """Train in one of the processes, and print the rate in the first one."""
    torch.set_num_threads(1)
    os.environ |= {"LOCAL_WORLD_SIZE": str(PROCESSES), "LOCAL_RANK": str(rank)}
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=PROCESSES
    )
    model, data = distribute(), clicks.batches(size, rank)
    dense = [each for name, each in model.named_parameters() if "network" in name]
    optimizer = torch.optim.Adagrad(dense, clicks.RATE, initial_accumulator_value=0.1, eps=1e-7)
    lengths = torch.ones(clicks.FIELDS * size, dtype=torch.int32)
    starts = np.arange(clicks.FIELDS, dtype=np.int32) * ROWS

    def step() -> None:
        ids, numbers, labels = next(data)
        # Each feature has a table of its own, whose ids begin with 0.
        own = torch.from_numpy(np.minimum(ids - starts, ROWS - 1).T.reshape(-1).astype(np.int64))
        jagged = KeyedJaggedTensor(FEATURES, own, lengths=lengths)
        optimizer.zero_grad()
        logits = model(jagged, torch.from_numpy(numbers))
        loss = functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(labels))
        loss.backward()
        optimizer.step()

    rates = []
    for _ in range(1 + RUNS):  # the first one makes what it needs
        distributed.barrier()
        begin = time.perf_counter()
        for _ in range(ROUNDS[size]):
            step()
        distributed.barrier()
        rates.append(PROCESSES * size * ROUNDS[size] / (time.perf_counter() - begin))
    if rank == 0:
        print(json.dumps(statistics.median(rates[1:])))
    distributed.destroy_process_group()


def main() -> None:
    """Print the examples a second at the batch size that is given."""
    port = 20_000 + os.getpid() % 10_000
    multiprocessing.spawn(train, (port, int(sys.argv[1])), PROCESSES)


if __name__ == "__main__":
    main()
