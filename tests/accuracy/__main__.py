"""Whether ways to train agree: ``python -m tests.accuracy [ROW ...] [--seeds N]``.

It prints the table of ``docs/figures.md``: what the flights model reaches on parameter servers in
one way, beside another way or one process, and what the difference may be. Its exit status is 1 if
it is more anywhere. All rows with three seeds take a quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import mean

from distributed import Client

import psnb
from psnb.demo import model
from tests.accuracy import runs
from tests.accuracy.runs import Pass

LONG = 8
"""Passes of the runs in which a worker is killed every 20 s: a pass takes less than that."""


EQUAL = 1e-5
"""What synchronous rounds may differ by from one process."""


@dataclass(frozen=True)
class Comparison:
    """A row of the table: a way to train, what it is compared with, and the most they may differ.

    ``ways`` are functions of the seed.
    """

    way: str
    beside: str
    bar: float
    ways: tuple[Callable[[int], Pass], Callable[[int], Pass]]

    def told(self, seeds: range) -> tuple[bool, str]:
        """Train in both ways with all seeds; return whether the bar is met, and a row."""
        found, others = ([way(seed) for seed in seeds] for way in self.ways)
        difference = mean(each.auc for each in found) - mean(each.auc for each in others)
        met = abs(difference) < self.bar
        kills = [each.kills for each in found]
        if any(kills):
            met = met and all(kills)
        cells = (
            *(self.way + (f" ({_listed(kills, 'd')} kills)" if any(kills) else ""), self.beside),
            *(_aucs(found), _aucs(others)),
            *(f"{difference:+.4f}", f"{self.bar:g}", "yes" if met else "no"),
        )
        return met, f"| {' | '.join(cells)} |"


def _listed(values: list[int] | list[float], form: str) -> str:
    return ", ".join(f"{value:{form}}" for value in values)


def _aucs(passes: list[Pass]) -> str:
    values = [each.auc for each in passes]
    return f"{mean(values):.4f} ({_listed(values, '.4f')})"


def comparisons(client: Client) -> Mapping[str, Comparison]:
    """Return all rows of AUCs, by what they are called on the command line."""

    @cache
    def synchronous(seed: int) -> Pass:
        return _said("sync", seed, runs.synchronous(client, seed))

    @cache
    def asynchronous(seed: int) -> Pass:
        return _said("async", seed, runs.asynchronous(client, seed))

    def threads(seed: int) -> Pass:
        return _said("hogwild", seed, runs.asynchronous(client, seed, threads=2))

    def often(seed: int) -> Pass:
        return _said("killed often", seed, runs.asynchronous(client, seed, kill_every=3))

    def longer(seed: int) -> Pass:
        return _said("long", seed, runs.asynchronous(client, seed, passes=LONG))

    def killed(seed: int) -> Pass:
        long = {"passes": LONG, "kill_every": 20}
        return _said("killed", seed, runs.asynchronous(client, seed, **long))

    return {
        "async": Comparison("async", "sync", 0.003, (asynchronous, synchronous)),
        "hogwild": Comparison("Hogwild(threads=2)", "sync", 0.005, (threads, synchronous)),
        "often": Comparison(
            "async, a worker killed every 3 s", "async", 0.003, (often, asynchronous)
        ),
        "killed": Comparison(
            f"async, {LONG} passes, a worker killed every 20 s",
            f"async, {LONG} passes",
            0.003,
            (killed, longer),
        ),
    }


def _said(way: str, seed: int, found: Pass) -> Pass:
    kills = f", {found.kills} kills" if found.kills else ""
    print(f"{way}, seed {seed}: AUC {found.auc:.4f}, {found.seconds:.0f} s{kills}", flush=True)
    return found


def step_by_step(client: Client, seed: int) -> bool:
    """Train in synchronous rounds and in one process; print how far they are from each other."""
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
    names = ("alone", "async", "hogwild", "often", "killed")
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(names)}; all")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    asked = parser.parse_args()
    chosen = asked.rows or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no row {', '.join(unknown)}: there are {', '.join(names)}")
    logging.getLogger("distributed").setLevel(logging.ERROR)  # of nannies whose worker was killed
    with psnb.local_cluster(workers=2, servers=1) as client:
        rows = comparisons(client)
        told = [rows[name].told(range(asked.seeds)) for name in chosen if name in rows]
        if told:
            print("\n| way | beside | AUC (each seed) | AUC beside | difference | bar | met |")
            print("| --- | --- | --- | --- | --- | --- | --- |")
            print(*(line for _, line in told), sep="\n", flush=True)
        equal = [step_by_step(client, 0)] if "alone" in chosen else []
    return 0 if all([*equal, *(met for met, _ in told)]) else 1


if __name__ == "__main__":
    sys.exit(_main())
