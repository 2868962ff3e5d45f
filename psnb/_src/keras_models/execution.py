"""How workers run a model, where Keras has `compile` say it."""

from __future__ import annotations

from typing import Any

import keras

from psnb.errors import ConfigurationError


def check_execution(
    model: Any,
    run_eagerly: Any,
    steps_per_execution: Any,
    jit_compile: Any,
    auto_scale_loss: Any,
) -> None:
    """Raise ConfigurationError if workers do not run a model as ``compile`` is to have it."""
    if run_eagerly:
        raise ConfigurationError(
            "compile(run_eagerly=True): workers do not run models eagerly. To look into one, call "
            "it in the notebook: model.undistributed() is a plain copy"
        )
    if steps_per_execution != 1:
        raise ConfigurationError(
            f"compile(steps_per_execution={steps_per_execution!r:.50}): each batch is a closure of "
            "its own, and workers overlap them anyway; leave it out, and make batches larger if "
            "steps are short"
        )
    compiles = keras.backend.backend() == "jax"
    if jit_compile not in ("auto", compiles):
        why = (
            "with JAX, workers compile each step: leave it out"
            if compiles
            else "with torch, steps are not compiled: leave it out, or take KERAS_BACKEND=jax"
        )
        raise ConfigurationError(f"compile(jit_compile={jit_compile!r:.50}): {why}")
    if auto_scale_loss and model.dtype_policy.name == "mixed_float16":
        raise ConfigurationError(
            "compile(auto_scale_loss=True) of a model of mixed_float16: servers do not scale "
            "losses, and small gradients would be lost. Take the policy mixed_bfloat16, or say "
            "auto_scale_loss=False"
        )
