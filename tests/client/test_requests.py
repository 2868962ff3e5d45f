"""What a request that cannot be answered says: parameters by their names, no names of classes."""

from __future__ import annotations

import pytest

from psnb._src.client.requests import Request, lost, unresponsive
from psnb._src.placement.layout import ServerAddress, ShardId
from psnb._src.server.commit_log import Commit, Part
from psnb._src.server.operations import CommitParts, CountTraffic, MeasureTables, PreparePart
from psnb._src.server.tables.operations import ReadValues, ShardOperation, on_table

SHARD = ShardId("s", 3)
COMMIT = Commit("writer", 1, 0)
PARTS = {
    0: Part([on_table("users", ReadValues())]),
    3: Part([on_table("w", ReadValues()), on_table("users", ReadValues())]),
}


@pytest.mark.parametrize(
    ("operation", "named"),
    [
        (on_table("w", ReadValues()), "'w'"),
        (PreparePart(COMMIT, PARTS[0]), "'users'"),
        (CommitParts(COMMIT, PARTS), "'users', 'w'"),
        (MeasureTables(), "the parameters"),
    ],
)
def test_a_shard_is_called_by_its_parameters(operation: ShardOperation, named: str) -> None:
    request = Request(SHARD, operation)
    assert str(lost(request, None)).startswith(f"shard 3 of {named} is gone with its server: no ")
    assert str(unresponsive(request, "why")).startswith(
        f"shard 3 of {named} does not answer: why. "
    )


def test_a_server_is_called_as_on_the_dashboard() -> None:
    request = Request(ServerAddress("tcp://host:1", "psnb-server-e953cf12-2"), CountTraffic())
    for error in (lost(request, OSError("why")), unresponsive(request, "why")):
        assert str(error) == "parameter server 2 at tcp://host:1 does not answer: why"
