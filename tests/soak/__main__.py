"""Soak: ``python -m tests.soak SECONDS [--seed N] [--only PHASE]``.

It goes round all phases (`tests.soak.phases`), in five minutes each time, and prints a table in the
end. Its exit status is 1 if anything was violated; then what each of those processes wrote is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from tests.integration.namespaces import ADD_LINK, APART
from tests.soak.phases import PHASES
from tests.soak.table import Row, printed

_ROUND = 300.0
_GRACE = 600.0
"""Seconds that a phase may take beyond its own, to start, to wait for what is slow, and to end."""


def _main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--only", choices=PHASES, action="append", help="may be given repeatedly")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    seeds = np.random.default_rng(asked.seed)
    chosen = asked.only or list(PHASES)
    share = sum(PHASES[name][0] for name in chosen) or 1.0
    rows = {name: Row(name) for name in chosen}
    logs = Path(tempfile.mkdtemp(prefix="psnb-soak-"))
    rounds = max(1, round(asked.seconds / _ROUND))
    for number in range(rounds):
        for name, row in rows.items():
            seconds = asked.seconds / rounds * PHASES[name][0] / share
            log = logs / f"{number}-{name.replace(' ', '-').replace(',', '')}.log"
            ended = _run(name, seconds, int(seeds.integers(2**32)), log)
            row.add(ended)
            print(f"{number + 1}/{rounds} {name}: {ended}", flush=True)
    print(f"\n{printed(rows.values())}\n", flush=True)
    wrong = [f"{row.phase}: {each}" for row in rows.values() for each in row.violations]
    if wrong:
        print(f"seed {asked.seed}; logs are in {logs}", *wrong, sep="\n\n", flush=True)
    else:
        shutil.rmtree(logs)
    return bool(wrong)


def _run(name: str, seconds: float, seed: int, log: Path) -> Row:
    """Run a phase in a process of its own and return its row."""
    command = [sys.executable, "-m", "tests.soak.phases", name, str(seconds), str(seed)]
    if name == "two hosts":
        able = subprocess.run([*APART, *ADD_LINK], capture_output=True, text=True, check=False)
        if able.returncode:
            return Row(name, note=f"left out: no namespaces here ({able.stderr.strip()})")
        command = [*APART, *command]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        ) as phase,
    ):
        try:
            said, _ = phase.communicate(timeout=seconds + _GRACE)
        except subprocess.TimeoutExpired:
            phase.send_signal(signal.SIGUSR1)  # it writes down where its threads are
            time.sleep(1)
            said = ""
        finally:
            with suppress(ProcessLookupError):  # all of them have ended
                os.killpg(phase.pid, signal.SIGKILL)
    try:
        return Row(**json.loads(said.splitlines()[-1]))
    except (IndexError, ValueError):
        return Row(name, violations=["it hangs or crashes: see its log"])


if __name__ == "__main__":
    sys.exit(_main())
