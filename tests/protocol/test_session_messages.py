"""What a connection and a session say, and how it travels."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from msgspec.structs import asdict

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement
from psnb._src.protocol.messages import (
    AnnounceStrategies,
    AskLease,
    Assignment,
    BeginLease,
    CancelClosures,
    ChainsRead,
    ClosureResult,
    ClosureResults,
    ClosuresReturned,
    CopiesFlushed,
    DefineResource,
    FlushCopies,
    FlushUndecided,
    KeepResult,
    Lease,
    LinesWritten,
    QuestionAsked,
    RecallClosures,
    ReleaseResources,
    ReturnLease,
    RunClosures,
    SessionOpening,
    SignOfLife,
    TakeAnswer,
    Taken,
    TakenRange,
    WorkerLeaves,
)
from psnb._src.utils.stages import Stages, StageStatistics

ASSIGNMENT = Assignment(
    7,
    "f",
    10,
    17,
    True,
    2,
    5,
    None,
    b"args",
    [b"input"],
    [TakenRange(10, 1, 6, 3, {"at": 4}, 2)],
    1,
)

LAYOUT = Layout("s", 2, 1, 10.0, (ShardPlacement(ServerAddress("tcp://a", "a")),))

STAGE = StageStatistics("map(parse)", 7, 0.5, level=1, limit=2, place=1 << 62)

MESSAGES = [
    RunClosures(LAYOUT, 3, {"f": ("name", b"pickled")}, ["g"], [ASSIGNMENT] * 2),
    RunClosures(None, 3, {}, [], []),
    RecallClosures([1, 2]),
    CancelClosures([1, 2]),
    FlushCopies(),
    DefineResource(1, b"call"),
    ReleaseResources([1]),
    TakeAnswer(1, Lease(0, 2, None, None, [2])),
    ClosureResults(
        [Taken(2, 0, 7, 1, 1, {"at": 2}, False)],
        [(1.0, {"loss": 0.5})],
        [0.1] * 5,
        [
            ClosureResult(7, 5, False, True, b"front", [b"value"], 0.1, True, [3]),
            ClosureResult(7, 0, True, True, b"", [b"value"], 0.1, True, [], ("writer", 5)),
        ],
    ),
    ClosureResults([], [], [0.0] * 5, []),
    ClosuresReturned([7]),
    CopiesFlushed(b"", 2),
    FlushUndecided(("writer", 5)),
    SignOfLife(1 << 30, None, 1.5, "running step", 2.5),
    ChainsRead({"range>map": Stages([STAGE])}),
    LinesWritten([(1.5, "step #7", "loss 0.5")]),
    WorkerLeaves(),
    QuestionAsked(1, AskLease(2, 7, None)),
    QuestionAsked(1, BeginLease(2, 0, {"at": 0}, [[1, 5, "aa"]])),
    QuestionAsked(1, ReturnLease(2, 0)),
    QuestionAsked(1, KeepResult(7, 2, 5, b"value")),
    QuestionAsked(1, AnnounceStrategies(["other"])),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: Any) -> None:
    arrived = pickle.loads(pickle.dumps(message))
    assert type(arrived) is type(message)
    assert arrived == message


@pytest.mark.parametrize(
    "message", [MESSAGES[0], MESSAGES[8]], ids=lambda message: type(message).__name__
)
def test_a_batch_pickles_as_tuples_which_is_faster_than_objects(message: Any) -> None:
    [_, arguments, *_] = message.__reduce__()
    assert arguments[-1]
    assert all(type(each) is tuple for each in arguments[-1])


def test_an_opening_travels_in_a_dask_message() -> None:
    opening = SessionOpening("coordinator", "worker-1", 1, 4, 0.5, 30.0, "strategy", None, 2)
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(asdict(opening)))
    assert SessionOpening(**arrived) == opening
