"""Models that go on after `psnb.attach` and `psnb.resume`, bit for bit as without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from distributed import Client
from torch import nn

import psnb
import psnb.keras
import psnb.torch
from psnb.errors import CheckpointError, ConfigurationError
from tests.checkpoint.saved import forge
from tests.conftest import DEADLINE, connected, wait_until
from tests.forking import Forked
from tests.integration.helpers import CommandLine
from tests.integration.models.adopted import OPTIONS, Clicks, same, train

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype:UserWarning"),
]


def test_a_module_is_resumed_from_a_checkpoint(cluster: Client, tmp_path: Path) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        model = psnb.torch.distribute(Clicks(), strategy, **OPTIONS)
        train(coordinator, model, range(5))
        psnb.CheckpointManager(coordinator, tmp_path).save()
        state = model.state_dict()
        losses = train(coordinator, model, range(5, 10))
        expected = model.state_dict()
    with psnb.resume(tmp_path, cluster) as resumed:
        model = psnb.torch.distribute(Clicks(seed=1), resumed.strategy)
        assert same(model.state_dict(), state)
        assert train(resumed.coordinator, model, range(5, 10)) == losses
        assert same(model.state_dict(), expected)
        resumed.manager.save()
    with psnb.resume(tmp_path, cluster) as resumed:  # what was adopted is saved likewise
        assert same(psnb.torch.distribute(Clicks(), resumed.strategy).state_dict(), expected)


def test_a_module_goes_on_where_a_killed_notebook_has_left_it(tmp_path: Path) -> None:
    dask = CommandLine(tmp_path)
    with (
        dask.scheduler(),
        dask.worker("--name", "server-0", "--resources", "ps=1"),
        dask.worker(),
        connected(dask.file) as client,
    ):
        client.wait_for_workers(2, timeout=DEADLINE)
        with Forked("tests.integration.models.adopted", dask.file, heard=True) as notebook:
            assert notebook.stdout is not None
            while int(notebook.stdout.readline()) < 3:
                pass
            notebook.kill()
        wait_until(lambda: not psnb.attach(client)[0].owned, "the scheduler has noticed")
        strategy, coordinator = psnb.attach(client, "mine")
        with strategy:
            model = psnb.torch.distribute(Clicks(seed=1), strategy)
            (variable,) = model.variables
            assert variable.optimizer is not None
            steps = variable.optimizer.iterations
            state = model.state_dict()
            losses = train(coordinator, model, range(steps, steps + 3))
        with psnb.ParameterServerStrategy(client) as strategy:
            coordinator = psnb.ClusterCoordinator(strategy)
            model = psnb.torch.distribute(Clicks(), strategy, **OPTIONS)
            train(coordinator, model, range(steps))
            assert same(model.state_dict(), state)
            assert train(coordinator, model, range(steps, steps + 3)) == losses


class Layers(nn.Module):
    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(2, 2))


def test_a_checkpoint_in_which_layers_lie_in_another_order_is_not_restored(
    cluster: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        model = psnb.torch.distribute(Layers("a", "b"), strategy, dense=psnb.SGD(0.1), name="m")
        state = model.state_dict()
        psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), tmp_path).save()
    for names, fits in ((("b", "a"), False), (("a", "c"), True), (("a", "b"), True)):
        with psnb.ParameterServerStrategy(cluster) as strategy:
            model = psnb.torch.distribute(Layers(*names), strategy, dense=psnb.SGD(0.1), name="m")
            manager = psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), tmp_path)
            if not fits:
                with pytest.raises(CheckpointError, match=r"'m': expected 'b.weight' .* found 'a"):
                    manager.restore()
                continue
            manager.restore()  # the recipe for a strategy that was made anew
            both = zip(model.state_dict().values(), state.values(), strict=True)
            assert all(torch.equal(one, other) for one, other in both)
    with psnb.resume(tmp_path, cluster) as resumed:
        found = psnb.torch.distribute(Layers("b", "a"), resumed.strategy, name="m").state_dict()
        assert same({**found}, {name: state[name] for name in found})


def keras_model(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    ids, x = keras.Input((2,), dtype="int32", name="ids"), keras.Input((3,), name="x")
    rows = keras.layers.Flatten()(keras.layers.Embedding(9, 4)(ids))
    hidden = keras.layers.BatchNormalization()(keras.layers.Concatenate()([rows, x]))
    hidden = keras.layers.Dense(8, "relu")(keras.layers.Dense(8, "relu")(hidden))
    return keras.Model([ids, x], keras.layers.Dense(1, "sigmoid")(hidden))


def keras_data() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    ids = rng.integers(9, size=(64, 2)).astype(np.int32)
    x = rng.normal(size=(64, 3)).astype(np.float32)
    return {"ids": ids, "x": x}, (ids[:, :1] % 2).astype(np.float32)


@pytest.mark.second_tier("a module of torch that goes on is in the first tier")
def test_a_keras_model_fits_on_from_the_epoch_of_a_checkpoint(
    cluster: Client, tmp_path: Path
) -> None:
    def compiled(strategy: psnb.ParameterServerStrategy, seed: int) -> Any:
        model = psnb.keras.distribute(keras_model(seed), strategy)
        model.compile("adam", "binary_crossentropy", metrics=["mae"])
        return model

    x, y = keras_data()
    options: dict[str, Any] = {"batch_size": 8, "shuffle": False, "verbose": 0}
    with psnb.ParameterServerStrategy(cluster, mode=psnb.Sync()) as strategy:
        manager = psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), tmp_path)
        model = compiled(strategy, 0)

        def save(epoch: int, logs: Any) -> None:
            if epoch == 1:
                saved.append(model.get_weights())
                manager.save({"epoch": epoch + 1})

        saved: list[Any] = []
        callback = keras.callbacks.LambdaCallback(on_epoch_end=save)
        history = model.fit(x, y, epochs=4, callbacks=[callback], **options).history
        expected = model.get_weights()
    with psnb.resume(tmp_path, cluster) as resumed:
        # Its layers have other numbers by now.
        model = compiled(resumed.strategy, 1)
        assert all(map(np.array_equal, model.get_weights(), saved[0]))
        epoch = resumed.metadata["epoch"]
        found = model.fit(x, y, epochs=4, initial_epoch=epoch, **options)
        assert found.epoch == [2, 3]
        assert found.history == {name: each[2:] for name, each in history.items()}
        assert all(map(np.array_equal, model.get_weights(), expected))


def test_a_checkpoint_that_knows_no_models_has_none_to_adopt(
    cluster: Client, tmp_path: Path
) -> None:
    with psnb.ParameterServerStrategy(cluster) as strategy:
        psnb.torch.distribute(Layers("a"), strategy, dense=psnb.SGD(0.1))
        path = psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), tmp_path).save()
    forge(path, lambda content: content["run"].pop("models"))
    with (
        psnb.resume(tmp_path, cluster) as resumed,
        pytest.raises(ConfigurationError, match="of no model that was placed wholly"),
    ):
        psnb.torch.distribute(Layers("a"), resumed.strategy, dense=psnb.SGD(0.1))


@pytest.mark.second_tier("a module of torch that goes on is in the first tier")
def test_metrics_of_keras_do_not_keep_a_checkpoint_from_fitting(
    cluster: Client, tmp_path: Path
) -> None:
    x, y = keras_data()
    found = []
    for restores in (False, True):
        keras.utils.clear_session()  # layers are called as before
        with psnb.ParameterServerStrategy(cluster) as strategy:
            manager = psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), tmp_path)
            model = psnb.keras.distribute(keras_model(0), strategy, name="net")
            model.compile("adam", "binary_crossentropy")
            if restores:
                manager.restore()  # it has metrics, and the strategy has not
            else:
                manager.save()
                model.fit(x, y, batch_size=16, epochs=1, verbose=0)
                weights = model.get_weights()
                manager.restore()  # the other way round
                assert not np.array_equal(model.get_weights()[0], weights[0])
                model.set_weights(weights)
                manager.save()
            found.append(model.get_weights())
    assert all(map(np.array_equal, *found))
