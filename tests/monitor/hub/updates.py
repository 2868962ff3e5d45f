"""Updates as coordinators send them, for the tests of those that pass them on."""

from __future__ import annotations

from typing import Any

from psnb._src.monitor.protocol import VERSION, CommandReply, HubPost, Identity, Summary, Update


def update(sequence: int, full: bool = False, coordinator: str = "abc", **more: Any) -> Update:
    summary = Summary(
        time=1.0,
        state="running",
        tone="busy",
        meaning="Closures run or wait.",
        elapsed=1.0,
        eta=None,
        training=None,
        examples=None,
        examples_per_second=None,
        closures_per_second=1.5,
        queued=sequence,
        in_flight=0,
        completed=0,
        failed=0,
        cancelled=0,
        retried=0,
        workers_lost=0,
        servers_lost=0,
        staleness_mean="nan",
        staleness_max=0,
        phases=[0.0] * 5,
    )
    made = Update(
        type="update",
        version=VERSION,
        coordinator=coordinator,
        sequence=sequence,
        full=full,
        summary=summary,
    )
    made.update(more)  # type: ignore[typeddict-item]
    return made


def identity(kernel: str = "") -> Identity:
    return Identity(
        name="a strategy",
        kernel=kernel,
        process=1,
        host="here",
        cluster="tcp://127.0.0.1:1",
        cluster_id="Scheduler-1",
        cluster_started=0.0,
        dashboard="",
        started=0.0,
    )


def batch(*updates: Update, replies: tuple[CommandReply, ...] = ()) -> HubPost:
    return HubPost(version=VERSION, updates=list(updates), replies=list(replies))
