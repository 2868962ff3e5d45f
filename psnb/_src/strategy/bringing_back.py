"""Bringing back what was lost with servers, while no closure runs: from a checkpoint, or anew."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from psnb._src.checkpoint import Checkpoint, RestoreChoice
from psnb._src.remote_path import Place
from psnb._src.strategy.beginnings import Beginnings
from psnb._src.strategy.core import StrategyCore
from psnb.errors import CheckpointError, ServerSilentError


def bring_back(
    core: StrategyCore, checkpoint: Place | None, *, consistent: bool, restart_timeout: float
) -> Mapping[str, Any]:
    """Load what was lost, and return the checkpoint's metadata.

    The arguments and what it raises are those of `ParameterServerStrategy.recover`.
    """
    path = core.losses.checkpoint if checkpoint is None else checkpoint
    if path is None:
        lost = core.losses.lost()
        raise CheckpointError(
            f"there is no checkpoint to recover from: pass its path, or {core.losses.beginning()} "
            "begins anew in place: all parameters, or with consistent=False only what was lost"
            f"{f' ({core.losses.names(lost)})' if lost else ''}. "
            "psnb.CheckpointManager(coordinator, directory).save() saves one, for next time"
        )
    parameters = core.parameters()
    own = RestoreChoice(takes=parameters.__contains__)  # what only the checkpoint has is no loss
    # First: it raises if it cannot be loaded.
    saved = Checkpoint(path, parameters, own, models=core.model_parts)
    with _at_rest(core):
        core.host_lost(restart_timeout)
        lost_now = frozenset(core.lost)
        core.tables.make_again(lost_now, _optimizers(core, lost_now), {})
        saved.load(None if consistent else lost_now)
        core.lost -= lost_now
    return saved.restored.metadata


def begin_anew(
    core: StrategyCore, initialize: Any, *, consistent: bool, restart_timeout: float
) -> None:
    """Make all parameters as they were at first, or what was lost of them.

    The arguments and what it raises are those of `ParameterServerStrategy.recover`.
    """
    beginnings = Beginnings(core, initialize, consistent)
    with _at_rest(core):
        core.host_lost(restart_timeout, beginnings.check)
        lost = frozenset(core.lost)
        optimizers = _optimizers(core, lost)
        core.tables.make_again(beginnings.shards(lost), optimizers, beginnings.values)
        core.lost -= lost


@contextmanager
def _at_rest(core: StrategyCore) -> Iterator[None]:
    coordinator, _ = core.coordinator()
    paused = coordinator is None or coordinator.paused
    try:
        if coordinator is not None:
            with suppress(ServerSilentError):  # what it holds up is settled when it is replaced
                coordinator.drain()
        yield
    finally:
        if coordinator is not None and not paused:
            coordinator.resume()


def _optimizers(core: StrategyCore, lost: Collection[int]) -> dict[str, Any]:
    # Hyperparameters may have been changed since the parameters were made.
    return {name: each.optimizer_left(lost) for name, each in core.parameters().items()}
