"""Keras's optimizers as psnb's, which the servers apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from psnb._src.client.embedding import Embedding
from psnb._src.client.variable import Variable
from psnb._src.server.optimizer import Optimizer
from psnb._src.server.optimizers import SGD, Adagrad, Adam, Lion, Momentum, RMSProp
from psnb.errors import ConfigurationError

_REFUSED = ("loss_scale_factor", "gradient_accumulation_steps", "use_ema", "global_clipnorm")


def as_optimizer(given: Any) -> Optimizer:
    """Return psnb's optimizer for one of Keras, by name or as an object, with its hyperparameters.

    Raises
    ------
    ConfigurationError
        If psnb has not the same one.
    """
    if isinstance(given, Optimizer):
        return given
    found = keras.optimizers.get(given)
    config, kind = found.get_config(), type(found).__name__
    _check(found, kind)
    if used := [name for name in _REFUSED if config.get(name)]:
        raise ConfigurationError(f"optimizer {kind}: servers do not do {', '.join(used)}")
    rate = config["learning_rate"]
    if isinstance(rate, float):
        rate = float(str(np.float32(rate)))  # Keras keeps float32: 0.01 is 0.00999999977 there
    if not isinstance(rate, float | int):
        raise ConfigurationError(
            f"optimizer {kind}: a schedule of Keras does not travel to servers; take one of psnb: "
            "psnb.Adam(psnb.CosineDecay(...))"
        )
    own: dict[str, Any] = {"clipnorm": config["clipnorm"], "clipvalue": config["clipvalue"]}
    decay = config["weight_decay"] or 0.0
    match kind:
        case "SGD" if not decay and config["momentum"]:
            return Momentum(rate, config["momentum"], config["nesterov"], **own)
        case "SGD" if not decay and not config["momentum"]:
            return SGD(rate, **own)
        case "Adagrad" if not decay:
            start = config["initial_accumulator_value"]
            return Adagrad(rate, start, config["epsilon"], epsilon_in_root=True, **own)
        case "Adam" | "AdamW":
            names = ("beta_1", "beta_2", "epsilon", "amsgrad")
            options = {name: config[name] for name in names}
            return Adam(rate, epsilon_hat=True, weight_decay=decay, **options, **own)
        case "Lion":
            return Lion(rate, config["beta_1"], config["beta_2"], weight_decay=decay, **own)
        case "RMSprop" if not decay:
            options = {name: config[name] for name in ("rho", "momentum", "epsilon", "centered")}
            return RMSProp(rate, **options, **own)
    raise ConfigurationError(
        f"optimizer {kind} with {config}: psnb has no such one. Servers apply SGD, Momentum, "
        "Adagrad, Adam (AdamW), Lion and RMSProp: give one of them, as psnb.Adam(1e-3) or of Keras"
    )


def _check(given: Any, kind: str) -> None:
    """Raise ConfigurationError if an optimizer is more than its kind and its config."""
    if hasattr(given, "inner_optimizer"):
        raise ConfigurationError(
            f"optimizer {kind} scales losses, which servers do not: give the optimizer in it. In "
            "half precision take the policy mixed_bfloat16, which needs no scaling"
        )
    # With torch, Keras makes them of classes of the backend, of the same names.
    own = getattr(keras.optimizers, kind, None)
    if own is None or not isinstance(given, own) or not type(given).__module__.startswith("keras."):
        raise ConfigurationError(
            f"optimizer {kind} is a class of {type(given).__module__}, which servers do not run: "
            "give one of Keras, or of psnb"
        )
    # No public method says it.
    excluded = "_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern"
    if any(getattr(given, name, None) for name in excluded):
        raise ConfigurationError(
            f"optimizer {kind}: exclude_from_weight_decay() does not reach servers, and all would "
            "decay. Choose by name: psnb.keras.distribute(dense=lambda name: psnb.Adam(1e-3, "
            'weight_decay=0.0 if "bias" in name else 0.1))'
        )
    if int(given.iterations):
        raise ConfigurationError(
            f"optimizer {kind} has taken {int(given.iterations):,} steps; on servers its state "
            "starts over: make a new one, with the rate that it should have now. From then on "
            "psnb's checkpoints have its state"
        )


class SteeredOptimizer:
    """The optimizer that ``compile`` was given, as the servers have it.

    Setting ``learning_rate`` sets it on the servers, from the next update on, for all parameters of
    ``compile``'s optimizer: not for parameters with one from ``distribute``.

    Parameters
    ----------
    parameters : sequence of Variable or Embedding
        What it is the optimizer of.
    """

    def __init__(self, parameters: Sequence[Variable | Embedding]) -> None:
        self._parameters = tuple(parameters)

    def __repr__(self) -> str:
        return f"<psnb.keras optimizer of {[each.name for each in self._parameters]}>"

    @property
    def steers(self) -> bool:
        """Whether there are parameters that it is the optimizer of."""
        return bool(self._parameters)

    @property
    def learning_rate(self) -> float:
        """The learning rate.

        Raises
        ------
        ConfigurationError
            If `distribute` was given all optimizers, or the rate follows a schedule of psnb.
        """
        rate: Any = self._live()[0].learning_rate
        if callable(rate):
            raise ConfigurationError(
                f"the learning rate follows {rate!r}: callbacks set one that is a number"
            )
        return float(rate)

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        for each in self._live():
            each.learning_rate = float(rate)

    def _live(self) -> list[Any]:
        if not self._parameters:
            raise ConfigurationError(
                "distribute was given the optimizers, sparse= and dense=, so there is none of "
                "compile's to steer: leave one of them out, or set rates with "
                "coordinator.set_learning_rate"
            )
        return [each.optimizer for each in self._parameters]
