"""Where the cores go while something is measured: a peer's processes, idle time, other work.

From Linux' ``/proc``. Peers import this module in environments of their own: only the standard
library is needed here.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

Roles = Callable[[], Mapping[int, str]]
"""Returns what processes are for, by pid."""
Cores = dict[str, list[float]]
"""How many cores each process of a role took; of `REST`, `IDLE` and `OTHERS` all together."""

ASKS, WORKER, SERVER = "notebook", "worker", "server"
REST, IDLE, OTHERS = "rest", "idle", "others"
"""What is left of a peer's processes; what no one used; and what is not the peer's."""

_IDLE = slice(3, 5)  # in the first line of /proc/stat: idle, and idle with disks at work
_STATES = 8  # the states of a core there; what comes behind is counted in them already
_TICK = 1 / os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process of this machine: its parent, its session, and the seconds of CPU that it used."""

    parent: int
    session: int
    seconds: float


class Moment(NamedTuple):
    """What has been used until now: by each process, by nobody, and by all with nobody."""

    when: float
    processes: dict[int, Process]
    idle: float
    all: float


def now() -> Moment:
    """Return what has been used until now."""
    processes = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                text = (folder / "stat").read_text()
            except OSError:  # it has just ended
                continue
            fields = text.rpartition(")")[2].split()  # the name may have spaces
            used = (int(fields[11]) + int(fields[12])) * _TICK
            processes[int(folder.name)] = Process(int(fields[1]), int(fields[3]), used)
    with Path("/proc/stat").open() as file:
        states = [int(each) * _TICK for each in file.readline().split()[1 : 1 + _STATES]]
    return Moment(time.perf_counter(), processes, sum(states[_IDLE]), sum(states))


def between(before: Moment, after: Moment, roles: Mapping[int, str]) -> Cores:
    """Return how many cores each took on average; the sum is what the machine has.

    Parameters
    ----------
    before, after : Moment
        Of some time.
    roles : Mapping
        What processes are for, by pid. This process is `ASKS`; others of its session or descent
        that have no role are `REST`.
    """
    seconds = after.when - before.when
    own = _own(after.processes)
    found: defaultdict[str, list[float]] = defaultdict(list)
    rest = 0.0
    for pid in sorted(own):
        earlier = before.processes.get(pid)
        used = (after.processes[pid].seconds - (earlier.seconds if earlier else 0.0)) / seconds
        if role := roles.get(pid, ASKS if pid == os.getpid() else ""):
            found[role].append(used)
        else:
            rest += used
    mine, idle = rest + sum(map(sum, found.values())), (after.idle - before.idle) / seconds
    others = (after.all - before.all) / seconds - idle - mine
    return {**found, REST: [rest], IDLE: [idle], OTHERS: [others]}


def _own(processes: Mapping[int, Process]) -> set[int]:
    """Return the pids of this process's session, and of all that descend from it."""
    this = os.getpid()
    own = {pid for pid, each in processes.items() if each.session == processes[this].session}
    children = defaultdict(list)
    for pid, each in processes.items():
        children[each.parent].append(pid)
    pending = [this]
    while pending:
        own.add(pid := pending.pop())
        pending += children[pid]
    return own
