"""Update modes: when the pushes of closures are applied, and what closures read. Pure.

These are plain descriptions. By them `psnb._src.coordinator` decides when closures begin, and
`psnb._src.server` and `psnb._src.client` decide what happens to a push.
"""

from __future__ import annotations

from dataclasses import dataclass

from psnb._src.utils.checks import integer
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError


@dataclass(frozen=True)
class Mode:
    """How the updates of several workers are combined; see the subclasses."""


@dataclass(frozen=True)
class Async(Mode):
    """The updates of a closure are applied when it ends, whatever the others do; the default.

    Each closure that returns counts exactly once: all its writes, on all servers, are applied from
    one of its attempts. Nothing is applied of a closure that raises. By the time a closure's writes
    are applied, the values that it has read may be out of date by any number of updates;
    ``coordinator.statistics().staleness`` measures how many. No worker waits for another.

    As in TensorFlow's ``ParameterServerStrategyV2`` and Paddle's ``a_sync``; Dean et al., *Large
    Scale Distributed Deep Networks*, NIPS 2012.
    """


@dataclass(frozen=True)
class Sync(Mode):
    """Closures run in rounds; the average of a round's pushes is one update.

    All closures of a round read the same parameters: none begins before the previous round has
    ended and was applied. For each variable and embedding that was pushed, a round is one step of
    the optimizer, with the mean of the gradients of the round's closures that pushed anything, each
    with the weight of its batch; in an embedding the gradients of equal ids are summed.
    ``clipnorm`` applies to that mean. So the result equals, up to rounding, that of one process
    that trains on the batches of a round joined into one, where the loss is a mean.

    *Weights.* Models know what their batches count, such as the number of examples; other closures
    say it: ``psnb.push(..., weight=len(batch))``. All pushes of a closure have one weight, the
    largest that is given, and 1 without any. One that has a weight and pushes nothing is among
    those by which is divided. If all weights are 0, closures count the same.

    The result is the same to the last digit each time, whichever worker
    is faster or dies. `ClusterCoordinator.run_epoch`, and a `Trainer` with `Hogwild`, also put the
    same batches of a leased dataset into each round, if its shuffles have a seed: its splits belong
    to as many slots as a round has closures, and a worker keeps an iterator for each slot that it
    reads.

    The cost: a round takes as long as its slowest closure plus one round trip, and servers keep the
    pushes in memory until the round is applied.

    A closure whose worker is lost runs again within its round, and counts once. A closure that
    raises does not count: the others of its round are applied. `ClusterCoordinator.join`, ``done``
    and ``drain`` end a round that is not full; so checkpoints are complete after them. In a
    closure, ``assign`` and similar writes take effect at its end, as in other modes; its reads do
    not see its own pushes; ``push(immediate=True)`` is refused. A push from the notebook takes
    effect immediately.

    A round is applied on all servers or on none. It can be lost although its closures have
    returned: if the coordinator is closed before, or if a server is lost when the round should be
    applied; then ``join`` raises. An unresponsive server is waited for.

    Chen et al., *Revisiting Distributed Synchronous SGD*, 2016 (without its backup workers);
    TensorFlow's ``SyncReplicasOptimizer``.

    Parameters
    ----------
    closures : int, optional
        Closures in a round; by default the number of workers when the strategy is made.

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
    its closure's first read and its own commit. A closure waits to begin until no running closure,
    itself included, could then exceed the bound. So the bound holds whichever worker is slow;
    ``coordinator.statistics().staleness`` shows it. With 0, one closure runs at a time.

    The cost: at most ``updates + 1`` closures run at the same time, and workers wait for a closure
    that takes much longer than the others.

    After Ho et al., *More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server*, NIPS 2013. There each worker has a clock, and the bound is on how far the fastest may
    be ahead of the slowest. Here closures go to any free worker, so the bound is on updates. With
    their slack of ``c`` clocks, ``w`` workers reach a staleness of ``(w - 1) * (2 * c + 1)``
    updates.

    Parameters
    ----------
    updates : int
        The bound. With ``w - 1`` or more, ``w`` workers with one thread each can all work at the
        same time.

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
    """Workers train their own copies, and send the changes after every few closures.

    In a closure, reads come from a copy on its worker: the whole shard of a variable, and the rows
    of an embedding that were asked for, each fetched when first used. When the closure ends, its
    pushes are applied to that copy, by the parameter's own optimizer. After every ``closures``
    closures of a worker, the difference to what was fetched, divided by the number of workers, is
    added to the parameters, exactly once. The optimizer's state moves by the same share towards the
    worker's, and the copy is dropped. `ClusterCoordinator.join`, ``done`` and ``drain`` make
    workers send their changes, and so does a worker that leaves, so checkpoints after them are
    complete.

    With one worker the result equals that of `Async`, up to rounding. With more workers it is
    another algorithm: fewer messages, and parameters that are up to ``closures`` closures behind on
    each worker. Only pushes are averaged: ``assign`` and similar writes, and the shows and clicks
    of a `CtrAccessor`, are made unchanged on the servers, with the same exchange. (Later closures
    of the worker see ``assign`` and similar writes immediately.) In a closure,
    ``push(immediate=True)`` changes the copy immediately; other writes with ``immediate=True``
    change the servers immediately.

    An exchange is one commit: all writes of its closures are applied, on all servers, or none is.
    So a closure counts wholly or is lost wholly. It can be lost although it has returned: if its
    worker dies before the exchange, if a server is lost or unresponsive during it, or if the
    coordinator is closed before. At most ``closures`` closures are lost in this way for each thread
    of a worker. Closures that were running on a dead worker run again elsewhere, unless they were
    exchanged. A closure that raises has written nothing and changes no copy.

    After Paddle's ``geo`` mode (``a_sync_configs = {"k_steps": k}``), where optimizers keep their
    state on the workers.

    Parameters
    ----------
    closures : int
        How many closures a worker runs between two exchanges.

    Raises
    ------
    ConfigurationError
        If it is below 1.
    """

    closures: int

    def __post_init__(self) -> None:
        _require(self, "closures", self.closures, 1)


MODES: dict[str, type] = {each.__name__: each for each in (Async, BoundedStaleness, Geo, Sync)}
"""All modes by name."""


def check_mode(mode: object) -> Mode:
    """Return the mode, or raise ConfigurationError if it is not a mode."""
    if isinstance(mode, Mode) and type(mode) is not Mode:
        return mode
    raise ConfigurationError(
        "mode must be psnb.Async(), psnb.Sync(), psnb.BoundedStaleness(updates) or "
        f"psnb.Geo(closures), found {shown(mode)}"
    )


def _require(mode: Mode, name: str, value: object, least: int) -> None:
    """Make a field of a frozen mode an int, or raise ConfigurationError."""
    object.__setattr__(mode, name, integer(f"{shown(mode)}: {name}", value, least))
