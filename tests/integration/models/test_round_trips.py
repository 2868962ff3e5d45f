"""A step asks each server once and tells it once: counted on the wire, for PyTorch.

What steps ask of servers is in each framework's own tests; that it is one message, here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import psnb
import psnb.torch
from psnb._src.client.requests import RequestRound
from psnb._src.strategy.strategy import core_of
from tests.integration.models import torch_wide_deep
from tests.integration.models import wide_and_deep as wd

STEPS = 5
ASKED, TOLD, APPLIED = "asked", "told", "applied"

Messages = dict[str, Counter[str]]
"""For each server, how many messages of each kind it got."""


class Wire:
    """Counts what workers send to servers; all of them are in this process.

    Parameters
    ----------
    strategy : ParameterServerStrategy
        What its notebook sends is not counted.
    """

    def __init__(self, strategy: psnb.ParameterServerStrategy) -> None:
        self._notebook = core_of(strategy).server_client
        self._log: deque[tuple[str, set[str]]] = deque()
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Wire:
        message, log, notebook = RequestRound.message, self._log, self._notebook

        def noted(sent: RequestRound) -> Any:
            key, operations = message(sent)
            if getattr(sent._again, "__self__", None) is not notebook:
                inner = [getattr(each, "operation", each) for each in operations]
                log.append((sent.server.address, {type(each).__name__ for each in inner}))
            return key, operations

        self._patch.setattr(RequestRound, "message", noted)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def since(self) -> Messages:
        """Return the messages since it was asked the last time."""
        found: Messages = {}
        while self._log:
            server, operations = self._log.popleft()
            found.setdefault(server, Counter())[_kind(operations)] += 1
        return found


def _kind(operations: set[str]) -> str:
    assert operations
    if operations <= {"PreparePart", "CommitParts"}:
        return TOLD
    return APPLIED if operations == {"ApplyCommit"} else ASKED


def trained(
    strategy: psnb.ParameterServerStrategy, step: Callable[[Iterator[Any]], Any]
) -> Messages:
    """Return the messages of some steps on one worker, after others."""
    coordinator = psnb.ClusterCoordinator(strategy)
    batches = wd.batches(STEPS)
    with Wire(strategy) as wire:
        for batch in batches[:2]:
            coordinator.schedule(step, (iter([batch]),), worker=0)
        coordinator.join()
        wire.since()
        for batch in batches[2 : 2 + STEPS]:
            coordinator.schedule(step, (iter([batch]),), worker=0)
        coordinator.join()
        return wire.since()


def test_a_step_of_torch_asks_each_server_once_and_tells_it_once(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    model = torch_wide_deep.distributed(strategy)
    found = trained(strategy, torch_wide_deep.step_of(model))
    assert len(found) == 2
    for messages in found.values():
        # With two servers, both have a step's gradients before either applies them.
        assert messages == {ASKED: STEPS, TOLD: STEPS, APPLIED: STEPS}


class ComputesIds(nn.Module):
    """Looks up ids that are not inputs, in two tables one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Embedding(wd.ROWS, 2) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        return (self.first((ids + 1) % wd.ROWS) * self.second((ids + 2) % wd.ROWS)).sum()


def test_ids_that_a_module_computes_are_asked_for_table_by_table(
    strategy: psnb.ParameterServerStrategy,
) -> None:
    sgd = psnb.SGD(0.01)
    model = psnb.torch.distribute(ComputesIds(), strategy, sparse=sgd, dense=sgd)

    def step(iterator: Iterator[wd.Batch]) -> None:
        with model.step():
            model(torch.from_numpy(next(iterator)["ids"])).backward()

    for messages in trained(strategy, step).values():
        assert messages == {ASKED: 2 * STEPS, TOLD: STEPS, APPLIED: STEPS}
