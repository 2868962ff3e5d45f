"""Synchronous updates on a real cluster: what one process gives, to rounding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import psnb
from psnb.errors import ConfigurationError
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import Steps, wait_for_file

ROUNDS, CLOSURES, BATCH = 5, 4, 8
ROWS, FEATURES, CLIPNORM = 40, 6, 0.5
TYPES = pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
Parameters = dict[str, np.ndarray]


def batches(dtype: str) -> list[Batch]:
    rng = np.random.default_rng(0)
    return [
        (
            rng.normal(size=(BATCH, FEATURES)).astype(dtype),
            rng.integers(ROWS, size=(BATCH, 3)),
            rng.normal(size=BATCH).astype(dtype),
        )
        for _ in range(ROUNDS * CLOSURES)
    ]


def gradients(
    x: np.ndarray, y: np.ndarray, w: np.ndarray, b: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return those of the mean squared error of a linear model with an embedding."""
    error = 2 * (x @ w + b + rows.sum((1, 2)) - y) / y.dtype.type(len(y))
    return error @ x, error.sum(), np.broadcast_to(error[:, None, None], rows.shape)


def clipped(gradient: np.ndarray) -> np.ndarray:
    norm = np.sqrt(np.square(gradient).sum())
    return gradient * min(1.0, CLIPNORM / norm)


def adagrad(value: np.ndarray, gradient: np.ndarray, state: Parameters) -> np.ndarray:
    """One step of Adagrad, written down once more."""
    total = state.get("total", np.zeros_like(value)) + np.square(gradient)
    state["total"] = total
    return value - 0.3 * gradient / (np.sqrt(total) + 1e-7)


def adam(value: np.ndarray, gradient: np.ndarray, state: Parameters) -> np.ndarray:
    """One step of Adam; rows without a gradient stay as they are."""
    seen = np.ones_like(value, bool) if value.ndim < 2 else (gradient != 0).any(1, keepdims=True)
    zeros = np.zeros_like(value)
    step = state.get("step", np.zeros(())) + 1
    first = np.where(seen, 0.9 * state.get("first", zeros) + 0.1 * gradient, state.get("first", 0))
    square = 0.999 * state.get("second", zeros) + 0.001 * np.square(gradient)
    second = np.where(seen, square, state.get("second", 0))
    state.update(step=step, first=first, second=second)
    change = 0.1 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return np.where(seen, value - change, value)


Update = Callable[[np.ndarray, np.ndarray, Parameters], np.ndarray]
UPDATES: dict[str, tuple[psnb.Optimizer, Update]] = {
    "adagrad": (psnb.Adagrad(0.3, clipnorm=CLIPNORM), adagrad),
    "adam": (psnb.Adam(0.1, clipnorm=CLIPNORM), adam),
}


def trained_by_one_process(start: Parameters, data: list[Batch], update: Update) -> Parameters:
    """Train on the batches of each round joined into one."""
    found = {name: np.float64(value) for name, value in start.items()}
    states: dict[str, Parameters] = {name: {} for name in found}
    for first in range(0, len(data), CLOSURES):
        x, ids, y = map(np.concatenate, zip(*data[first : first + CLOSURES], strict=True))
        gw, gb, grows = gradients(np.float64(x), y, found["w"], found["b"], found["e"][ids])
        ge = np.zeros_like(found["e"])
        np.add.at(ge, ids, grows)
        for name, gradient in (("w", gw), ("b", gb), ("e", ge)):
            found[name] = update(found[name], clipped(gradient), states[name])
    return found


class Model:
    """A linear model with an embedding on the servers, and its training step."""

    def __init__(
        self, strategy: psnb.ParameterServerStrategy, optimizer: psnb.Optimizer, dtype: str
    ) -> None:
        rng = np.random.default_rng(1)
        self.w = strategy.variable(rng.normal(size=FEATURES).astype(dtype), "w", optimizer)
        self.b = strategy.variable(np.zeros((), dtype), "b", optimizer)
        self.e = strategy.embedding("e", 2, ROWS, optimizer=optimizer, dtype=dtype)

    def step(self, x: np.ndarray, ids: np.ndarray, y: np.ndarray) -> None:
        read = psnb.pull({self.w: None, self.b: None, self.e: ids})
        gw, gb, grows = gradients(x, y, read[self.w], read[self.b], read[self.e])
        psnb.push({self.w: gw, self.b: gb, self.e: (ids, grows)})

    def values(self) -> Parameters:
        return {"w": self.w.read(), "b": self.b.read(), "e": self.e.lookup(np.arange(ROWS))}


def synchronous(client: Client, closures: int | None = CLOSURES) -> psnb.ParameterServerStrategy:
    return psnb.ParameterServerStrategy(
        client, partitioner=psnb.FixedShards(2), mode=psnb.Sync(closures)
    )


def assert_close(found: Parameters, expected: Parameters, tolerance: float) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)


@pytest.fixture
def coordinator(cluster: Client) -> Iterator[psnb.ClusterCoordinator]:
    with synchronous(cluster) as strategy:
        yield psnb.ClusterCoordinator(strategy)


@TYPES
@pytest.mark.parametrize("name", UPDATES)
def test_two_workers_and_two_servers_give_what_one_process_gives(
    cluster: Client, name: str, dtype: str, tolerance: float
) -> None:
    optimizer, update = UPDATES[name]
    data = batches(dtype)
    with synchronous(cluster) as strategy:
        model = Model(strategy, optimizer, dtype)
        start = model.values()
        coordinator = psnb.ClusterCoordinator(strategy)
        for batch in data:
            coordinator.schedule(model.step, batch)
        coordinator.join(DEADLINE)
        assert_close(model.values(), trained_by_one_process(start, data, update), tolerance)
        staleness = coordinator.statistics().staleness
        assert (staleness.count, staleness.max) == (ROUNDS * CLOSURES, 0)


def test_it_is_the_same_to_the_last_digit_each_time(cluster: Client) -> None:
    found = []
    for _ in range(2):
        with synchronous(cluster) as strategy:
            model = Model(strategy, psnb.Adam(0.1), "float32")
            coordinator = psnb.ClusterCoordinator(strategy)
            for batch in batches("float32"):
                coordinator.schedule(model.step, batch)
            coordinator.join(DEADLINE)
            found.append(model.values())
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])


def test_no_closure_sees_another_one_of_its_round(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    v = coordinator.strategy.variable(np.zeros(2), optimizer=psnb.SGD(1.0))

    def step(number: int) -> float:
        if number % CLOSURES == CLOSURES - 1:  # the others have ended, or wait for this one's end
            wait_for_file(tmp_path / "go on")
        before = float(v.read()[0])
        v.push(-np.ones(2))
        assert float(v.read()[0]) == before  # nor itself
        return before

    remotes = [coordinator.schedule(step, (number,)) for number in range(2 * CLOSURES)]
    wait_until(lambda: sum(remote.done() for remote in remotes) == CLOSURES - 1, "others ended")
    assert v.read().tolist() == [0, 0]
    (tmp_path / "go on").touch()
    coordinator.join(DEADLINE)
    assert coordinator.fetch(remotes) == [0.0] * CLOSURES + [1.0] * CLOSURES
    assert v.read().tolist() == [2, 2]


def test_a_smaller_last_round_is_applied_when_join_returns(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    v = coordinator.strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))
    remotes = [
        coordinator.schedule(lambda g: v.push([g]), (gradient,)) for gradient in (-1.0, -2.0, -6.0)
    ]
    assert all(remote.wait(DEADLINE) for remote in remotes)
    assert v.read().tolist() == [0]
    coordinator.join(DEADLINE)
    assert v.read().tolist() == [3]
    coordinator.schedule(v.push, ([-1.0],))
    wait_until(coordinator.done, "all is done")
    assert v.read().tolist() == [4]


def test_fetch_waits_until_the_round_is_applied(coordinator: psnb.ClusterCoordinator) -> None:
    v = coordinator.strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))

    def step(after: object = None) -> int:
        v.push([-1.0])
        return 7

    async def awaited(remote: psnb.RemoteValue) -> int:
        return await remote

    for rounds in range(1, 11):  # full ones; inputs of others in the round are not waited for
        first = coordinator.schedule(step)
        remotes = [first, *(coordinator.schedule(step, (first,)) for _ in range(CLOSURES - 1))]
        assert remotes[rounds % CLOSURES].fetch(DEADLINE) == 7
        assert v.read().tolist() == [rounds]
    for rounds in range(11, 21):  # one closure, where there is no other
        remote = coordinator.schedule(step)
        assert (asyncio.run(awaited(remote)) if rounds % 2 else remote.fetch(DEADLINE)) == 7
        assert v.read().tolist() == [rounds]
    coordinator.join(DEADLINE)
    assert v.read().tolist() == [20]


def test_fetch_of_what_pushed_nothing_leaves_the_round_as_it_is(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    v = coordinator.strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))
    assert coordinator.schedule(v.push, ([-1.0],)).wait(DEADLINE)
    assert coordinator.schedule(v.read).fetch(DEADLINE).tolist() == [0]
    assert v.read().tolist() == [0]
    coordinator.join(DEADLINE)
    assert v.read().tolist() == [1]


def test_a_drained_round_is_applied_and_the_rest_waits(
    coordinator: psnb.ClusterCoordinator, tmp_path: Path
) -> None:
    v = coordinator.strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))
    steps = Steps(tmp_path)

    def step() -> None:
        steps()
        v.push([-1.0])

    for _ in range(CLOSURES):
        coordinator.schedule(step)
    steps.begun(2)  # on both workers; two wait
    coordinator.pause()
    steps.end()
    coordinator.drain(DEADLINE)
    assert v.read().tolist() == [1]
    assert coordinator.statistics().queued == 2
    coordinator.resume()
    coordinator.join(DEADLINE)
    assert v.read().tolist() == [2]


def test_the_others_of_a_round_count_when_one_fails(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    v = coordinator.strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))

    def step(gradient: float) -> None:
        v.push([gradient])
        if gradient > 0:
            raise ValueError("boo")

    assert coordinator.schedule(step, (-2.0,)).wait(DEADLINE)
    coordinator.schedule(step, (1.0,))
    with pytest.raises(ValueError, match="boo"):
        coordinator.join(DEADLINE)
    assert v.read().tolist() == [2]


def test_other_writes_are_made_when_a_closure_ends(coordinator: psnb.ClusterCoordinator) -> None:
    count = coordinator.strategy.variable(np.int64(0))
    for expected in (1, 2, 3):
        coordinator.schedule(count.assign_add, (np.int64(1),)).fetch(DEADLINE)
        assert int(count.read()) == expected


def test_a_push_that_will_not_wait_for_its_round_is_refused_in_closures(
    coordinator: psnb.ClusterCoordinator,
) -> None:
    v = coordinator.strategy.variable(np.zeros(1), optimizer=psnb.SGD(1.0))
    coordinator.schedule(lambda: v.push([1.0], immediate=True))
    with pytest.raises(ConfigurationError, match="immediate=True"):
        coordinator.join(DEADLINE)
    coordinator.schedule(lambda: v.assign([5.0], immediate=True)).fetch(DEADLINE)
    v.push([1.0])  # in the notebook it acts at once
    assert v.read().tolist() == [4]


def test_parameters_of_another_strategy_know_no_rounds(
    cluster: Client, coordinator: psnb.ClusterCoordinator
) -> None:
    with psnb.ParameterServerStrategy(cluster) as other:
        v = other.variable(np.zeros(1), optimizer=psnb.SGD(1.0))
        coordinator.schedule(lambda: v.push([-1.0], immediate=True)).fetch(DEADLINE)
        coordinator.schedule(v.push, ([-1.0],)).fetch(DEADLINE)
        assert v.read().tolist() == [2]


def test_a_round_has_as_many_closures_as_there_are_workers(cluster: Client) -> None:
    with synchronous(cluster, None) as strategy:
        assert strategy.mode == psnb.Sync(2)


def test_an_unknown_mode_is_refused(cluster: Client) -> None:
    with pytest.raises(ConfigurationError, match=r"psnb\.Async\(\)"):
        psnb.ParameterServerStrategy(cluster, mode="sync")  # type: ignore[arg-type]
