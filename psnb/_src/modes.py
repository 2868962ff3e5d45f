"""Update modes: when what closures push is applied, and what they read meanwhile. Pure.

Plain descriptions; `psnb._src.coordinator` decides by them when closures begin, `psnb._src.server`
and `psnb._src.parameters` what becomes of a push.
"""

from __future__ import annotations

from dataclasses import dataclass

from psnb._src.checks import integer
from psnb.errors import ConfigurationError


@dataclass(frozen=True)
class Mode:
    """How the updates of several workers come together; see its subclasses."""


@dataclass(frozen=True)
class Async(Mode):
    """Every closure is applied when it ends, whatever the others do; the default.

    Each closure that returns counts exactly once: what it has written is applied wholly, over all
    servers, from one of its attempts; of one that raises, nothing is. What a closure has read may
    be out of date by the time it is applied, by any number of updates; how many is measured:
    ``coordinator.statistics().staleness``. Nobody waits for anybody.

    As TensorFlow's ``ParameterServerStrategyV2`` and Paddle's ``a_sync``; Dean et al., *Large Scale
    Distributed Deep Networks*, NIPS 2012.
    """


@dataclass(frozen=True)
class Sync(Mode):
    """Closures run in rounds; the average of what a round pushes is one update.

    All closures of a round read the same parameters: none begins before the round before it has
    ended and was applied. To each variable and embedding that was pushed, a round is one step of
    the optimizer, with the sum of the gradients divided by the number of closures of the round that
    pushed anything; in an embedding the gradients of equal ids are summed. ``clipnorm`` is of that
    average. So it gives what one process gives that trains on the batches of a round joined into
    one, to rounding, and the same to the last digit each time, whichever worker is faster or dies.

    What it costs: a round takes as long as its slowest closure and one round trip more, and servers
    hold what was pushed until the round is applied.

    A closure whose worker is lost runs again within its round, and counts once. One that raises
    counts as nothing: the others of its round are applied. `ClusterCoordinator.join`, ``done`` and
    ``drain`` end a round that is not full; so checkpoints are complete after them. In a closure,
    ``assign`` and the like act at its end as ever; its own pushes are not seen by its own reads;
    ``push(immediate=True)`` is refused. A push from the notebook acts at once.

    A round is applied on all servers or on none. It can be lost, though its closures have returned:
    if the coordinator is closed before, or if a server is lost when it is to be applied, which
    ``join`` raises. One that says nothing is waited for.

    Chen et al., *Revisiting Distributed Synchronous SGD*, 2016 (without its backup workers);
    TensorFlow's ``SyncReplicasOptimizer``.

    Parameters
    ----------
    closures : int, optional
        Closures of a round; as many as there are workers when the strategy is made if left out.

    Raises
    ------
    ConfigurationError
        If it is below 1.
    """

    closures: int | None = None

    def __post_init__(self) -> None:
        if self.closures is not None:
            _require(self, "closures", self.closures, 1)


@dataclass(frozen=True)
class BoundedStaleness(Mode):
    """As `Async`, but no update is staler than a bound.

    The staleness of an update is the number of updates by other closures that were applied between
    what its closure read first and its own commit. A closure begins only when none of those that
    run, itself among them, could then exceed the bound; until then it waits. So the bound holds
    whichever worker is slow, and ``coordinator.statistics().staleness`` shows that it did. With 0,
    one closure runs at a time.

    What it costs: at most ``updates + 1`` closures run at the same time, and workers wait for a
    closure that takes much longer than the others.

    After Ho et al., *More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server*, NIPS 2013. There each worker has a clock and the fastest may be so many clocks ahead of
    the slowest; here closures go to whoever is free, so the bound is on updates. With their slack
    of ``c`` clocks, ``w`` workers reach a staleness of ``(w - 1) * (2 * c + 1)`` updates.

    Parameters
    ----------
    updates : int
        The bound. ``w`` workers with one thread each are all at work with ``w - 1`` or more.

    Raises
    ------
    ConfigurationError
        If it is below 0.
    """

    updates: int

    def __post_init__(self) -> None:
        _require(self, "updates", self.updates, 0)


@dataclass(frozen=True)
class Geo(Mode):
    """Workers train copies of their own, and send what changed every so many closures.

    In a closure, reads come from a copy on its worker: the whole shard of a variable, and those
    rows of an embedding that were asked for, each fetched when first used. When the closure ends,
    its pushes are applied to that copy, by the parameter's own optimizer. After every ``closures``
    closures of a worker the difference to what was fetched, divided by the number of workers, is
    added to the parameters, exactly once; the optimizer's state moves as far towards the
    worker's; and the copy is dropped. `ClusterCoordinator.join`, ``done`` and ``drain`` have
    workers send what they hold, and so do workers that leave, so checkpoints see everything after
    them.

    With one worker it gives what `Async` gives, to rounding. With more it is another algorithm:
    fewer messages, and parameters that are up to ``closures`` closures behind on each worker. Only
    pushes are averaged: ``assign`` and the like, and the shows and clicks of a `CtrAccessor`, are
    made on the servers as they are, with the same exchange. (``assign`` and the like are seen at
    once by later closures of the worker.) In a closure, ``push(immediate=True)`` acts on the copy
    at once, other writes with ``immediate=True`` on the servers.

    An exchange is one commit: all that its closures have written is applied, on all servers, or
    nothing. So a closure counts wholly, or it is lost wholly, though it has returned: if its worker
    dies before the exchange, if a server is lost or says nothing when it is made, or if the
    coordinator is closed before. At most ``closures`` are lost so for each thread of a worker.
    Those that a dead worker was running run again elsewhere, unless they were exchanged. A closure
    that raises has written nothing and changes no copy.

    After Paddle's ``geo`` mode (``a_sync_configs = {"k_steps": k}``), where optimizers keep their
    state on the workers.

    Parameters
    ----------
    closures : int
        Closures of a worker between two exchanges.

    Raises
    ------
    ConfigurationError
        If it is below 1.
    """

    closures: int

    def __post_init__(self) -> None:
        _require(self, "closures", self.closures, 1)


def check_mode(mode: object) -> Mode:
    """Return the mode, or raise ConfigurationError if it is none."""
    if isinstance(mode, Mode) and type(mode) is not Mode:
        return mode
    raise ConfigurationError(
        "mode must be psnb.Async(), psnb.Sync(), psnb.BoundedStaleness(updates) or "
        f"psnb.Geo(closures), found {mode!r}"
    )


def _require(mode: Mode, name: str, value: object, least: int) -> None:
    """Make a field of a frozen mode an int, or raise ConfigurationError."""
    object.__setattr__(mode, name, integer(f"{mode!r}: {name}", value, least))
