"""KerasProgram: what workers compute of a Keras model: steps, metrics and predictions."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import keras
import numpy as np

from psnb._src.jax_models import TreeVariables, forward, step
from psnb._src.keras_models.split_keras import SplitKeras
from psnb._src.parameters import Embedding, Variable
from psnb._src.runtime import report


class KerasProgram:
    """Computes with a model whose values are on servers.

    Travels with closures; closures that use it capture it.

    Parameters
    ----------
    parts : SplitKeras
        The model.
    params : TreeVariables
        Its values: ``weights``, and ``state``, which a step changes.
    tables : dict
        The tables of its embeddings.
    compiled : dict
        What ``compile`` was given: loss and metrics.
    """

    def __init__(
        self,
        parts: SplitKeras,
        params: TreeVariables,
        tables: dict[str, Embedding],
        compiled: dict[str, Any],
    ) -> None:
        self.parts, self._made_of = parts, (params, tables, compiled)
        parts.tail.compile(optimizer="sgd", **compiled)
        of: dict[str, Any] = {"params": params, "tables": tables, "ids": parts.ids_of}
        self._train = step(self._loss, has_aux=True, seed=0, **of)
        self._score = forward(self._scored, **of)
        self._predict = forward(self._predicted, **of)
        self._built = False

    def __reduce__(self) -> tuple[Any, ...]:
        # As bytes: Keras's pickles of models refer to nothing outside.
        params, tables, compiled = self._made_of
        return _loaded, (cloudpickle.dumps(self.parts), params, tables, cloudpickle.dumps(compiled))

    def train(self, batch: Any, metrics: Variable) -> float:
        """Train on a batch ``(x, y)`` or ``(x, y, weights)``; add to the metrics."""
        loss, told, examples = self._train.trained(self._batch(batch))
        metrics.assign_add(_joined(told))
        report(loss=loss, examples=examples)
        return loss

    def score(self, batch: Any, metrics: Variable) -> bool:
        """Add what a batch gives to the metrics; return True."""
        metrics.assign_add(_joined(self._score(self._batch(batch))))
        return True

    def predict(self, batch: Any) -> Any:
        """Return the model's outputs for a batch ``x``."""
        return self._predict({"x": self.parts.flat(batch)})

    def build(self, batch: Any) -> None:
        """Make the variables of the loss and of metrics, which depend on the shapes of a batch."""
        if not self._built:
            self._build(self._as_dict(batch))

    def metric_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the metrics' variables."""
        return [tuple(each.shape) for each in self.parts.tail.metrics_variables]

    def results(self, value: np.ndarray) -> dict[str, float]:
        """Return the metrics from what was added up."""
        tail, start = self.parts.tail, 0
        for variable in tail.metrics_variables:
            size = int(np.prod(variable.shape))
            variable.assign(value[start : start + size].reshape(variable.shape))
            start += size
        found = {name: float(each) for name, each in tail.get_metrics_result().items()}
        tail.reset_metrics()
        return found

    def _batch(self, batch: Any) -> dict[str, Any]:
        given = self._as_dict(batch)
        if not self._built:
            self._build(given)
        return given

    def _as_dict(self, batch: Any) -> dict[str, Any]:
        x, y, *rest = batch
        given = {"x": self.parts.flat(x), "y": y}
        return {**given, "weights": rest[0]} if rest and rest[0] is not None else given

    def _build(self, given: dict[str, Any]) -> None:
        tail, weights = self.parts.tail, given.get("weights")
        rows = {}
        for name, ids in self.parts.ids_of(given).items():
            dim = self._made_of[1][name].dim
            rows[name] = np.zeros((*ids.shape, dim), np.float32)
        outputs = tail(self.parts.call(given, rows))
        y = keras.tree.map_structure(keras.ops.convert_to_tensor, given["y"])
        tail.compute_loss(None, y, outputs, weights)
        tail.compute_metrics(None, y, outputs, weights)
        tail.reset_metrics()
        self._built = True

    def _loss(self, params: Any, rows: Any, batch: Any, key: Any) -> Any:
        tail, state = self.parts.tail, params["state"]
        before = _with_seeds(tail, state, key)
        outputs, after, losses = tail.stateless_call(
            params["weights"],
            before,
            self.parts.call(batch, rows),
            return_losses=True,
            training=True,
        )
        loss, told = self._told(params, outputs, batch, losses)
        # A term that is zero, with the change of the state as its gradient by it: so a step pushes
        # the change of the state with everything else.
        kept = [
            new
            for new, old in zip(after, tail.non_trainable_variables, strict=True)
            if _is_state(old)
        ]
        for new, old in zip(kept, state, strict=True):
            change = jax.lax.stop_gradient(old - new)
            loss += (change * (old - jax.lax.stop_gradient(old))).sum()
        return loss, told

    def _scored(self, params: Any, rows: Any, batch: Any) -> Any:
        outputs, losses = self._outputs(params, rows, batch)
        return self._told(params, outputs, batch, losses)[1]

    def _predicted(self, params: Any, rows: Any, batch: Any) -> Any:
        return self._outputs(params, rows, batch)[0]

    def _outputs(self, params: Any, rows: Any, batch: Any) -> tuple[Any, Any]:
        before = _with_seeds(self.parts.tail, params["state"], jax.random.key(0))
        outputs, _, losses = self.parts.tail.stateless_call(
            params["weights"],
            before,
            self.parts.call(batch, rows),
            return_losses=True,
            training=False,
        )
        return outputs, losses

    def _told(self, params: Any, outputs: Any, batch: Any, losses: Any) -> tuple[Any, list[Any]]:
        """Return the loss, and what to add to the metrics' variables."""
        tail, y, weights = self.parts.tail, batch["y"], batch.get("weights")
        mapping = [(each, jnp.zeros(each.shape)) for each in tail.metrics_variables]
        mapping += zip(tail.trainable_variables, params["weights"], strict=True)
        with keras.StatelessScope(state_mapping=mapping) as scope:
            # What layers have added in their call is in `losses` alone, what regularizers add in
            # both.
            more = sum(losses) - sum(tail.losses) if losses else 0.0
            loss = tail.compute_loss(None, y, outputs, weights) + more
            tail.metrics[0].update_state(loss, sample_weight=keras.tree.flatten(y)[0].shape[0])
            tail.compute_metrics(None, y, outputs, weights)
            return loss, [scope.get_current_value(each) for each in tail.metrics_variables]


def _is_state(variable: Any) -> bool:
    return "float" in variable.dtype


def _with_seeds(tail: keras.Model, state: Any, key: Any) -> list[Any]:
    """Return the values of all that is not trained: seeds are made of a step's key."""
    given = iter(state)
    return [
        next(given)
        if _is_state(variable)
        else jax.random.bits(jax.random.fold_in(key, at), variable.shape, "uint32").astype(
            variable.dtype
        )
        for at, variable in enumerate(tail.non_trainable_variables)
    ]


def _joined(told: list[Any]) -> np.ndarray:
    return np.concatenate([np.asarray(each, np.float64).reshape(-1) for each in told])


def _loaded(
    parts: bytes, params: TreeVariables, tables: dict[str, Embedding], compiled: bytes
) -> KerasProgram:
    return KerasProgram(pickle.loads(parts), params, tables, pickle.loads(compiled))
