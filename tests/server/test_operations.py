"""Messages arrive as what was sent."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import numpy as np
import pytest

from psnb._src.placement.layout import ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.messages import Done, Failed, Moved, ServerReply, ServerRequest
from psnb._src.server.operations import ApplyCommit, CommitParts, OnShard, PreparePart, RepeatChange
from psnb._src.server.tables.operations import (
    AddValues,
    Preview,
    PushGradient,
    PushRows,
    ReadValues,
    SkipUpdates,
    on_table,
)
from psnb._src.transport.message import Message

COMMIT = Commit("w", 3, 2, (0, 1), (ShardId("s", 0), ShardId("s", 4)), ((3, b"x"),), "c", True)
ROWS = PushRows(np.arange(2, dtype=np.uint64), np.ones((2, 3)), None, [1.5])
PART = Part([on_table("v", ROWS), on_table("w", SkipUpdates(3))], 7, 1)
PREVIEW = on_table("v", Preview([AddValues(np.ones(1))], ReadValues()))
MESSAGES = [
    ServerRequest(1, "key", []),
    ServerRequest(1, "key", [OnShard(0, PREVIEW), OnShard(1, CommitParts(COMMIT, {1: PART}))]),
    ServerReply(1, None),
    ServerReply(1, [Done(np.ones(2), 4), Failed(ValueError("no")), Moved()]),
    RepeatChange(2, 1, 5, PreparePart(COMMIT, PART)),
    OnShard(2, ApplyCommit(COMMIT, decided=True)),
]


def told(value: Any) -> Any:
    """Return all that is in a message, as plain objects that can be compared."""
    match value:
        case Message():
            return type(value).__name__, told(msgspec.structs.astuple(value))
        case list() | tuple():
            return [type(value).__name__, *map(told, value)]
        case dict():
            return {key: told(each) for key, each in value.items()}
        case np.ndarray():
            return value.dtype, value.tolist()
        case Exception():
            return repr(value)
    return value


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    assert told(pickle.loads(pickle.dumps(message))) == told(message)


@pytest.mark.parametrize("kind", ["rows", "values"])
def test_gradients_that_are_halved_take_half_the_bytes_and_arrive_as_float32(kind: str) -> None:
    gradients = np.ones((1000, 16), np.float32)
    ids = np.arange(1000, dtype=np.uint64)
    pushes = [
        PushRows(ids, gradients, None, [2.5], half=half)
        if kind == "rows"
        else PushGradient(gradients, half=half)
        for half in (False, True)
    ]
    sizes = [len(pickle.dumps(each)) - ids.nbytes * (kind == "rows") for each in pushes]
    assert sizes[1] < 0.51 * sizes[0]
    found: Any = pickle.loads(pickle.dumps(pushes[1]))
    arrived = found.gradients if kind == "rows" else found.gradient
    np.testing.assert_array_equal(arrived, gradients)
    assert (arrived.dtype, found.half) == (np.float32, True)
