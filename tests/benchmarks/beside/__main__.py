"""``make bench``: psnb beside each peer that installs, and the page of it.

``python -m tests.benchmarks.beside [--quick] [--only dask torch] [--to PAGE]``. A run takes about
ten minutes on two cores, a quick one two or three; the first one also installs the peers.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks.beside import measuring, page
from tests.benchmarks.beside.plan import PEERS
from tests.benchmarks.beside.talking import ROOT

PAGE = ROOT / "docs" / "performance" / "peers.md"
FULL, QUICK = (7, 1.0), (2, 0.25)
"""Rounds, and seconds of each."""


def machine() -> str:
    """Return what this machine is."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    info = Path("/proc/cpuinfo")
    names = re.search("model name\\s*: (.*)", info.read_text()) if info.exists() else None
    name = names[1] if names else platform.machine()
    return f"{cores} cores ({name}), {memory:.0f} GiB, Python {platform.python_version()}"


def main(given: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.beside")
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    parser.add_argument("--only", nargs="+", choices=[peer.module for peer in PEERS])
    parser.add_argument("--to", type=Path, default=PAGE, help="the page")
    options = parser.parse_args(given)
    rounds, seconds = QUICK if options.quick else FULL
    peers = [peer for peer in PEERS if options.only is None or peer.module in options.only]
    load, begin = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as logs:
        run = measuring.measure(peers, rounds, seconds, Path(logs), partial(print, flush=True))
    for peer in PEERS:
        if peer not in peers:
            run.left_out[peer.name] = "this run was asked for others only"
    about = page.About(
        "make bench" + (" QUICK=1" if options.quick else ""),
        machine(),
        datetime.date.today().isoformat(),
        (load, os.getloadavg()[0]),
        rounds,
        seconds,
        (time.monotonic() - begin) / 60,
        options.quick,
    )
    page.write(run, peers, about, options.to)
    print(f"see {options.to} and {options.to.with_suffix('.png')}")


if __name__ == "__main__":
    main()
