"""UnmovedRows: says once which embeddings have learned nothing, as their rows have hardly moved.

A loss that falls for other reasons hides it: a rate too small for gradients of a mean, a gradient
that does not reach the rows.
"""

from __future__ import annotations

import numpy as np

from psnb._src.client.requests import on_table
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.monitor.events import EventKind, EventLog
from psnb._src.server.tables.operations import MeasureMoves
from psnb._src.strategy.core import StrategyCore
from psnb._src.utils.text import listed
from psnb.errors import PsnbError

HARDLY = 0.02
"""Of the length of a row before it was first pushed: the median of some 64 rows of each shard. One
push of `Adam` with its default rate moves a row of the default initializer by more."""

UPDATES = 100
"""Of an embedding, before there is an answer: a short epoch has few."""


class UnmovedRows:
    """Looks, at the end of an epoch, whether the rows that were pushed have moved.

    Each embedding has one answer: after that its rows may rightly move little.

    Parameters
    ----------
    strategy : StrategyCore
        Of the embeddings.
    events : EventLog
        Where it is said.
    """

    def __init__(self, strategy: StrategyCore, events: EventLog) -> None:
        self._strategy, self._events = strategy, events
        self._answered: set[object] = set()

    def look(self) -> None:
        """Ask the servers, and say which embeddings have not learned; about any of those left."""
        left = [
            each
            for each in self._strategy.parameters().values()
            if isinstance(each, SparseShards) and each.tables not in self._answered
        ]
        requests = [on_table(*table, MeasureMoves()) for each in left for table in each.tables]
        try:
            answers = iter(self._strategy.server_client.call(requests))
        except PsnbError:  # of a server: what needs it says so
            return
        hardly = {}
        for each in left:
            updates, moves = zip(*[next(answers) for _ in each.tables], strict=True)
            found = np.concatenate(moves)
            if max(updates) < UPDATES or not found.size:
                continue
            self._answered.add(each.tables)
            if (moved := float(np.median(found))) < HARDLY:
                hardly[each.name] = moved
        if hardly:
            self._events.add(
                EventKind.ROWS_UNMOVED,
                f"{listed([*hardly])}: the rows that were pushed have moved by "
                f"{100 * max(hardly.values()):.2g} % of their length, so they have hardly learned: "
                "try a larger learning rate, or psnb.Adagrad with an accumulator from 0",
            )
