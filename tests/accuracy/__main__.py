"""Whether ways to train agree: ``python -m tests.accuracy [ROW ...] [--seeds N]``.

It prints the table of ``docs/performance/accuracy.md``: what the flights model reaches on parameter
servers in one way, beside another way or one process, and what the difference may be.
Its exit status is 1 if it is more anywhere. All rows with three seeds take a quarter of an hour on
two cores.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from distributed import Client

import psnb
from psnb.demo import model
from tests.accuracy import runs
from tests.accuracy.comparison import HEAD, Comparison, Pass

LONG = 8
"""Passes of the runs in which a worker is killed every 20 s: a pass takes less than that."""

EQUAL = 1e-5
"""What synchronous rounds may differ by from one process."""


def comparisons(client: Client) -> Mapping[str, Comparison]:
    """Return all rows of AUCs, by what they are called on the command line."""

    def way(name: str, train: Callable[..., Pass], **options: Any) -> Callable[[int], Pass]:
        @cache
        def trained(seed: int) -> Pass:
            found = train(client, seed, **options)
            kills = f", {found.kills} kills" if found.kills else ""
            print(f"{name}, seed {seed}: {found.auc:.4f}, {found.seconds:.0f} s{kills}", flush=True)
            return found

        return trained

    sync = way("sync", runs.synchronous)
    plain = way("async", runs.asynchronous)
    long = f"async, {LONG} passes"
    return {
        "async": Comparison("async", "sync", 0.003, plain, sync),
        "half": Comparison(
            *("sync, rows of bfloat16", "sync", 0.001),
            way("rows of bfloat16", runs.synchronous, dtype="bfloat16"),
            sync,
        ),
        "hogwild": Comparison(
            *("Hogwild(threads=2)", "sync", 0.005),
            way("Hogwild(threads=2)", runs.asynchronous, threads=2),
            sync,
        ),
        "often": Comparison(
            *("async, a worker killed every 3 s", "async", 0.003),
            way("killed every 3 s", runs.asynchronous, kill_every=3),
            plain,
            kills=True,
        ),
        "killed": Comparison(
            *(f"{long}, a worker killed every 20 s", long, 0.003),
            way("killed every 20 s", runs.asynchronous, passes=LONG, kill_every=20),
            way(long, runs.asynchronous, passes=LONG),
            kills=True,
        ),
    }


def step_by_step(client: Client, seed: int) -> bool:
    """Train in synchronous rounds and in one process; print how far they are from each other.

    With ReLU only the losses must be equal: see `runs.smooth`.
    """
    losses = {"ReLU": model.loss, "softplus": runs.smooth}
    found = {name: runs.differences(client, seed, loss, EQUAL) for name, loss in losses.items()}
    print(f"\n| hidden units | steps | largest difference | beyond {EQUAL} | of the loss |")
    print("| --- | --- | --- | --- | --- |")
    for name, marks in found.items():
        for steps, one in marks.items():
            beyond = f"{one.beyond:,} of {one.count:,}"
            print(f"| {name} | {steps} | {one.parameters:.0e} | {beyond} | {one.loss:.0e} |")
    losses_met = all(one.loss < EQUAL for marks in found.values() for one in marks.values())
    return losses_met and all(one.parameters < EQUAL for one in found["softplus"].values())


def _main() -> int:
    names = ("alone", "async", "half", "hogwild", "often", "killed")
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(names)}; all")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    asked = parser.parse_args()
    chosen = asked.rows or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no row {', '.join(unknown)}: there are {', '.join(names)}")
    for name in ("distributed", "psnb"):  # they tell that workers were killed
        logging.getLogger(name).setLevel(logging.ERROR)
    with psnb.local_cluster(workers=2, servers=1) as client:
        rows = comparisons(client)
        told = [rows[name].told(range(asked.seeds)) for name in chosen if name in rows]
        if told:
            print("", HEAD, *(line for _, line in told), sep="\n", flush=True)
        equal = [step_by_step(client, 0)] if "alone" in chosen else []
    return 0 if all([*equal, *(met for met, _ in told)]) else 1


if __name__ == "__main__":
    sys.exit(_main())
