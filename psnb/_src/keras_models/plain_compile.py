"""Compiles a plain copy of a model as the distributed one was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from psnb._src.keras_models.custom_objects import custom_objects
from psnb._src.keras_models.steered_optimizer import SteeredOptimizer
from psnb._src.server import Optimizer


def compile_plain(
    model: Any, optimizer: Any, compiled: Mapping[str, Any], steered: SteeredOptimizer
) -> None:
    """Compile a model with copies of what ``compile`` was given.

    With an optimizer of psnb it stays as it is: there may be no such one in Keras.

    Parameters
    ----------
    model : keras.Model
        Undistributed.
    optimizer : str, keras.optimizers.Optimizer or Optimizer
        That of ``compile``.
    compiled : mapping
        Loss and metrics.
    steered : SteeredOptimizer
        Has the learning rate of now.
    """
    if isinstance(optimizer, Optimizer):
        return
    with keras.saving.custom_object_scope(custom_objects(compiled)):
        own = _copied(keras.optimizers.get(optimizer))
        given = keras.tree.map_structure(_copied, dict(compiled))
    if steered.steers:
        own.learning_rate = steered.learning_rate
    model.compile(own, **given)


def _copied(thing: Any) -> Any:
    """Return what has no state in common with a loss, metric or optimizer; all else as it is."""
    kinds = keras.losses.Loss, keras.metrics.Metric, keras.optimizers.Optimizer
    return type(thing).from_config(thing.get_config()) if isinstance(thing, kinds) else thing
