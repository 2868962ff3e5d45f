"""Comparison: a row of the table, and whether its bar is met. Pure, but for the ways to train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import mean


@dataclass(frozen=True)
class Pass:
    """What came of training: the held-out AUC, the seconds, and how many workers were killed."""

    auc: float
    seconds: float
    kills: int = 0


@dataclass(frozen=True)
class Comparison:
    """A way to train and what it is compared with, as functions of the seed.

    With no seed may their AUCs differ by the bar or more. Where ``kills``, workers are killed in
    the first way; a run in which none was shows nothing, so that the bar is not met.
    """

    way: str
    beside: str
    bar: float
    train: Callable[[int], Pass]
    train_beside: Callable[[int], Pass]
    kills: bool = False

    def told(self, seeds: Iterable[int]) -> tuple[bool, str]:
        """Train in both ways with all seeds; return whether the bar is met, and the row."""
        pairs = [(self.train(seed), self.train_beside(seed)) for seed in seeds]
        apart = [one.auc - other.auc for one, other in pairs]
        met = max(map(abs, apart)) < self.bar
        way, kills = self.way, [one.kills for one, _ in pairs]
        if self.kills:
            met, way = met and all(kills), f"{way} ({', '.join(map(str, kills))} kills)"
        cells = (
            *(way, self.beside, _aucs(one for one, _ in pairs), _aucs(other for _, other in pairs)),
            *(f"{mean(apart):+.4f}", f"{max(apart, key=abs):+.4f}", f"{self.bar:g}"),
            "yes" if met else "no",
        )
        return met, f"| {' | '.join(cells)} |"


HEAD = (
    "| way | beside | AUC (of each seed) | AUC beside | difference | worst seed | bar | met |"
    "\n| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def _aucs(passes: Iterable[Pass]) -> str:
    values = [each.auc for each in passes]
    return f"{mean(values):.4f} ({', '.join(f'{value:.4f}' for value in values)})"
