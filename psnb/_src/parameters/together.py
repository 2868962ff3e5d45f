"""`pull` and `push`: several variables and embeddings in one round trip to each server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from psnb._src.excerpt import shown
from psnb._src.parameters.handles import Handle, shards_of
from psnb._src.parameters.ids import SeenIds
from psnb._src.parameters.parameter_shards import ParameterShards
from psnb._src.parameters.sparse_shards import SparseShards
from psnb._src.parameters.updates import ShardWrite, fetch_together
from psnb._src.phases import PULL, PUSH, counted_as
from psnb.errors import ConfigurationError, GradientError


@counted_as(PULL)
def pull(wanted: Mapping[Handle, Any], *, training: bool = True) -> dict[Handle, np.ndarray]:
    """Read several variables and embeddings with one request to each server.

    Thread-safe; in the notebook, in closures and in Dask tasks. On one server, no other operation
    comes between the parts of one `pull`. In a closure, it sees the closure's own writes.

    Parameters
    ----------
    wanted : mapping
        For an embedding, the ids to look up; for a variable, rows to gather or None for all of it.
        The keys are the `Variable` and `Embedding` objects.
    training : bool
        False for evaluation and serving, as in `Embedding.lookup`.

    Returns
    -------
    dict
        The same keys, with what `Embedding.lookup`, `Variable.gather` or `Variable.read` return.

    Raises
    ------
    ConfigurationError
        If a key is not a variable or embedding.
    GradientError, IdOutOfRangeError, ServerLostError
        As in those methods; everything is checked before anything is sent.
    """
    return asking(wanted, training=training)()


def asking(
    wanted: Mapping[Handle, Any], *, training: bool = True
) -> Callable[[], dict[Handle, np.ndarray]]:
    """Return a function that does a `pull`, in any thread, and sees this thread's writes so far.

    Raises
    ------
    ConfigurationError, GradientError, IdOutOfRangeError
        As `pull`.
    """
    _check(wanted)
    handles = list(wanted)
    seen = SeenIds()
    readings = [
        shards.reading(which, training=training, seen=seen)
        if isinstance(shards, SparseShards)
        else shards.reading(which)
        for shards, which in ((shards_of(handle), which) for handle, which in wanted.items())
    ]
    return lambda: dict(zip(handles, fetch_together(readings), strict=True))


@counted_as(PUSH)
def push(gradients: Mapping[Handle, Any], *, immediate: bool = False) -> None:
    """Push gradients of several variables and embeddings with one request to each server.

    Parameters
    ----------
    gradients : mapping
        For an embedding, the ids and gradients that `Embedding.push` takes, and shows and clicks if
        wanted, as a tuple; for a variable, its gradient. The keys are the `Variable` and
        `Embedding` objects.
    immediate : bool
        In a closure: write now, not at its end. Such a write happens at least once.

    Raises
    ------
    ConfigurationError
        If a key is not a variable or embedding, or was made without an optimizer.
    GradientError, IdOutOfRangeError
        As `Embedding.push` and `Variable.push`; nothing was changed.
    ServerLostError
        If a server is gone; no parameter of its strategy was changed. After a `ServerSilentError`,
        they may have been changed.
    """
    _check(gradients)
    seen = SeenIds()
    writes: dict[int, tuple[ParameterShards, list[ShardWrite]]] = {}
    for handle, given in gradients.items():
        shards = shards_of(handle)
        if not isinstance(shards, SparseShards):
            parts = shards.pushing(given)
        elif isinstance(given, tuple | list) and 2 <= len(given) <= 4:
            parts = shards.pushing(*given, seen=seen)
        else:
            raise GradientError(
                f"psnb.push: expected (ids, gradients) for embedding {handle.name!r}, found "
                f"{type(given).__name__}"
            )
        # One request to each server: writes with the same `ServerClient` go together.
        writes.setdefault(id(shards.server_client), (shards, []))[1].extend(parts)
    for first, parts in writes.values():
        first.send(parts, immediate)


def _check(handles: Mapping[Handle, Any]) -> None:
    for handle in handles:
        if not isinstance(handle, Handle):
            raise ConfigurationError(
                f"psnb.pull and psnb.push take variables and embeddings as keys, "
                f"found {shown(handle)}"
            )
