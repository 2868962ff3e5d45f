"""Runs the model for long: ``python -m tests.model [steps] [first seed]``.

Then a little more of it, watched, to tell which statements of the protocol's core it never reached.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter

from psnb._src.placement import next_layout
from psnb._src.server import commit_log
from tests.model.episode import STEPS, episode
from tests.model.reached import watched

_WATCHED = 100
"""Episodes."""


def _main(steps: str = "1000000", first: str = "0") -> None:
    # Servers log each copy that breaks.
    logging.getLogger("psnb").setLevel(logging.CRITICAL)
    begun, seed, counts = time.monotonic(), int(first), Counter[str]()
    while counts["steps"] < int(steps):
        one = episode(seed)
        counts += one.run(STEPS)
        counts["steps"] += one.world.steps
        seed += 1
    print(f"seeds {first} to {seed - 1}, {time.monotonic() - begun:.0f} s", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:12,} {name}", flush=True)
    with watched(commit_log, next_layout) as missed:
        for number in range(_WATCHED):
            episode(seed + number).run(STEPS)
        print("never reached:", *missed() or ["nothing"], sep="\n    ")


_main(*sys.argv[1:])
