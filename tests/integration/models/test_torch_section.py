"""Pipelines of PyTorch models, on a real cluster."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from distributed import Client

import psnb
import psnb.torch
from tests.models.torch.test_module_stage import First, Last

MICRO, MICROBATCHES, UPDATES, RATE = 8, 3, 4, 0.5


def examples() -> dict[str, np.ndarray]:
    random, count = np.random.default_rng(0), MICRO * MICROBATCHES * UPDATES
    return {
        "ids": random.integers(9, size=(count, 2)),
        "x": random.normal(size=(count, 3)).astype(np.float32),
        "y": random.integers(2, size=count).astype(np.float32),
        "weight": np.ones(count, np.int64),
    }


def test_stages_in_rounds_equal_the_undivided_model(cluster: Client) -> None:
    torch.manual_seed(0)
    parts = First(), Last()
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync(MICROBATCHES * 2 * 2)) as strategy:
        models = [
            psnb.torch.distribute(
                part, strategy, sparse=psnb.SGD(RATE), dense=psnb.SGD(RATE), name=name
            )
            for part, name in zip(parts, ("first", "last"), strict=True)
        ]
        section = psnb.Section([psnb.torch.stage(each) for each in models], MICROBATCHES)
        trainer = psnb.Trainer(psnb.ClusterCoordinator(strategy), worker=section, progress=False)
        data = psnb.data.Dataset.from_tensor_slices(examples()).batch(MICRO)
        history = trainer.train_from_dataset(data)
        found = [each.state_dict() for each in models]
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], RATE)
    losses, size = [], MICRO * MICROBATCHES
    for start in range(0, size * UPDATES, size):
        batch = {name: each[start : start + size] for name, each in examples().items()}
        optimizer.zero_grad()
        loss = parts[1](parts[0](psnb.torch.as_torch(batch)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert history["loss"] == [pytest.approx(np.mean(losses), rel=1e-5)]
    for part, state in zip(parts, found, strict=True):
        for name, value in part.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-5)
