"""Evaluation: a closure that runs a step over one split of a dataset and lets it write nothing.

What it reports stays out of the coordinator's metrics; it is the closure's result, so it counts
once, whichever worker dies. Threads: those of all closures on a worker share the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from psnb._src.data import Dataset
from psnb._src.metrics import MetricState
from psnb._src.monitor import EXAMPLES, NO_METRICS
from psnb._src.parameters import writing_nothing
from psnb._src.runtime import ReportedStates, entered, worker_context
from psnb._src.training.rows import CountedRows
from psnb.errors import ConfigurationError


@dataclass
class SplitFigures:
    """What one split came to.

    Attributes
    ----------
    rows : int
        Examples.
    sums, weights : dict
        Of each number that was reported: the sum, each times its examples, and the examples.
    states : dict
        Of each metric: the state.
    """

    rows: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    states: dict[str, MetricState] = field(default_factory=dict)

    def add(self, values: dict[str, float], examples: float) -> None:
        """Add numbers that were reported of some examples."""
        for name, value in values.items():
            if name not in NO_METRICS:
                self.sums[name] = self.sums.get(name, 0.0) + value * examples
                self.weights[name] = self.weights.get(name, 0.0) + examples


class Evaluation:
    """Evaluates whole splits.

    Parameters
    ----------
    step : callable
        A closure of an iterator, which reports metrics.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        name = getattr(step, "__qualname__", type(step).__qualname__)
        self.__qualname__ = self.__name__ = f"evaluation by {name}"

    def __call__(self, datasets: Sequence[Dataset], number: int) -> SplitFigures:
        """Return the figures of a split."""
        found, states = SplitFigures(), ReportedStates()
        with datasets[number].iterator() as iterator:
            counted = CountedRows(iterator)
            since = examples = 0  # rows at the last report, and those that it was of

            def report(when: float, values: dict[str, float]) -> None:
                nonlocal since, examples
                if counted.rows > since:
                    since, examples = counted.rows, counted.rows - since
                found.add(values, values.get(EXAMPLES, examples))

            context = replace(worker_context(), send_report=report, states=states)
            with entered(context), writing_nothing():
                while not counted.ended:
                    before = counted.batches
                    try:
                        self._step(counted)
                    except StopIteration:
                        if not counted.ended:
                            raise
                    if counted.batches == before and not counted.ended:
                        raise ConfigurationError(
                            f"{self.__name__}: it has taken nothing from its iterator, so it would "
                            "never end; batch = next(iterator)"
                        )
        found.rows, found.states = counted.rows, states.merged()
        return found


def merged_figures(parts: Iterable[SplitFigures]) -> dict[str, float]:
    """Return the metrics of all splits, and how many examples there were."""
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    states: dict[str, MetricState] = {}
    rows = 0
    for part in parts:
        rows += part.rows
        for name, value in part.sums.items():
            sums[name] = sums.get(name, 0.0) + value
            weights[name] = weights.get(name, 0.0) + part.weights[name]
        for name, state in part.states.items():
            states[name] = states[name] + state if name in states else state
    means = {name: value / weights[name] for name, value in sums.items() if weights[name]}
    return means | {name: state.result() for name, state in states.items()} | {EXAMPLES: rows}
