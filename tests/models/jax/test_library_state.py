"""Tests of losses that would move state of a library's; servers in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psnb.jax
from psnb._src.server.optimizers import SGD
from psnb.errors import ConfigurationError
from tests.models.placing import InProcessStrategy

X = np.random.default_rng(0).normal(5, 2, (16, 6)).astype(np.float32)

Loss = Callable[[Any], Any]
OTHER = pytest.mark.second_tier("another library, whose import takes a second")


def of_equinox(*, trains: bool, spectral: bool = False) -> tuple[Any, Any, Callable[..., Any]]:
    import equinox

    class Net(equinox.Module):
        norm: Any
        last: Any

        def __init__(self, key: Any) -> None:
            inner = equinox.nn.Linear(6, 6, key=key)
            self.norm = (
                equinox.nn.SpectralNorm(inner, "weight", key=key)
                if spectral
                else equinox.nn.BatchNorm(6, "batch", mode="ema")
            )
            self.last = equinox.nn.Linear(6, 1, key=key)

        def __call__(self, x: Any, state: Any) -> Any:
            x, state = self.norm(x, state)
            return self.last(x), state

    net, state = equinox.nn.make_with_state(Net)(jax.random.key(0))

    def over_batch(net: Any, state: Any) -> Any:
        over = jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        return over(X, state)

    if not trains:
        _, state = over_batch(net, state)
        net = equinox.nn.inference_mode(net)
    return net, state, lambda net, state: jnp.mean(over_batch(net, state)[0] ** 2)


def of_haiku(*, trains: bool) -> tuple[Any, Any, Callable[..., Any]]:
    import haiku

    net = haiku.transform_with_state(
        lambda x: haiku.Linear(1)(haiku.BatchNorm(True, True, 0.9)(x, trains))
    )
    first = haiku.transform_with_state(
        lambda x: haiku.Linear(1)(haiku.BatchNorm(True, True, 0.9)(x, True))
    )
    params, state = first.init(jax.random.key(0), X)
    return params, state, lambda p, s: jnp.mean(net.apply(p, s, None, X)[0] ** 2)


def of_linen(*, trains: bool) -> tuple[Any, Any, Callable[..., Any]]:
    from flax import linen

    class Net(linen.Module):  # type: ignore[misc,name-defined]
        @linen.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            for _ in range(2):  # what is sown is new in each call, and is not kept
                self.sow("penalties", "size", jnp.mean(x))
            x = linen.BatchNorm(use_running_average=not trains)(x)
            return linen.Dense(1)(x)

    net = Net()
    found = net.init(jax.random.key(0), X)
    state = {"batch_stats": found["batch_stats"]}

    def loss(params: Any, state: Any) -> Any:
        out, _ = net.apply({"params": params, **state}, X, mutable=["batch_stats", "penalties"])
        return jnp.mean(out**2)

    return found["params"], state, loss


def of_nnx(*, trains: bool) -> tuple[Any, Any, Callable[..., Any]]:
    from flax import nnx

    net = nnx.Sequential(
        nnx.BatchNorm(6, use_running_average=not trains, rngs=nnx.Rngs(0)),
        nnx.Linear(6, 1, rngs=nnx.Rngs(0)),
    )
    graph, params, rest = nnx.split(net, nnx.Param, ...)
    return params, rest, lambda p, s: jnp.mean(nnx.merge(graph, p, s, copy=True)(X) ** 2)


LIBRARIES = [
    of_equinox,
    *(pytest.param(each, marks=OTHER) for each in (of_haiku, of_linen, of_nnx)),
]


def trained(net: Any, state: Any, loss: Callable[..., Any]) -> list[float]:
    params = psnb.jax.variables(InProcessStrategy(), net, SGD(1e-4))
    step = psnb.jax.step(lambda p, rows, batch: loss(p, state) + batch[0, 0] * 0, params=params)
    return [step.train_on(X) for _ in range(3)]


@pytest.mark.parametrize("made", LIBRARIES)
def test_a_loss_that_moves_state_is_refused(made: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"the loss moves .*returns no state"):
        trained(*made(trains=True))


def test_a_loss_that_moves_a_spectral_norm_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="state of Equinox"):
        trained(*of_equinox(trains=True, spectral=True))


MOVES: dict[str, Callable[[Any, Any], None]] = {
    "value": lambda net, new: net.mean.set_value(new),
    "raw": lambda net, new: net.mean.set_raw_value(new),
    "copy": lambda net, new: net.mean.copy_from(type(net.mean)(new)),
    "state": lambda net, new: net.mean.update_from_state(type(net.mean)(new)),
    "module": lambda net, new: updated(net, {"mean": type(net.mean)(new)}),
    "attribute": lambda net, new: setattr(net, "mean", type(net.mean)(new)),
    "array": lambda net, new: setattr(net, "count", net.count + 1),
    "list": lambda net, new: net.means.__setitem__(0, type(net.mean)(new)),
}
"""How a call may move what it finds."""


def left_for_the_caller(net: Any, new: Any) -> None:
    for _ in range(2):
        net.left = type(net.mean)(new)
        net.left.set_value(new + 1)
        net.hidden = new + 1


STAYS: dict[str, Callable[[Any, Any], None]] = {
    "nothing": lambda net, new: None,
    "left": left_for_the_caller,
    "parameter": lambda net, new: updated(net.out, {"bias": type(net.out.bias)(new[None])}),
}


def updated(module: Any, state: dict[str, Any]) -> None:
    from flax import nnx

    nnx.update(module, nnx.State(state))


def nnxs_own(how: str, within: str) -> tuple[Any, Any, Callable[..., Any]]:
    from flax import nnx

    class Net(nnx.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.mean, self.count = nnx.BatchStat(jnp.zeros(())), jnp.zeros(())
            self.means = nnx.List([nnx.BatchStat(jnp.zeros(()))])
            self.out = nnx.Linear(6, 1, rngs=nnx.Rngs(0))

        def __call__(self, x: Any) -> Any:
            {**MOVES, **STAYS}[how](self, x.mean())
            return self.out(x) + self.mean[...] + self.count

    graph, params, rest = nnx.split(Net(), nnx.Param, ...)
    call = (nnx.jit if within == "jit" else lambda called: called)(lambda net: net(jnp.asarray(X)))

    def loss(params: Any, state: Any) -> Any:
        return jnp.mean(call(nnx.merge(graph, params, state, copy=True)) ** 2)

    return params, rest, loss


def haikus_own() -> tuple[Any, Any, Callable[..., Any]]:
    import haiku

    def call(x: Any) -> Any:
        count = haiku.get_state("count", (), init=jnp.zeros)
        haiku.set_state("count", count + 1)
        return haiku.Linear(1)(x) + count

    net = haiku.transform_with_state(call)
    params, state = net.init(jax.random.key(0), X)
    return params, state, lambda p, s: jnp.mean(net.apply(p, s, None, X)[0] ** 2)


@OTHER
def test_a_loss_that_moves_state_outside_of_modules_of_haiku_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the loss moves state '~/count' of Haiku"):
        trained(*haikus_own())


@OTHER
@pytest.mark.parametrize("within", ["call", "jit"])
@pytest.mark.parametrize("how", MOVES)
def test_a_loss_that_moves_state_of_nnx_in_any_way_is_refused(how: str, within: str) -> None:
    with pytest.raises(ConfigurationError, match=r"the loss moves .*returns no state"):
        trained(*nnxs_own(how, within))


@OTHER
@pytest.mark.parametrize("within", ["call", "jit"])
@pytest.mark.parametrize("how", STAYS)
def test_what_a_loss_makes_and_changes_itself_is_no_state_of_nnx(how: str, within: str) -> None:
    found = trained(*nnxs_own(how, within))
    assert found[2] < found[0]


@pytest.mark.parametrize("made", LIBRARIES)
def test_a_loss_that_moves_state_is_refused_also_where_that_was_compiled_before(
    made: Callable[..., Any],
) -> None:
    net, state, loss = made(trains=True)
    compiled = sys.modules["equinox"].filter_jit(loss) if made is of_equinox else jax.jit(loss)
    compiled(net, state)
    with pytest.raises(ConfigurationError, match=r"the loss moves .*returns no state"):
        trained(net, state, compiled)


@pytest.mark.parametrize("made", LIBRARIES)
def test_averages_that_stay_are_used_as_they_are(made: Callable[..., Any]) -> None:
    net, state, loss = made(trains=False)
    found = trained(net, state, loss)
    np.testing.assert_allclose(found[0], loss(net, state), rtol=1e-5)
    assert found[2] < found[0]


def test_a_model_may_move_state_while_it_predicts() -> None:
    net, state, loss = of_equinox(trains=True)
    params = psnb.jax.variables(InProcessStrategy(), net, SGD(1e-4))
    predict = psnb.jax.forward(lambda p, rows, batch: loss(p, state), params=params)
    np.testing.assert_allclose(predict(X), loss(net, state), rtol=1e-5)


@pytest.mark.parametrize("spectral", [False, True])
def test_state_of_equinox_is_no_parameter(spectral: bool) -> None:
    import equinox

    net, state, _ = of_equinox(trains=True, spectral=spectral)
    for tree, where in (((net, state), r"\[1\]"), ({"state": state}, "'state'")):
        strategy = InProcessStrategy()
        with pytest.raises(ConfigurationError, match=f"{where}.*has state of Equinox"):
            psnb.jax.variables(strategy, tree, SGD())
        assert not strategy.parameters
    whole = equinox.nn.BatchNorm(6, "batch", mode="ema")  # with what its state begins with
    with pytest.raises(ConfigurationError, match="make_with_state"):
        psnb.jax.variables(InProcessStrategy(), [whole], SGD())


@OTHER
def test_random_numbers_of_nnx_are_others_in_each_step_and_the_same_again() -> None:
    from flax import nnx

    class Net(nnx.Module):  # type: ignore[misc,name-defined]
        def __init__(self, rngs: Any) -> None:
            self.rnn = nnx.RNN(nnx.LSTMCell(6, 4, rngs=rngs))
            self.drop, self.out = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.out(self.drop(self.rnn(x[None])))

    net = Net(nnx.Rngs(0))
    graph, state, rest = nnx.split(net, nnx.Param, ...)
    params = psnb.jax.variables(InProcessStrategy(), state, SGD(0.0))

    compiled = nnx.jit(lambda net, x: net(x))

    def losses(call: Any = lambda net, x: net(x), **options: Any) -> list[float]:
        def loss(params: Any, rows: Any, batch: Any) -> Any:
            return jnp.mean(call(nnx.merge(graph, params, rest, **options), batch) ** 2)

        step = psnb.jax.step(loss, params=params)
        return [step.train_on(X) for _ in range(3)]

    found = losses(copy=True)
    assert len(set(found)) == 3
    assert losses(copy=True) == found
    for _ in range(2):  # traced with the number of each step
        assert losses(compiled, copy=True) == found


@OTHER
def test_random_numbers_of_a_seed_that_the_loss_gives_are_the_same_in_each_step() -> None:
    from flax import nnx

    params = psnb.jax.variables(InProcessStrategy(), {"w": np.ones(1, np.float32)}, SGD(0.0))

    def loss(params: Any, rows: Any, batch: Any) -> Any:
        return params["w"].sum() * nnx.Linear(6, 1, rngs=nnx.Rngs(3))(batch).sum()

    step = psnb.jax.step(loss, params=params)
    assert step.train_on(X) == step.train_on(X)


@OTHER
def test_a_loss_that_would_write_to_state_of_nnx_that_it_refers_to_says_copy() -> None:
    from flax import nnx

    graph, state, rest = nnx.split(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), nnx.Param, ...)
    params = psnb.jax.variables(InProcessStrategy(), {"w": np.ones(1, np.float32)}, SGD(0.0))

    def losses() -> float:
        def loss(params: Any, rows: Any, batch: Any) -> Any:
            return params["w"].sum() * nnx.merge(graph, state, rest)(batch).sum()

        return psnb.jax.step(loss, params=params).train_on(X)

    with pytest.raises(ConfigurationError, match=r"nnx\.merge\(graph, params, rest, copy=True\)"):
        losses()
