"""MemoryLimits: what ends this process for its memory, or refuses it more, and how near that is.

Each limit counts something else, and so does this:

- A nanny of Dask ends a process by its resident memory, in which mapped files and shared memory
  count.
- The kernel ends a process of a cgroup, or of a machine, when nothing can be given back any more:
  without the pages of files, but with what all other processes there have.
- ``ulimit -v`` and ``-d`` count addresses. They end nothing: the kernel refuses more of them.

Limits change while a process runs, so all are read each time that is asked for: a few small files,
in half a millisecond. Pure: the files are below a folder that is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import psutil

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

_NO_LIMIT = 1 << 60
"""From here on, a number of cgroup v1 or ``ulimit`` means that there is none."""

_GROUP_FILES = {
    "memory.max": ("memory.current", "at which the kernel ends a process of its cgroup"),
    "memory.high": ("memory.current", "at which the kernel holds the processes of its cgroup up"),
    "memory.limit_in_bytes": (
        "memory.usage_in_bytes",
        "at which the kernel ends a process of its cgroup",
    ),
}
"""Of cgroups, v2 and v1: a limit, what counts against it, and what happens there."""

_GIVEN_BACK = ("active_file", "inactive_file", "slab_reclaimable")
"""What counts as used in a cgroup but is given back first."""


class MemoryUse(NamedTuple):
    """A limit, and how near it is.

    Attributes
    ----------
    used : int
        Bytes that this process has, as the limit counts them.
    left : int
        Bytes that it may get; others that the limit counts as well may get them first.
    total : int
        The limit, in bytes.
    of : str
        What happens there, for messages.
    kills : bool
        Whether a process is ended there; else more memory is refused.
    """

    used: int
    left: int
    total: int
    of: str
    kills: bool = True

    @property
    def share(self) -> float:
        """How much of what this process may have it has, 0 to 1."""
        return self.used / max(1, self.used + self.left)

    def __str__(self) -> str:
        return f"of the {self.total:,} bytes {self.of}, {self.left:,} are left"


class MemoryLimits:
    """The limits of this process.

    Parameters
    ----------
    nanny : int, optional
        The bytes of resident memory at which a nanny ends it.
    root : pathlib.Path
        Where ``proc`` and ``sys`` are.
    process : callable
        Returns ``rss``, ``vms`` and ``data`` of this process, as psutil does.
    """

    def __init__(
        self,
        nanny: int | None = None,
        root: Path = Path("/"),
        process: Callable[[], Any] | None = None,
    ) -> None:
        self._nanny, self._meminfo = nanny, root / "proc" / "meminfo"
        self._process = psutil.Process().memory_info if process is None else process
        self._groups = list(_groups(root))

    def measure(self) -> list[MemoryUse]:
        """Return all limits as they are now."""
        process = self._process()
        found = []
        if self._nanny is not None:
            of = "at which Dask's nanny ends its process (memory_limit)"
            found.append(MemoryUse(process.rss, self._nanny - process.rss, self._nanny, of))
        for folder in self._groups:
            found += _of_group(folder, process.rss)
        found += _of_machine(self._meminfo, process.rss)
        for kind, option, counted in (("AS", "v", "vms"), ("DATA", "d", "data")):
            limit = address_limit(kind)
            used = getattr(process, counted, None)
            if limit is not None and used is not None:
                of = f"that its process may have (ulimit -{option})"
                found.append(MemoryUse(used, limit - used, limit, of, kills=False))
        return [each._replace(left=max(0, each.left)) for each in found]


def address_limit(kind: str) -> int | None:
    """Return this process's ``RLIMIT_AS`` or ``RLIMIT_DATA`` in bytes; None if there is none."""
    number = getattr(resource, f"RLIMIT_{kind}", None)
    if number is None:
        return None
    limit, _ = resource.getrlimit(number)
    return limit if 0 <= limit < _NO_LIMIT else None


def _groups(root: Path) -> Iterator[Path]:
    """Return the folders of the process's memory cgroups, each with all above it."""
    with suppress(OSError, ValueError):  # of other systems, or of a sandbox
        own: dict[str, str] = {}
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own |= dict.fromkeys(controllers.split(","), path)
        for line in (root / "proc/self/mountinfo").read_text().splitlines():
            mount, _, kind = line.partition(" - ")
            kinds = {"cgroup2": "", "cgroup": "memory"}
            system, _, options = kind.split(" ", 2)
            controller = kinds.get(system)
            if controller is None or controller not in own:
                continue
            if controller and controller not in options.split(","):
                continue
            *_, at, point = mount.split(" ")[:5]
            yield from _path(root / point.lstrip("/"), at, own[controller])


def _path(mount: Path, at: str, own: str) -> Iterator[Path]:
    # A container may see its own cgroup as the root, while its path is that of the host.
    below = PurePosixPath(own)
    with suppress(ValueError):
        below = below.relative_to(at)
    parts = [each for each in below.parts if each != "/"]
    while parts and (".." in parts or not (mount / Path(*parts)).is_dir()):
        parts.pop()
    while parts:
        yield mount / Path(*parts)
        parts.pop()
    yield mount


def _of_group(folder: Path, own: int) -> Iterator[MemoryUse]:
    for name, (counted, of) in _GROUP_FILES.items():
        # None there, or "max"; or the group was removed.
        with suppress(OSError, ValueError):
            limit = int((folder / name).read_text())
            if limit >= _NO_LIMIT:
                continue
            numbers = _numbers(folder / "memory.stat")
            # cgroup v1 counts what is below apart.
            back = sum(numbers.get(f"total_{each}", numbers.get(each, 0)) for each in _GIVEN_BACK)
            used = max(0, int((folder / counted).read_text()) - back)
            yield MemoryUse(own, limit - used, limit, f"{of} ({name})")


def _of_machine(meminfo: Path, own: int) -> Iterator[MemoryUse]:
    with suppress(OSError, ValueError, KeyError):
        found = _numbers(meminfo)
        left = found["MemAvailable:"] + found.get("SwapFree:", 0)
        total = found["MemTotal:"] + found.get("SwapTotal:", 0)
        yield MemoryUse(own, 1024 * left, 1024 * total, "that the machine has")


def _numbers(path: Path) -> dict[str, int]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) > 1}
