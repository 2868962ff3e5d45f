"""What a layout says of shards whose servers do not all answer, and how it travels."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec
import pytest

from psnb._src.placement.layout import Layout, ServerAddress, ShardPlacement, unpacked

A, B, C = (ServerAddress(f"tcp://{name}", name) for name in "abc")


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (ShardPlacement(A), True),
        (ShardPlacement(A, (B,)), True),
        (ShardPlacement(B), False),
        (ShardPlacement(B, (A,)), None),
        (ShardPlacement(B, syncing=A), None),
        (ShardPlacement(B, (C,)), False),
        (ShardPlacement(None), False),
    ],
    ids=["served", "with a replica", "alone", "copied", "filling", "with its copy", "lost"],
)
def test_copies_of_what_does_not_answer_may_take_over(
    placement: ShardPlacement, expected: bool | None
) -> None:
    layout = Layout("s", 1, 1, 10.0, (ShardPlacement(A), placement))
    assert layout.served({A}.__contains__) is expected


PLACEMENTS = ShardPlacement(A, (B,), C, leaving=(C,), term=2), ShardPlacement(None, successor=B)


@pytest.mark.parametrize("use_list", [False, True], ids=["tuples", "lists"])
def test_a_packed_layout_travels_in_dask_messages(use_list: bool) -> None:
    layout = Layout("s", 1, 1, 10.0, PLACEMENTS)
    arrived = msgpack.unpackb(msgpack.packb(layout.packed()), use_list=use_list)
    assert unpacked(arrived) == layout


@pytest.mark.parametrize(
    "packed",
    [
        None,
        ["s", 1],
        ["s", "1", 1, 10.0, []],
        ["s", 1, 1, 10.0, [[["tcp://a"]]]],
        ["s", 1, 1, 10.0, [[["tcp://a", 5]]]],
    ],
    ids=["nothing", "half", "version", "half a server", "key"],
)
def test_what_is_no_layout_is_refused(packed: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        unpacked(packed)
