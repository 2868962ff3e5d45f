"""Processes that die while a PyTorch module trains: the numbers stay those of torch alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from torch import Tensor

import psnb
from psnb.errors import CheckpointError, ServerLostError
from tests.integration.models import wide_and_deep as wd
from tests.integration.models.torch_wide_deep import assert_as_alone, distributed, step_of

pytestmark = pytest.mark.second_tier(
    "a front door more: test_commit_faults.py, test_replicas.py, test_recovery.py have the kills"
)


def test_a_worker_killed_in_the_middle_of_backward_changes_nothing(
    whole: Client, tmp_path: Path
) -> None:
    killed = wd.KilledOnce(tmp_path)

    def kill_in_backward(loss: Tensor) -> None:
        loss.register_hook(lambda gradient: killed())

    with wd.synchronous(whole) as strategy:
        model = distributed(strategy)
        losses = wd.trained(strategy, step_of(model, kill_in_backward), wd.STEPS)
        assert killed.happened()
        assert_as_alone(losses, model)


def test_a_server_killed_in_a_step_changes_nothing_where_there_are_copies(
    whole: Client, tmp_path: Path
) -> None:
    with wd.synchronous(whole, replicas=1) as strategy:
        model = distributed(strategy)
        victim = strategy.server_addresses[0]
        with wd.ServerKilled(whole, victim, tmp_path) as killed:
            wait = killed.wait
            losses = wd.trained(strategy, step_of(model, lambda loss: wait()), wd.STEPS)
        assert_as_alone(losses, model)


def trained_on(
    strategy: psnb.ParameterServerStrategy, step: Any, data: list[wd.Batch]
) -> list[float]:
    """Train on the workers; return the loss of each round."""
    coordinator = psnb.ClusterCoordinator(strategy)
    remotes = [coordinator.schedule(step, (iter([each]),)) for each in data]
    coordinator.join()
    return np.array(coordinator.fetch(remotes)).reshape(-1, 2).mean(1).tolist()  # type: ignore[no-any-return]


def test_two_servers_killed_at_once_with_replicas_are_reported_and_come_back_from_a_checkpoint(
    whole: Client, tmp_path: Path
) -> None:
    data = wd.batches()
    with wd.synchronous(whole, replicas=1) as strategy:
        model = distributed(strategy)
        step = step_of(model)
        losses = trained_on(strategy, step, data[:40])
        manager = psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), tmp_path)
        with pytest.raises(CheckpointError, match="no checkpoint to recover from"):
            strategy.recover()
        manager.save({"rounds": 20})
        trained_on(strategy, step, data[40:60])
        pids = whole.run(os.getpid, workers=list(strategy.server_addresses))
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(ServerLostError, match=r"strategy\.recover\(\)"):
            trained_on(strategy, step, data[:2])
        assert strategy.recover() == {"rounds": 20}
        losses += trained_on(strategy, step, data[40:])
        assert_as_alone(losses, model)
