"""The callbacks of a call, as Keras makes them; those that cannot work are refused."""

from __future__ import annotations

from typing import Any

import keras

from psnb.errors import ConfigurationError

_REFUSED = {
    "BackupAndRestore": "optimizers have their state on the servers: psnb.CheckpointManager saves "
    "all of it, while closures run, and restores it",
    "SwapEMAWeights": "servers keep no moving averages of weights",
    "TensorBoard": "it reads the model's graph and variables in this process; "
    "keras.callbacks.CSVLogger and coordinator.plot() keep logs",
    "LoraCallback": "servers keep no LoRA weights",
}


def callback_list(given: Any, model: Any, verbose: Any, **params: Any) -> Any:
    """Return a list of callbacks that keeps a history and shows progress.

    Raises
    ------
    ConfigurationError
        If there is one that cannot work.
    """
    if isinstance(given, keras.callbacks.CallbackList):
        return given
    for each in keras.tree.flatten(given) if given else ():
        for kind in type(each).__mro__:
            if kind.__module__.startswith("keras.") and kind.__name__ in _REFUSED:
                raise ConfigurationError(f"callback {kind.__name__}: {_REFUSED[kind.__name__]}")
    return keras.callbacks.CallbackList(
        given,
        add_history=True,
        add_progbar=verbose != 0,
        model=model,
        verbose=1 if verbose == "auto" else verbose,
        **params,
    )


_AT_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def looks_at_batches(callbacks_: Any) -> bool:
    """Return whether a callback may look at the model, or steer it, at each batch of training.

    Of Keras's own only those that save at batches: ``ProgbarLogger`` and ``TerminateOnNaN`` are
    given all that they look at.
    """
    return any(_has_own(each, name) for each in callbacks_.callbacks for name in _AT_BATCHES)


def _has_own(callback: Any, name: str) -> bool:
    found = getattr(callback, name)
    function = getattr(found, "__func__", found)
    if function is getattr(keras.callbacks.Callback, name):
        return False
    keras_own = str(getattr(function, "__module__", "")).startswith("keras.")
    return not keras_own or getattr(callback, "save_freq", "epoch") != "epoch"


def ends_at_nan(callbacks_: Any) -> bool:
    """Return whether a callback ends training at a loss that is not finite."""
    return any(isinstance(each, keras.callbacks.TerminateOnNaN) for each in callbacks_.callbacks)
