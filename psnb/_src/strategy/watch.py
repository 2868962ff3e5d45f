"""ServerWatch: the servers' figures and the optimizers' settings, for dashboards.

One daemon thread, ``psnb-servers``, asks the servers every second while the figures are used, that
is for some seconds after each call of `keep`, and else rarely, for nothing that grows with the
parameters. `keep` starts it, too. Of tables with a bound it says if that is too small. Readers
never wait for it. A server that hangs blocks only this thread, for as long as a request may take.
An unexpected exception is logged, once, and the thread continues.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping

from psnb._src.client.comm_client import CommServerClient
from psnb._src.client.handles import Handle, shards_of
from psnb._src.client.requests import Request, on_table
from psnb._src.client.sparse_shards import SparseShards
from psnb._src.monitor.events import EventKind
from psnb._src.monitor.statistics import ServerStatistics
from psnb._src.monitor.viewed import OptimizerState
from psnb._src.placement.layout import ServerAddress
from psnb._src.server.operations import CountTraffic
from psnb._src.server.tables.operations import DescribeRows
from psnb._src.strategy.gone_rows import GoneRows
from psnb._src.strategy.servers import Servers
from psnb._src.utils.interrupts import Lock
from psnb._src.utils.loops import LoopErrors
from psnb.errors import PsnbError

_STOP_TIMEOUT = 2.0

_OPTIMIZERS_EVERY = 2  # of the intervals: rates change slowly

RARELY = 10.0
"""Seconds between two times that servers are asked while nobody uses the figures."""


class ServerWatch:
    """The latest figures of a strategy's servers. Thread-safe.

    Parameters
    ----------
    servers : Servers
        The servers to ask.
    server_client : CommServerClient
        Sends requests to the servers.
    parameters : callable
        Returns the strategy's parameters by name.
    interval, rarely : float
        Seconds between two times that servers are asked: while the figures are used, and else.
    wanted_seconds : float
        Seconds for which they are used after a call of `keep`.
    """

    def __init__(
        self,
        servers: Servers,
        server_client: CommServerClient,
        parameters: Callable[[], Mapping[str, Handle]],
        interval: float = 1.0,
        wanted_seconds: float = 5.0,
        rarely: float = RARELY,
    ) -> None:
        self._interval, self._rarely, self._wanted_seconds = interval, rarely, wanted_seconds
        self._servers, self._server_client, self._parameters = servers, server_client, parameters
        self._lock = Lock()  # guards the thread's start and end, and `_wanted`
        self._thread: threading.Thread | None = None
        self._wanted = -math.inf
        self._wake, self._stopped = threading.Event(), threading.Event()
        # Each is replaced as a whole, all but the optimizers by the thread alone.
        self._counts: dict[ServerAddress, tuple[float, dict[str, int]]] = {}
        self._found: dict[ServerAddress, ServerStatistics] = {}
        self._optimizers: dict[str, OptimizerState] = {}
        self._gone: dict[object, GoneRows] = {}  # by a table's shards

    def keep(self) -> None:
        """Keep asking the servers for the next seconds; cheap, never waits."""
        with self._lock:
            if not self.wanted():
                self._wake.set()
            self._wanted = time.monotonic()
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="psnb-servers", daemon=True)
                self._thread.start()

    def wanted(self) -> bool:
        """Return whether the figures are used; cheap, any thread."""
        return time.monotonic() - self._wanted <= self._wanted_seconds

    def statistics(self) -> tuple[ServerStatistics, ...]:
        """Return the latest figures of each server; cheap, never waits."""
        lost = [ServerStatistics(each.name, each.address, "lost") for each in self._servers.lost]
        there = [
            self._found.get(each) or ServerStatistics(each.name, each.address)
            for each in self._servers.running
        ]
        return *there, *lost

    def optimizers(self) -> Mapping[str, OptimizerState]:
        """Return the latest state of the optimizers, by parameter; cheap, never waits."""
        return dict(self._optimizers)

    def ask_for_optimizers(self) -> None:
        """Ask for the state of the optimizers now; what cannot be reached is left as it was."""
        live = {name: p.optimizer for name, p in self._parameters().items() if p.optimizer}
        requests = [each.request() for each in live.values()]
        requests += [each.rate_request() for each in live.values()]
        try:
            answers = self._server_client.call(requests)
        except (PsnbError, OSError):
            return  # the last answer is still the best
        self._optimizers = {
            name: OptimizerState(
                type(optimizer).__name__,
                rate,
                repr(optimizer.learning_rate) if callable(optimizer.learning_rate) else "",
            )
            for name, optimizer, rate in zip(
                live, answers[: len(live)], answers[len(live) :], strict=True
            )
        }

    def stop(self) -> None:
        """End the thread; idempotent."""
        with self._lock:
            self._stopped.set()
            self._wake.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_TIMEOUT)

    def _run(self) -> None:
        turn, errors = 0, LoopErrors("Asking the servers how they fare")
        of_optimizers = LoopErrors("Asking the servers for the state of optimizers")
        of_bounds = LoopErrors("Asking the servers how many rows are gone")
        while not self._stopped.is_set():
            self._wake.clear()
            wanted = self.wanted()
            if wanted and turn % _OPTIMIZERS_EVERY == 0:
                with of_optimizers:
                    self.ask_for_optimizers()
            with errors:
                found = self._found = {each: self._ask(each) for each in self._servers.running}
                self._counts = {s: self._counts[s] for s in found if s in self._counts}
            with of_bounds:
                self._ask_for_gone_rows()
            turn = turn + 1 if wanted else 0
            if not self._stopped.is_set():
                self._wake.wait(self._interval if wanted else self._rarely)

    def _ask(self, server: ServerAddress) -> ServerStatistics:
        try:
            ((memory, load),) = self._server_client.call([Request(server, CountTraffic())])
        except (PsnbError, OSError):  # reported as out of reach
            return ServerStatistics(server.name, server.address, "unreachable")
        now = time.monotonic()
        before, last = self._counts.get(server, (-math.inf, load))
        self._counts[server] = now, load
        new = {key: load[key] - last[key] for key in load}
        return ServerStatistics(
            server.name,
            server.address,
            "serving",
            load["shards"],
            load["bytes"],
            new["pulls"] / (now - before),
            new["pushes"] / (now - before),
            new["staleness"] / new["updates"] if new["updates"] else math.nan,
            None if math.isinf(before) else 1e-6 * new["cpu"] / (now - before),
            None if memory is None else memory.used,
            None if memory is None else memory.used + memory.left,
        )

    def _ask_for_gone_rows(self) -> None:
        bounded = {
            each.tables: (each, bound)
            for handle in self._parameters().values()
            if isinstance(each := shards_of(handle), SparseShards)
            and (how := each.spec.eviction) is not None
            and (bound := how.max_rows) is not None
        }
        self._gone = {key: self._gone.get(key) or GoneRows() for key in bounded}
        for key, (each, bound) in bounded.items():
            requests = [on_table(*table, DescribeRows()) for table in each.tables]
            try:
                found = self._server_client.call(requests)
            except (PsnbError, OSError):
                continue  # what needs the table says so
            gone, pushed = (sum(part[what] for part in found) for what in ("missed", "pushed"))
            if text := self._gone[key].news(each.name, bound, gone, pushed):
                self._servers.events.add(EventKind.BOUND_TOO_SMALL, text)
