"""The wire contract between coordinators and their views: the widget and JupyterLab's panel.

Everything travels as JSON text. ``extension/write_protocol.py`` writes these types in TypeScript,
and ``tests/monitor/fixtures/protocol.json`` has an example of each message, which both sides test.

::

    coordinator ──Update, Reply──▶ view                    through the widget's comm, or
    view ──Hello, Command──▶ coordinator                   through the hub on the Jupyter server

A view that connects sends `Hello` and gets an update with ``full``, which replaces all that it had.
Every later update carries the changes since: current figures, and items to append to series and
lists. Updates are numbered; a view that misses one sends `Hello` again.

Figures of closures may be NaN or infinite, and so may a sum of finite ones: then a `Number` is a
word instead. Texts of users are limited in length (`psnb._src.utils.text`).

Long series are `Packed`: base64 of little-endian float64, so NaN and infinities travel like any
number and a page decodes ten thousand points in a millisecond. Names of metrics, workers and errors
come from users: show them as text, never as markup.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec

from psnb._src.monitor.counters import Span
from psnb._src.monitor.states import Tone

VERSION = 1
"""Version of the contract. A view that gets another version shows only a message."""

SECRET_HEADER = "X-PSNB-Secret"
"""In which a kernel shows its server what that has given to its kernels only."""

WATCH_ONLY = "attached schedulers are for watching: give commands where the coordinator runs"
"""Why no command can be given to a coordinator of such a scheduler."""

Packed = Annotated[str, msgspec.Meta(extra_json_schema={"contentEncoding": "base64"})]
"""Base64 of little-endian float64."""

Number = float | Literal["nan", "inf", "-inf"]
"""A single number; JSON has no NaN and no infinities."""


class Training(TypedDict):
    """How far training is, or was when it ended."""

    epoch: int | None  # from 1 on; None of run_epoch
    epochs: int | None
    batch: int
    batches: int | None  # None until that is known
    validating: tuple[int, int] | None  # parts done, and how many (0 until that is known); None
    # unless it validates


class Summary(TypedDict):
    """The coordinator now; in every update."""

    time: float  # seconds since the epoch
    state: str  # one of COORDINATOR_STATES (`psnb._src.monitor.states`), or unknown
    tone: Tone
    meaning: str  # of the state, in a sentence
    elapsed: float  # seconds
    eta: Number | None  # seconds until training is over, or else all that is queued has ended; None
    # if unknown
    training: Training | None  # None if there was none
    examples: Number | None  # examples so far, if closures report "examples"
    examples_per_second: Number | None
    closures_per_second: Number
    queued: int
    in_flight: int
    completed: int
    failed: int
    cancelled: int
    retried: int
    workers_lost: int  # so far, including those that are back
    servers_lost: int
    staleness_mean: Number
    staleness_max: int
    phases: list[
        float
    ]  # shares of closures' time in each of `psnb._src.utils.phases.PHASES`, lately


class WorkerRow(TypedDict):
    """One worker; it replaces the row with the same index that a view has."""

    index: int
    name: str
    address: str
    host: str
    state: str  # one of WORKER_TONES
    tone: Tone
    in_flight: int
    completed: int
    failed: int
    closures_per_second: Number
    busy: Number  # share of its threads' time spent inside closures lately, 0 to 1
    examples_per_second: Number | None  # that its closures report; None if they report none
    cpu: Number | None  # cores that its process takes; None until it is known
    memory: int | None  # bytes of the process; None until it is known
    gpu_memory: int | None  # bytes; None if it uses no GPU
    last_error: str  # one line; empty if there was none
    activity: str  # what takes it long at the moment; empty if nothing does
    running_since: float | None  # since when, in seconds since the epoch
    phases: list[float]  # shares of its closures' time in each phase, lately; zeros if none ended


class ServerRow(TypedDict):
    """One parameter server; the list of them is always whole."""

    name: str
    address: str
    state: str  # one of SERVER_TONES
    tone: Tone
    shards: int
    bytes: int  # of parameters and optimizer state
    pulls_per_second: Number  # reads of a variable, or of rows of an embedding
    pushes_per_second: Number
    staleness: Number  # mean of the latest updates; NaN if there were none
    cpu: Number | None  # cores that its process takes; None until it is known
    memory: int | None  # bytes of the process; None until it is known
    memory_limit: int | None  # bytes that it may have


class Metric(TypedDict):
    """One metric that closures report: its figures now, and points to append to its series."""

    name: str
    count: int
    last: Number
    smoothed: Number
    start: int  # points that a view has before these; 0 replaces all
    steps: Packed
    times: Packed  # seconds since the epoch
    values: Packed
    averages: Packed


class EpochMark(TypedDict):
    """Where an epoch began; the list of them is always whole."""

    epoch: int
    step: int
    time: float  # seconds since the epoch


class RewindMark(TypedDict):
    """Where parameters went back; the list of them is always whole."""

    step: int
    time: float  # seconds since the epoch; points before it have this time at most
    kept: float  # those behind this time, until the rewind, are of an abandoned branch


class SliceRow(TypedDict):
    """One slice of a metric."""

    slice: str  # its key as text; empty of the others
    value: Number  # NaN if it has none
    examples: int


class Slices(TypedDict):
    """The values of a metric by slice; the list of them is always whole."""

    metric: str
    count: int  # how many slices have a row of their own, of which only the first are here
    rows: list[SliceRow]  # the worst first
    others: SliceRow | None  # all examples of the slices without a row; None if there are none


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
    learning_rate: Number  # of the next update
    schedule: str  # what gives the rate by the step; empty if it is a number


class CheckpointRow(TypedDict):
    """The newest checkpoint that was asked for."""

    state: Literal["none", "saving", "saved", "failed"]
    path: str  # empty until it is saved
    share: float  # fraction of the parameters that is written, 0 to 1
    error: str
    held: float  # seconds that closures were held for it


CommandName = Literal[
    "pause",  # no arguments
    "resume",  # no arguments
    "drain",  # no arguments
    "cancel_queued",  # no arguments
    "stop_training",  # no arguments
    "checkpoint",  # no arguments
    "rewind",  # no arguments: to the newest mark or checkpoint
    "set_learning_rate",  # parameter: str, value: float
    "add_worker",  # no arguments
    "retire_worker",  # worker: str, its name
    "describe_table",  # table: str
    "look_up_row",  # table: str, row_id: str, as JavaScript's numbers do not hold 64 bits
    "worker_output",  # worker: str, its name
]


class OutputRow(TypedDict):
    """A line that a closure has printed, warned of or logged."""

    time: float  # seconds since the epoch
    closure: str  # "function #number"
    text: str


class OutputFound(TypedDict):
    """The last lines of a worker."""

    worker: str
    left_out: int  # lines before these
    lines: list[OutputRow]


class TableDescribed(TypedDict):
    """What the rows of an embedding are like."""

    table: str
    rows: int
    waiting: int  # ids that have no row yet
    bytes: int
    edges: list[Number]  # of the histogram of norms; one more than counts
    counts: list[int]
    zeros: int  # rows of zeros
    not_finite: int  # rows with NaN or infinities
    mean: Number  # of the norms
    ages: list[tuple[int, int]]  # days unseen, and rows; the last may be of more days
    most_used: list[tuple[str, Number]]  # ids, and their scores


class RowNear(TypedDict):
    """A row near to another one."""

    id: str
    score: Number  # the cosine
    norm: Number
    unseen_days: Number | None  # None if that is not recorded


class RowFound(TypedDict):
    """One row of an embedding."""

    table: str
    id: str
    values: list[Number]  # the first ones
    norm: Number
    unseen_days: Number | None  # None if that is not recorded
    score: Number | None
    nearest: list[RowNear]


class Identity(TypedDict):
    """The identity of a coordinator; in full updates."""

    name: str  # of the strategy, as people call it
    kernel: str  # id of the kernel, empty outside of Jupyter
    process: int
    host: str
    cluster: str  # the scheduler's address
    cluster_id: str  # the scheduler's own, another one each time that it is started
    cluster_started: float  # seconds since the epoch; 0 if unknown
    dashboard: str  # URL of Dask's own dashboard, or empty
    started: float  # seconds since the epoch


class Update(TypedDict):
    """What a coordinator sends to its views. A part that is missing has not changed."""

    type: Literal["update"]
    version: int
    coordinator: str  # unique
    sequence: int  # counts the updates of one connection
    full: bool  # replaces all that the view has, and has every part
    summary: Summary
    notice: NotRequired[str]  # a notice for people; empty if there is none
    starved: NotRequired[str]  # a sentence: for what workers wait; empty if not for data
    identity: NotRequired[Identity]
    depth: NotRequired[list[tuple[float, int, int]]]  # the last minute's (time, queued, in flight);
    # in full updates, views append the summary's figures themselves
    workers: NotRequired[list[WorkerRow]]
    servers: NotRequired[list[ServerRow]]
    metrics: NotRequired[list[Metric]]
    epochs: NotRequired[list[EpochMark]]
    rewinds: NotRequired[list[RewindMark]]
    slices: NotRequired[list[Slices]]
    timeline: NotRequired[list[Span]]
    failures: NotRequired[list[FailureRow]]
    events: NotRequired[list[EventRow]]
    optimizers: NotRequired[list[OptimizerRow]]
    tables: NotRequired[list[str]]  # the names of embeddings; the list is always whole
    checkpoint: NotRequired[CheckpointRow]
    controls: NotRequired[dict[str, str]]  # by command: why it cannot be given, empty if it can


class Hello(TypedDict):
    """A view's first message; after a gap, its request to get everything again."""

    type: Literal["hello"]
    version: int


class Command(TypedDict):
    """The user pressed a button."""

    type: Literal["command"]
    version: int
    id: str  # chosen by the view; the reply has it too
    coordinator: str
    command: CommandName
    arguments: dict[str, Any]


class CommandReply(TypedDict):
    """The outcome of a command, or of an invalid message (then ``id`` may be empty)."""

    type: Literal["reply"]
    version: int
    id: str
    coordinator: str
    error: str  # what went wrong and what to do; empty on success
    result: str  # for people, for example the checkpoint's path
    described: NotRequired[TableDescribed]  # of describe_table
    found: NotRequired[RowFound]  # of look_up_row
    output: NotRequired[OutputFound]  # of worker_output


class Source(TypedDict):
    """A coordinator as the hub knows it."""

    coordinator: str
    kind: Literal["kernel", "scheduler", "saved"]
    notebook: str  # path of the notebook on the Jupyter server, empty if it has none
    kernel: str  # id, of a kernel only
    address: str  # of the scheduler that was attached, or the folder of a saved run; else empty
    gone: str  # why it is gone; empty while it lives


class Scheduler(TypedDict):
    """A scheduler that was attached to the hub."""

    address: str  # of its dashboard
    cluster: str  # its own address; empty until it is known
    cluster_id: str
    cluster_started: float
    coordinators: int  # that have reported to it, and live
    error: str  # why it does not answer; empty if it does


class Sources(TypedDict):
    """Hub to panel: all coordinators and schedulers, on connection and after each change."""

    type: Literal["sources"]
    version: int
    sources: list[Source]
    schedulers: list[Scheduler]


class Attach(TypedDict):
    """Panel to hub: attach or detach a scheduler, or list a folder's runs; there is a reply."""

    type: Literal["attach", "detach"]
    version: int
    id: str
    address: str  # http://… of the scheduler's dashboard, or a folder


class HubPost(TypedDict):
    """Kernel to hub, the body of a POST: updates of one coordinator."""

    version: int
    updates: list[Update]
    replies: list[CommandReply]


class PendingCommands(TypedDict):
    """The hub's answer to a `HubPost`: commands for the kernel."""

    version: int
    hello: bool  # the next update must be a full one
    watched: bool  # whether there are panels
    commands: list[Command]


def reply(identity: str, coordinator: str, error: str, result: str = "") -> CommandReply:
    """Return the reply to the message with an id."""
    return CommandReply(
        type="reply",
        version=VERSION,
        id=identity,
        coordinator=coordinator,
        error=error,
        result=result,
    )


def row(kind: type, source: object, /, **others: Any) -> Any:
    """Return a message of a kind; fields that are not given here come from a record by name."""
    return {
        name: others[name] if name in others else getattr(source, name)
        for name in kind.__annotations__
    }
