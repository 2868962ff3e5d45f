"""Bringing back what was lost with servers: from a checkpoint, while no closure runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from psnb._src.checkpoint import Checkpoint, RestoreChoice
from psnb._src.remote_path import Place
from psnb._src.strategy.core import StrategyCore
from psnb.errors import CheckpointError, ServerSilentError


def bring_back(
    core: StrategyCore, checkpoint: Place | None, *, consistent: bool, restart_timeout: float
) -> Mapping[str, Any]:
    """Load what was lost, and return the checkpoint's metadata.

    The arguments and what it raises are those of `ParameterServerStrategy.recover`.
    """
    path = core.last_checkpoint if checkpoint is None else checkpoint
    if path is None:
        raise CheckpointError(
            "there is no checkpoint to recover from: pass its path, and save some with "
            "psnb.CheckpointManager(coordinator, directory).save()"
        )
    parameters = core.parameters()
    own = RestoreChoice(takes=parameters.__contains__)  # what only the checkpoint has is no loss
    saved = Checkpoint(path, parameters, own)  # first: it raises if it cannot be loaded
    coordinator, fences = core.coordinator()
    paused = coordinator is None or coordinator.paused
    try:
        if coordinator is not None:
            with suppress(ServerSilentError):  # what it holds up is settled when it is replaced
                coordinator.drain()
        core.host_lost(fences(), restart_timeout)
        lost = frozenset(core.lost)
        core.tables.make_again(sorted(lost))
        for parameter in core.parameters().values():
            # Hyperparameters may have been changed since the parameter was made.
            parameter.tune_like_survivors(lost)
        saved.load(None if consistent else lost)
        core.lost -= lost
    finally:
        if coordinator is not None and not paused:
            coordinator.resume()
    return saved.restored.metadata
