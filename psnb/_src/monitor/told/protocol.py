"""The wire contract between coordinators and their views: the widget and JupyterLab's panel.

Everything travels as JSON text. ``extension/src/protocol.ts`` has the twins of these types, and
``tests/monitor/fixtures/protocol.json`` an example of each message, which both sides test.

::

    coordinator ──Update, Reply──▶ view                    through the widget's comm, or
    view ──Hello, Command──▶ coordinator                   through the hub on the Jupyter server

A view that connects says `Hello` and gets an update with ``full``, which replaces all it had. Every
later one carries what has changed since: figures as they are now, series and lists as what is to be
appended. Updates are numbered; a view that misses one says hello again.

Figures of closures may be NaN or infinite, and so may a sum of finite ones: each `Number` may be a
word instead. Texts of users have bounds (`psnb._src.excerpt`).

Long series are `Packed`: base64 of little-endian float64, so NaN and infinities travel like any
number and a page decodes ten thousand points in a millisecond. Names of metrics, workers, errors
come from users: text, never markup.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from psnb._src.monitor.recorded import Span

VERSION = 1
"""Version of the contract. A view that meets another one says so and shows nothing."""

Packed = str
"""Base64 of little-endian float64."""

Number = float | Literal["nan", "inf", "-inf"]
"""A number on its own, where JSON has no NaN and no infinities."""


class Summary(TypedDict):
    """The coordinator now; in every update."""

    time: float  # seconds since the epoch
    state: str  # idle, running, draining, paused, failing or closed
    elapsed: float  # seconds
    eta: Number | None  # seconds until all that is queued has ended; None if nobody knows
    examples: Number | None  # examples so far, if closures report "examples"
    examples_per_second: Number | None
    closures_per_second: Number
    queued: int
    in_flight: int
    completed: int
    failed: int
    cancelled: int
    retried: int
    staleness_mean: Number
    staleness_max: int


class WorkerRow(TypedDict):
    """One worker; of those that a view has, the one with this index is replaced."""

    index: int
    name: str
    address: str
    host: str
    state: str  # connecting, ready, draining or lost
    in_flight: int
    completed: int
    failed: int
    closures_per_second: Number
    busy: Number  # share of its threads' time spent inside closures lately, 0 to 1
    memory: int | None  # bytes of the process; None as long as nobody knows
    last_error: str  # one line; empty if there was none


class ServerRow(TypedDict):
    """One parameter server; the list of them is always whole."""

    name: str
    address: str
    state: str  # serving, or unreachable
    shards: int
    bytes: int  # of parameters, with what optimizers keep
    pulls_per_second: Number  # reads: of a variable, or of rows of an embedding
    pushes_per_second: Number
    staleness: Number  # mean of the updates lately; NaN if there was none


class Metric(TypedDict):
    """One metric that closures report: its figures now, and points to append to its series."""

    name: str
    count: int
    last: Number
    smoothed: Number
    start: int  # points that a view has before these; 0 replaces what it has
    steps: Packed
    times: Packed  # seconds since the epoch
    values: Packed
    averages: Packed


class FailureRow(TypedDict):
    """A closure that raised; to be appended."""

    number: int  # counts from 0
    time: float
    worker: str  # name
    closure: str  # "function #id"
    error: str  # "Type: message", one line
    traceback: str


class EventRow(TypedDict):
    """Something that happened; to be appended."""

    time: float
    kind: str
    worker: str
    message: str


class OptimizerRow(TypedDict):
    """The optimizer of one parameter; the list of them is always whole."""

    parameter: str
    optimizer: str  # its class
    learning_rate: Number | str  # a schedule is told by its text


class CheckpointRow(TypedDict):
    """The newest checkpoint that was asked for."""

    state: Literal["none", "saving", "saved", "failed"]
    path: str  # empty until it is saved
    share: float  # of the parameters that are written, 0 to 1
    error: str


CommandName = Literal[
    "pause",  # no arguments
    "resume",  # no arguments
    "drain",  # no arguments
    "cancel_queued",  # no arguments
    "checkpoint",  # no arguments
    "set_learning_rate",  # parameter: str, value: float
    "add_worker",  # no arguments
    "retire_worker",  # worker: str, its name
]


class Identity(TypedDict):
    """Who a coordinator is; in full updates."""

    name: str  # of the strategy, as people call it
    kernel: str  # id of the kernel, empty outside of Jupyter
    process: int
    host: str
    cluster: str  # the scheduler's address
    dashboard: str  # URL of Dask's own dashboard, or empty
    started: float  # seconds since the epoch


class Update(TypedDict):
    """What a coordinator tells its views. A part that is missing has not changed."""

    type: Literal["update"]
    version: int
    coordinator: str  # unique
    sequence: int  # counts the updates of one connection
    full: bool  # replaces all that the view has; then every part is there
    summary: Summary
    notice: NotRequired[str]  # something people must know; empty for nothing
    identity: NotRequired[Identity]
    depth: NotRequired[list[tuple[float, int, int]]]  # the last minute's (time, queued, in flight);
    # in full updates, views append the summary's figures themselves
    workers: NotRequired[list[WorkerRow]]
    servers: NotRequired[list[ServerRow]]
    metrics: NotRequired[list[Metric]]
    timeline: NotRequired[list[Span]]
    failures: NotRequired[list[FailureRow]]
    events: NotRequired[list[EventRow]]
    optimizers: NotRequired[list[OptimizerRow]]
    checkpoint: NotRequired[CheckpointRow]
    controls: NotRequired[dict[str, str]]  # by command: why it cannot be given, empty if it can


class Hello(TypedDict):
    """A view's first message, and its question for everything after a gap."""

    type: Literal["hello"]
    version: int


class Command(TypedDict):
    """Someone pressed a button."""

    type: Literal["command"]
    version: int
    id: str  # chosen by the view, returns with the reply
    coordinator: str
    command: CommandName
    arguments: dict[str, Any]


class CommandReply(TypedDict):
    """What came of a command, or of a message that was none (then ``id`` may be empty)."""

    type: Literal["reply"]
    version: int
    id: str
    coordinator: str
    error: str  # what went wrong and what to do; empty if nothing did
    result: str  # for people, for example the checkpoint's path


class Source(TypedDict):
    """A coordinator as the hub knows it."""

    coordinator: str
    kind: Literal["kernel", "scheduler"]
    notebook: str  # path of the notebook on the Jupyter server, empty if it has none
    kernel: str  # id, empty for a scheduler
    address: str  # of the scheduler that was attached, empty for a kernel
    gone: str  # why nothing more comes from it; empty while it lives


class Scheduler(TypedDict):
    """A scheduler that was attached to the hub."""

    address: str
    error: str  # why nothing comes from it; empty if it answers


class Sources(TypedDict):
    """Hub to panel: all that there is, on connection and whenever it changes."""

    type: Literal["sources"]
    version: int
    sources: list[Source]
    schedulers: list[Scheduler]


class Attach(TypedDict):
    """Panel to hub: watch a scheduler, or no longer; the hub answers with a `CommandReply`."""

    type: Literal["attach", "detach"]
    version: int
    id: str
    address: str  # http://… of the scheduler's dashboard


class HubPost(TypedDict):
    """Kernel to hub, the body of a POST: news of one coordinator."""

    version: int
    updates: list[Update]
    replies: list[CommandReply]


class PendingCommands(TypedDict):
    """The hub's answer to a `HubPost`, and what a kernel is to do."""

    version: int
    hello: bool  # the next update is to be a full one
    commands: list[Command]
