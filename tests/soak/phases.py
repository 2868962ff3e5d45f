"""Phases: one configuration each; ``python -m tests.soak.phases PHASE SECONDS SEED`` runs one.

Each in a process of its own, which prints its row as JSON in its last line: what hangs or crashes
there ends no other.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import json
import logging
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import psnb
from tests.soak.chaos import Chaos
from tests.soak.epochs import run_epochs
from tests.soak.large_table import save_a_large_table
from tests.soak.little_memory import train_in_little_memory
from tests.soak.notebook import Notebook, ViolationError
from tests.soak.notebooks import other_notebook, two_notebooks
from tests.soak.processes import LocalProcesses
from tests.soak.table import Row
from tests.soak.two_hosts import two_hosts

HARM = {"worker": 4.0, "server": 6.0, "freeze": 5.0}
"""Seconds between two of a kind, on average."""


def _training(
    mode: psnb.Mode, replicas: int, servers: int, row: Row, rng: np.random.Generator, seconds: float
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        psnb.local_cluster(workers=3, servers=servers) as client,
    ):
        here = Path(folder)
        options = {"replicas": replicas, "shards": servers + 1}
        notebook = Notebook(client, here, here / "shared", rng.spawn(1)[0], row, mode, **options)
        note_kill = notebook.exposure.note_kill
        with notebook.strategy:
            with Chaos(LocalProcesses(client), rng.spawn(1)[0], HARM, row, note_kill):
                notebook.train(seconds)
            notebook.finish()


Phase = Callable[[Row, np.random.Generator, float], None]

PHASES: dict[str, tuple[float, Phase]] = {
    "Async, a copy": (0.2, functools.partial(_training, psnb.Async(), 1, 3)),
    "Async, no copy": (0.1, functools.partial(_training, psnb.Async(), 0, 2)),
    "Sync, a copy": (0.12, functools.partial(_training, psnb.Sync(4), 1, 3)),
    "Sync, no copy": (0.06, functools.partial(_training, psnb.Sync(3), 0, 2)),
    "Geo, a copy": (0.12, functools.partial(_training, psnb.Geo(5), 1, 2)),
    "Geo, no copy": (0.06, functools.partial(_training, psnb.Geo(5), 0, 2)),
    "little memory": (0.04, train_in_little_memory),
    "two notebooks": (0.1, two_notebooks),
    "epochs in memory": (0.06, run_epochs),
    "two hosts": (0.14, two_hosts),
    "a large table": (0.0, save_a_large_table),
}
"""Each with its share of the time; a large table takes what it takes."""


def _main(phase: str, seconds: str, seed: str, *more: Any) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where it hangs
    logging.basicConfig(format="%(asctime)s %(message)s")
    for each in ("psnb", "tests.soak"):
        logging.getLogger(each).setLevel(logging.INFO)
    rng, row = np.random.default_rng(int(seed)), Row(phase)
    run = functools.partial(other_notebook, *more) if more else PHASES[phase][1]
    try:
        run(row, rng, float(seconds))
    except ViolationError as violation:
        row.violations.append(str(violation))
    except Exception as error:  # whatever nobody has thought of
        logging.exception("unexpected")
        row.violations.append(f"{type(error).__name__}: {error}")
    print(json.dumps(dataclasses.asdict(row)), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
