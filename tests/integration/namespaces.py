"""Networks and processes apart from those of this machine: other hosts, as far as Dask can tell.

Whoever uses `linked` must be root of a network namespace, so that it harms no network of the
machine's: run it as a command after `APART`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

AS_ROOT = ("unshare", "--user", "--map-root-user")
"""Runs a command as one that may make namespaces, without any privilege."""

APART = (*AS_ROOT, "--net")
"""Runs a command as the root of a network of its own."""

OWN_PROCESSES = ("--pid", "--fork", "--mount-proc")
"""What else `unshare` must do for processes that see none of the others, nor their memory."""

ADD_LINK = ("ip", "link", "add", "here", "type", "veth", "peer", "name", "there")
HERE, THERE = "10.0.0.1", "10.0.0.2"


def require_namespaces(*command: str) -> None:
    """Skip the test unless this machine has the tools and can run a command."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"namespaces need {', '.join(missing)} (util-linux, iproute2)")
    able = subprocess.run(command, capture_output=True, text=True, check=False)
    if able.returncode:
        pytest.skip(
            "other hosts need user, network and process namespaces and virtual devices (veth), "
            f"which this machine refuses: {able.stderr.strip()}"
        )


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextmanager
def held(*namespaces: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Make namespaces; with `OWN_PROCESSES`, all that runs there ends with the block.

    Yields a process in them, and what runs a command there.
    """
    holder = subprocess.Popen(
        ["unshare", *namespaces, "sh", "-c", "echo; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:  # at its end nothing is left to read, which ends cat
        assert holder.stdout is not None
        assert holder.stdout.read(1) == b"\n", "the namespaces are there"
        of = f"/proc/{holder.pid}/ns"
        net = (f"--net={of}/net",) if "--net" in namespaces else ()
        own = (f"--mount={of}/mnt", f"--pid={of}/pid_for_children")
        # In this folder, or Python would import another psnb than here, if one is installed.
        own = (*own, f"--wd={Path.cwd()}")
        yield holder.pid, ("nsenter", *net, *(own if "--pid" in namespaces else ()), "--")


class Link:
    """The way to another network namespace; ``enter`` runs a command there."""

    def __init__(self, enter: tuple[str, ...]) -> None:
        self.enter = enter

    def set(self, state: str) -> None:
        """Set the far end ``up`` or ``down``; nobody is told, as with a cable."""
        _run(*self.enter, "ip", "link", "set", "there", state)


@contextmanager
def linked(*more: str) -> Iterator[Link]:
    """Make another network namespace (and what ``more`` says), with a link to it."""
    with held("--net", *more) as (holder, enter):
        link = Link(enter)
        _run("ip", "link", "set", "lo", "up")
        _run(*ADD_LINK, "netns", str(holder))
        _run("ip", "address", "add", f"{HERE}/30", "dev", "here")
        _run("ip", "link", "set", "here", "up")
        _run(*link.enter, "ip", "link", "set", "lo", "up")
        _run(*link.enter, "ip", "address", "add", f"{THERE}/30", "dev", "there")
        link.set("up")
        yield link
