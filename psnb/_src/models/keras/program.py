"""KerasProgram: a Keras model on workers: steps, metrics and predictions.

Threads: closures of several may use one.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import cloudpickle
import keras
import numpy as np

from psnb._src.client.variable import Variable
from psnb._src.models.export.exported import Exported
from psnb._src.models.keras.network import KerasNetwork
from psnb._src.models.keras_backend import unpickled
from psnb._src.models.placing import ModelValues
from psnb._src.models.step_description import StepDescription
from psnb._src.utils.text import with_article
from psnb._src.worker.context import current_context, report
from psnb.errors import ConfigurationError, InvalidArrayError

_FEW = 8
"""Examples of a batch of which shapes are learned, if the model takes any number of them."""

Trained = tuple[float, int]
"""The loss of a batch, and its number of examples."""


class KerasProgram:
    """Computes with a model whose values are on servers; one for each backend.

    Travels with closures, and brings the backend along. Of a batch as `_prepared`, a backend has
    ``_outputs``, ``_described`` operations of a step, metrics (``_score``), and what trains on it
    (``_train``), which returns loss and metrics, or raises InvalidArrayError, before it has pushed
    anything, if loss or gradients are not finite. ``_run`` calls a function with arrays,
    ``_shaped`` for the shapes of its results, and ``_exported`` is what is written of the outputs
    for inputs.

    Parameters
    ----------
    network : KerasNetwork
        The model.
    values : ModelValues
        Where its values are.
    """

    _outputs: Callable[[dict[str, Any]], Any]
    _described: Callable[[dict[str, Any]], StepDescription]
    _score: Callable[[dict[str, Any]], list[np.ndarray]]
    _train: Callable[[dict[str, Any]], tuple[float, list[np.ndarray]]]
    _run: Callable[..., Any]
    _shaped: Callable[..., Any]
    _exported: Callable[[dict[str, np.ndarray]], Exported]

    def __init__(self, network: KerasNetwork, values: ModelValues) -> None:
        self.network, self._values = network, values
        self._name = uuid.uuid4().hex
        self._pickled: bytes | None = None
        # Held while the variables of loss and metrics are made, once.
        self._building = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # As bytes: Keras must not be imported before its backend is chosen.
        if self._pickled is None:
            self._pickled = cloudpickle.dumps((type(self), self.network, self._values))
        return unpickled, (keras.backend.backend(), self._name, self._pickled)

    def train(self, batch: Any, metrics: Variable, ends_at_nan: bool) -> Trained:
        """Train on a batch ``(x, y)`` or ``(x, y, weights)``; add to the metrics.

        Parameters
        ----------
        batch : tuple
            Arrays.
        metrics : Variable
            Where metrics are added up.
        ends_at_nan : bool
            Return a loss that is not finite, and change nothing, rather than raise
            InvalidArrayError.
        """
        given, examples = self._prepared_to_train(batch)
        try:
            loss, metrics_ = self._train(given)
        except InvalidArrayError:
            if not ends_at_nan:
                raise
            # Sum and count of the loss are the first of all metrics.
            total, count = map(float, self._score(given)[:2])
            if np.isfinite(loss := total / count):
                raise
            return loss, examples
        metrics.assign_add(_joined(metrics_))
        report(loss=loss, examples=examples)
        return loss, examples

    def score(self, batch: Any, metrics: Variable) -> Trained:
        """Add what a batch gives to the metrics."""
        given, examples = self._prepared(batch)
        metrics.assign_add(_joined(self._score(given)))
        return 0.0, examples

    def build(self, batch: Any) -> None:
        """Learn shapes from a batch, and check the metrics; in the notebook, before closures run.

        Raises
        ------
        ConfigurationError
            If the batch is not what the model takes, or a metric does not add up.
        """
        given, _ = self._prepared(batch)
        self.network.check_metrics(self._few(given), self._run)

    def to_export(self, example: Any) -> Exported:
        """Return what `psnb.export` writes of it; its feeds are the model's inputs.

        Layers of the user's own need no code to load, as the backend's computation is written.

        Parameters
        ----------
        example : object
            A batch of inputs; None for the shapes that the inputs say.
        """
        inputs = self.network.inputs
        return self._exported(inputs.example() if example is None else inputs.arrays(example))

    def predict(self, x: Any) -> Any:
        """Return the model's outputs for the inputs of a batch."""
        return self._outputs({"x": self.network.inputs.arrays(x)})

    def describe(self, batch: Any) -> StepDescription:
        """Return the operations of a step for a batch, as `train` takes it; nothing is written."""
        return self._described(self._prepared_to_train(batch)[0])

    def _prepared(self, batch: Any) -> tuple[dict[str, Any], int]:
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            found = type(batch).__name__
            if isinstance(batch, tuple | list):
                found = f"{with_article(found)} of {len(batch)}: are the targets, y, missing?"
            raise ConfigurationError(
                "a batch for training or evaluation is a tuple (inputs, targets) or (inputs, "
                f"targets, weights), found {found}"
            )
        x, y, *weights = batch
        given: dict[str, Any] = {"x": self.network.inputs.arrays(x), "y": y}
        if weights and weights[0] is not None:
            given["weights"] = weights[0]
        with self._building:
            self.network.build(self._few(given), self._shaped)
        return given, len(next(iter(given["x"].values())))

    def _few(self, given: dict[str, Any]) -> dict[str, Any]:
        count = self.network.inputs.batch_size or _FEW
        few: dict[str, Any] = keras.tree.map_structure(lambda each: each[:count], given)
        return few

    def _prepared_to_train(self, batch: Any) -> tuple[dict[str, Any], int]:
        given, examples = self._prepared(batch)
        if seeds := self.network.seeds:
            # The same when a closure runs again.
            number = 0 if (context := current_context()) is None else context.closure
            words = np.random.SeedSequence(number).generate_state(2 * len(seeds))
            pairs = (words >> 1).reshape(-1, 2)  # they may be signed
            states = zip(pairs, seeds, strict=True)
            given["seeds"] = [pair.astype(each.dtype) for pair, each in states]
        return given, examples


def _joined(metrics_: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(each, np.float64).reshape(-1) for each in metrics_])
