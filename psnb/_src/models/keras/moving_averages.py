"""MovingAverages: how calls of `BatchNormalization` blend into their moving averages.

As `psnb._src.models.torch.moving_averages`: a call that begins with zeros for averages gives its
share of them to the last digit. Threads: each notes its own computations.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

_local = threading.local()

Blended = tuple[Any, Any]
"""A share and a term; see `psnb._src.client.dense_shards.Blend`."""


class MovingAverages:
    """Notes what calls in one thread blend into averages, within `noted`."""

    def __init__(self) -> None:
        # By the variable's id: share and term, and the value that the last call has left.
        self._blends: dict[int, tuple[Blended, Any]] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what the layers that are followed do."""
        before, _local.averages = getattr(_local, "averages", None), self
        try:
            yield
        finally:
            _local.averages = before

    def blend(self, variable: Any, before: Any, now: Any) -> Blended:
        """Return what a step has blended into a variable that it has written to.

        State that cannot be blended is set to the step's value: a late change would give it a value
        that no step has computed.
        """
        blend, left = self._blends.get(id(variable), ((0.0, None), None))
        if left is not None and left is now:
            return blend
        ops = keras.ops
        changed = ops.not_equal(now, before)
        # All of it, or elements would be of several steps; but what stays infinite could not be
        # pushed.
        stays = ops.logical_and(ops.isinf(now), ops.logical_not(changed))
        moved = ops.logical_and(ops.any(changed), ops.logical_not(stays))
        return ops.cast(moved, now.dtype), ops.where(moved, now, ops.zeros_like(now))

    def call(self, layer: Any, function: Any) -> Any:
        """Call a layer that moves its averages."""
        averages = layer.moving_mean, layer.moving_variance
        before = [each.value for each in averages]
        for each, value in zip(averages, before, strict=True):
            each.assign(keras.ops.zeros_like(value))
        found = function()
        kept = layer.momentum
        for each, value in zip(averages, before, strict=True):
            term = each.value
            each.assign(kept * value + term)
            (share, total), left = self._blends.get(id(each), ((0.0, 0.0), value))
            if left is value:
                blend = 1 - kept + kept * share, kept * total + term
                self._blends[id(each)] = blend, each.value
        return found


def follow(layer: Any) -> None:
    """Have `MovingAverages` note what a layer does from now on, if it is known to move averages."""
    if type(layer) is not keras.layers.BatchNormalization or layer.renorm:
        return  # with renorm, what a call computes depends on the averages
    plain, signature = layer.call, inspect.signature(layer.call)

    def call(*args: Any, **kwargs: Any) -> Any:
        averages: MovingAverages | None = getattr(_local, "averages", None)
        training = signature.bind(*args, **kwargs).arguments.get("training")
        if averages is None or not training or not layer.trainable:
            return plain(*args, **kwargs)
        return averages.call(layer, lambda: plain(*args, **kwargs))

    layer.call = call
