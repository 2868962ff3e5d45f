"""SteeredOptimizer: what callbacks of Keras see as ``model.optimizer``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psnb._src.parameters import Embedding, Variable
from psnb.errors import ConfigurationError


class SteeredOptimizer:
    """The optimizer that ``compile`` was given, as the servers have it.

    Setting ``learning_rate`` sets it on the servers, from the next update on, for all parameters
    that ``compile``'s optimizer is for: not for those that ``distribute`` was given one for.

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
