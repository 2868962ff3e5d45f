"""Halves: what reads would see at this moment; each commit is there wholly or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from psnb._src.coordinator.scheduling.work import Work
from psnb._src.placement.status import Role
from psnb._src.server.server import Host
from psnb._src.server.tables.operations import ReadValues, on_table
from tests.coordinator.queues import commit_of
from tests.model import rows
from tests.model.direct import DIRECT
from tests.model.reconciler import TABLE
from tests.model.workers import code

if TYPE_CHECKING:
    from tests.model.notebook import Notebook


def contents(host: Host, index: int, table: str = TABLE) -> np.ndarray:
    """Return what a table of a shard holds."""
    values: np.ndarray = host._hosted[index].shard.run(on_table(table, ReadValues()))
    return values


def primaries(notebook: Notebook) -> dict[int, Host]:
    """Return the shards whose primaries live, with these."""
    found = {}
    for index, place in enumerate(notebook.layout.placements):
        server = notebook.world.servers[place.primary.key] if place.primary else None
        if server is not None and server.alive and index in server.host._hosted:
            found[index] = server.host
    return found


def assert_whole(notebook: Notebook) -> None:
    """Assert that nothing is done by halves: to be called while nothing runs."""
    if notebook.half:
        return
    values, direct = {}, {}
    for index, host in primaries(notebook).items():
        # Others cannot be read now: they have not heard that they are it, or have no table.
        if host._hosted[index].role is Role.PRIMARY and index not in notebook.unmade:
            values[index] = contents(host, index)
            if notebook.direct is not None:
                direct[index] = contents(host, index, DIRECT)
            if notebook.followers is not None:
                rows.assert_own(notebook, index, table := rows.table_of(host, index))
                notebook.followers.follow(index, table)
    if notebook.direct is not None:
        notebook.direct.check(direct)
    attempts: dict[int, list[int]] = {}
    for row, attempt in notebook.wrote:
        attempts.setdefault(row, []).append(attempt)
    halves: dict[int, set[bool]] = {}
    for closure in notebook.closures:
        turn = closure.execution.round
        counted = notebook.ending.get(-1 if turn is None else turn, ())
        share = len(counted) if commit_of(closure) in counted else 1
        for row in range(closure.first, closure.first + closure.granted):
            sums = {i: round(float(v[row]) * share) for i, v in values.items()}
            there = _check_step(notebook, closure, row, attempts.get(row, []), sums)
            if there is not None and commit_of(closure) in counted:
                halves.setdefault(turn or 0, set()).add(there)
    for turn, found in halves.items():
        assert len(found) == 1, f"half of round {turn} is there"


def _check_step(
    notebook: Notebook, closure: Work, row: int, attempts: list[int], sums: dict[int, int]
) -> bool | None:
    """Assert that it is there wholly or not at all; return which, if it can be told."""
    there, unknown = False, False
    told = f"step {row} of {closure} {closure.remote.status}: {sums}"
    for attempt in attempts:
        chosen, begun = notebook.wrote[row, attempt]
        if notebook.taken_back(begun):
            back = [each.number for each in chosen if sums.get(each.number) == code(attempt)]
            assert not back, f"attempt {attempt} was taken back, and is on {back}: {told}"
            unknown = True
            continue
        lost, risked = notebook.lost_at, notebook.risked_at
        kept = {
            each.number
            for each in chosen
            if each.number in sums  # others were lost, and nobody has made them again
            and max(lost.get(each.number, -1), risked.get(each.number, -1)) < begun
        }
        if not kept:  # there is nothing left of it, whether it was there or not
            unknown = True
            continue
        found = {index for index in kept if sums[index] == code(attempt)}
        assert found in (set(), kept), f"half of attempt {attempt} is there: {told}"
        assert not (there and found), f"two attempts are there: {told}"
        there = there or bool(found)
    if unknown and not there:
        return None
    quiet = any(number == row for number, _ in notebook.quiet)
    if row < closure.number and notebook.mode == "async" and not quiet:
        assert there, f"it is lost: {told}"
    return there
