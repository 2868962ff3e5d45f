"""The protocol of commits, copies, failover and recovery, in a world of chance."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from psnb._src.client.tables import marks
from psnb._src.server.commit_log import CommitLog
from psnb._src.server.operations import EndLoading
from psnb._src.server.server import Host
from psnb._src.server.shard import ParameterShard
from psnb._src.server.snapshots import RowSnapshot
from psnb._src.server.tables.changed_rows import ChangedRows
from psnb._src.server.tables.row_index import GrowingRowIndex
from tests.model.episode import MODES, STEPS, Episode, episode

MORE = pytest.mark.second_tier("more seeds")
SEEDS = [0, 1, *(pytest.param(seed, marks=MORE) for seed in range(2, 7))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_each_closure_counts_wholly_from_one_attempt_or_not_at_all(
    mode: str, replicas: int, seed: int
) -> None:
    Episode(seed, mode=mode, replicas=replicas, careful=False).run(STEPS)


WRONG = {
    "a worker gave up what the notebook had decided to apply": 30072,
    "a server that knew nothing of a commit made a half of it": 111,
    "a closure read from a server that was taken for lost": 30022,
    "an exchange that was not taken was told to nobody": 30011,
    "a server came back with a shard whose tables were made while it was frozen": 52168,
    "a copy of a message applied what its worker then gave up": 90204,
    "all was called done before servers had decided on the last exchange of a lost worker": 90032,
}
"""Seeds of what has been wrong. They hold for as long as the model uses chance as it does."""


@pytest.mark.parametrize("seed", WRONG.values(), ids=WRONG)
def test_what_has_been_wrong_is_wrong_no_more(seed: int) -> None:
    episode(seed).run(STEPS)


@pytest.mark.second_tier("tests/strategy/test_recovery.py has the rule")
def test_a_shard_that_an_interrupted_recovery_has_hosted_is_not_taken_for_the_newest() -> None:
    Episode(90218, mode="geo", replicas=0, careful=False).run(STEPS)


HALVES = {
    "the end of a round did not move with its shard": (13, 1),
    "the end of a round came when another owner had closed the shards": (215, 0),
}
"""Seeds and replicas of the same; each is red without what has mended it."""


@pytest.mark.parametrize(("seed", "replicas"), HALVES.values(), ids=HALVES)
def test_another_notebook_ends_a_round_on_all_shards_or_on_none(seed: int, replicas: int) -> None:
    one = Episode(seed, mode="sync", replicas=replicas, careful=False, tells=True, dies=True)
    one.run(STEPS)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_with_copies_nothing_is_lost_while_one_of_them_lives(mode: str, seed: int) -> None:
    Episode(seed, mode=mode, replicas=1, careful=True).run(STEPS)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_a_cancelled_closure_has_completed_or_leaves_nothing(mode: str, seed: int) -> None:
    counts = Episode(seed, mode=mode, replicas=1, careful=False, cancels=True).run(STEPS)
    assert mode == "geo" or counts["closures cancelled"] + counts["closures revoked"]
    assert mode == "geo" or counts["closures revoked"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_each_element_is_used_by_one_step_or_left(mode: str, replicas: int, seed: int) -> None:
    long = mode == "async"
    one = Episode(seed, mode=mode, replicas=replicas, careful=False, long=long, reads=True)
    counts = one.run(STEPS)
    assert counts["elements used"] + counts["elements left"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_rows_that_leave_are_those_of_their_ids_on_all_replicas(mode: str, seed: int) -> None:
    long = mode == "async"
    counts = Episode(seed, mode=mode, replicas=1, careful=True, long=long, rows=True).run(STEPS)
    assert counts["rows that left for others"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=MORE) for seed in range(1, 7))])
@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_all_goes_back_to_a_mark_or_is_dropped_or_nothing_is(
    mode: str, replicas: int, seed: int
) -> None:
    how = {"long": mode == "async", "rows": seed % 2 == 0, "marks": True}
    Episode(seed, mode=mode, replicas=replicas, careful=False, **how).run(STEPS)


def _forget_removed(self: ChangedRows, ids: object) -> None:
    """Note nothing."""


def _choose_alone(self: Host, hosted: Any, operation: Any, reply: Any) -> Any:
    """Run an operation without the replicas' knowing which rows are to leave."""
    operation = hosted.shard.decided(operation)
    for first in hosted.shard.before(operation):
        hosted.shard.run(first)
    return self._change(hosted, operation, reply)


def _looked(self: GrowingRowIndex) -> tuple[object, int, int]:
    """Return the same when rows were given to other ids."""
    return self.numbering, 0, self.count


@pytest.mark.second_tier("of the model itself")
@pytest.mark.parametrize(
    ("of", "name", "wrong", "message"),
    [
        (Host, "_run", _choose_alone, "a replica has other rows"),
        (GrowingRowIndex, "_looked", _looked, "another id's"),
        (ChangedRows, "removing", _forget_removed, "a delta of shard"),
    ],
)
def test_planted_faults_of_rows_that_leave_are_found(
    of: type, name: str, wrong: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of, name, wrong)
    how = {"replicas": 1, "careful": True, "rows": True}
    episodes = (Episode(seed, mode=MODES[seed % 3], **how) for seed in range(20))
    with pytest.raises(AssertionError, match=message):
        deque((each.run(STEPS) for each in episodes), 0)


def _changed(self: RowSnapshot) -> Any:
    """Return the rows that have changed where others have left, too."""
    if self._apart:
        return None
    rows = np.flatnonzero(self._place)
    return rows, self._table.index.ids(slice(self.rows, None))[::-1]


def _take_late(self: CommitLog, key: str, table: str, place: int) -> bool:
    """Take each change."""
    return True


def _make_missing(self: ParameterShard, name: str, moment: str) -> Any:
    """Return a mark of now where there is none."""
    self._set_mark(name, moment)
    return self._marks[name]


def _begin_alone(self: CommitLog, key: str) -> list[Any]:
    """Have nothing wait."""
    return []


def _end_and_forget(self: CommitLog, key: str) -> bool:
    """Forget commits, too: they had their effect before."""
    self._writers.clear()
    return self.loading.pop(key, None) is not None


_on_shard = Host._on_shard


def _keep_half(self: Host, hosted: Any, operation: Any, reply: Any) -> Any:
    """Run an operation, but drop nothing at the end of a load."""
    if isinstance(operation, EndLoading):
        operation = EndLoading(operation.key)
    return _on_shard(self, hosted, operation, reply)


@contextmanager
def _nothing_waits(client: object, shards: object) -> Iterator[None]:
    """Have nothing wait while a mark is made."""
    yield


@pytest.mark.second_tier("of the model itself")
@pytest.mark.parametrize(
    ("of", "name", "wrong", "message"),
    [
        (RowSnapshot, "changed", _changed, "went back to"),
        (CommitLog, "loads", _take_late, "came late, and changed"),
        (ParameterShard, "_marked", _make_missing, "went back to"),
        (CommitLog, "begin_loading", _begin_alone, "does not wait"),
        (CommitLog, "end_loading", _end_and_forget, "another id's, too|is there|twice"),
        (Host, "_on_shard", _keep_half, "stays there"),
        (marks, "others_waiting", _nothing_waits, "half of it is there"),
    ],
)
def test_planted_faults_of_rewinds_are_found(
    of: Any, name: str, wrong: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of, name, wrong)
    how = {"careful": False, "rows": True, "marks": True}
    episodes = (
        Episode(seed, mode=MODES[seed % 3], replicas=seed // 3 % 2, **how) for seed in range(300)
    )
    with pytest.raises(AssertionError, match=message):
        deque((each.run(STEPS) for each in episodes), 0)
