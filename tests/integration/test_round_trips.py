"""A step asks each server once and tells it once: counted on the wire, for each framework."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from distributed import Client
from torch import Tensor, nn

import psnb
import psnb.jax
import psnb.keras
import psnb.torch
from tests.integration import test_jax_models, test_keras_models, test_torch_models
from tests.integration import wide_and_deep as wd

pytestmark = [
    pytest.mark.slow,
    # Of Keras itself, with numpy 2 and without 64-bit integers.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]

STEPS = 5
ASKED, TOLD, APPLIED = "asked", "told", "applied"

Messages = dict[str, Counter[str]]
"""For each server, how many messages of each kind it got."""


class Wire:
    """Counts what workers send to servers.

    Parameters
    ----------
    client : Client
        Of the cluster whose workers are counted.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def __enter__(self) -> Wire:
        self._client.run(_record)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.run(_forget)

    def since(self) -> Messages:
        """Return the messages since it was asked the last time."""
        found: Messages = {}
        for log in self._client.run(_taken).values():
            for server, operations in log:
                found.setdefault(server, Counter())[_kind(operations)] += 1
        return found


def _record() -> None:
    from psnb._src.parameters import comm_server_client

    kind, log = comm_server_client._RequestRound, []
    kind.plain, kind.log = kind.message, log

    def message(self: Any) -> Any:
        key, operations = kind.plain(self)
        inner = [getattr(each, "operation", each) for each in operations]
        log.append((self.server.address, {type(each).__name__ for each in inner}))
        return key, operations

    kind.message = message


def _taken() -> list[tuple[str, set[str]]]:
    from psnb._src.parameters import comm_server_client

    log = comm_server_client._RequestRound.log
    found = log[:]
    log.clear()
    return found


def _forget() -> None:
    from psnb._src.parameters import comm_server_client

    kind = comm_server_client._RequestRound
    kind.message = kind.plain
    del kind.plain, kind.log


def _kind(operations: set[str]) -> str:
    assert operations
    if operations <= {"PreparePart", "CommitParts"}:
        return TOLD
    return APPLIED if operations == {"ApplyCommit"} else ASKED


def trained(
    client: Client,
    strategy: psnb.ParameterServerStrategy,
    step: Callable[[Iterator[Any]], Any],
) -> Messages:
    """Return the messages of some steps on one worker, after others."""
    coordinator = psnb.ClusterCoordinator(strategy)
    batches = wd.batches(STEPS)
    with Wire(client) as wire:
        for batch in batches[:2]:
            coordinator.schedule(step, (iter([batch]),), worker=0)
        coordinator.join()
        wire.since()
        for batch in batches[2 : 2 + STEPS]:
            coordinator.schedule(step, (iter([batch]),), worker=0)
        coordinator.join()
        return wire.since()


def assert_one_round_trip(found: Messages, steps: int = STEPS) -> None:
    assert len(found) == 2
    for messages in found.values():
        # With two servers, both have a step's gradients before either applies them.
        assert messages == {ASKED: steps, TOLD: steps, APPLIED: steps}


def test_a_step_of_jax_asks_each_server_once_and_tells_it_once(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        step = test_jax_models.step_of(strategy, test_jax_models.placed(strategy))
        assert_one_round_trip(trained(whole, strategy, step))


def test_a_step_of_torch_asks_each_server_once_and_tells_it_once(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        model = test_torch_models.distributed(strategy)
        assert_one_round_trip(trained(whole, strategy, test_torch_models.step_of(model)))


class ComputesIds(nn.Module):
    """Looks up ids that are no inputs, in two tables one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Embedding(wd.ROWS, 2) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        return (self.first((ids + 1) % wd.ROWS) * self.second((ids + 2) % wd.ROWS)).sum()


def test_ids_that_a_module_computes_are_asked_for_table_by_table(whole: Client) -> None:
    with psnb.ParameterServerStrategy(whole) as strategy:
        sgd = psnb.SGD(0.01)
        model = psnb.torch.distribute(ComputesIds(), strategy, sparse=sgd, dense=sgd)

        def step(iterator: Iterator[wd.Batch]) -> None:
            with model.step():
                model(torch.from_numpy(next(iterator)["ids"])).backward()

        for messages in trained(whole, strategy, step).values():
            assert messages == {ASKED: 2 * STEPS, TOLD: STEPS, APPLIED: STEPS}


def test_a_step_of_keras_asks_each_server_once_and_tells_it_once(whole: Client) -> None:
    x, y = test_keras_models.data(STEPS)
    with psnb.ParameterServerStrategy(whole) as strategy, Wire(whole) as wire:
        model = psnb.keras.distribute(test_keras_models.model(), strategy, sparse=psnb.SGD(0.1))
        model.compile("sgd", "binary_crossentropy")
        model.fit(x, y, batch_size=wd.HALF, verbose=0)
        wire.since()
        model.fit(x, y, batch_size=wd.HALF, verbose=0)
        found = wire.since()
    assert_one_round_trip(found, 2 * STEPS)
