"""Staleness beside held-out AUC and speed, by update mode: a figure of the site, from one run.

``python -m tests.benchmarks.staleness`` trains the flights demo's model for one pass in each way,
on two workers and a server, with three seeds in turn; prints a table of medians, and draws
``docs/concepts/images/staleness.png``. It takes three minutes on two cores.

All ways begin with the same weights and rows, take the same batches of 512 flights in the same
order, and use the same learning rates. In mode `Sync` a round's two closures have a half of a batch
each, and its loss, a sum over flights, counts twice; so a round's average is the gradient of the
whole batch. The first steps, in which workers read the flights and compile, are not timed.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from distributed import Client

import psnb
import psnb.jax
from psnb._src.demo import run
from psnb.demo import flights, model

BATCH, WORKERS = 512, 2
STEPS = flights.TRAINING // BATCH
WARM = 32
"""Steps that are not timed."""

FIGURE = Path(__file__).parents[2] / "docs" / "concepts" / "images" / "staleness.png"

Mode = psnb.Async | psnb.Sync | psnb.BoundedStaleness | psnb.Geo


@dataclass(frozen=True)
class Way:
    """A way to train: its name, mode, threads of each worker, and closures that share a batch."""

    name: str
    mode: Mode
    threads: int = 1
    shares: int = 1

    @property
    def kind(self) -> str:
        """The name of the mode."""
        return type(self.mode).__name__


WAYS = (
    Way("Sync(2)", psnb.Sync(WORKERS), shares=WORKERS),
    Way("BoundedStaleness(0)", psnb.BoundedStaleness(0)),
    Way("BoundedStaleness(1)", psnb.BoundedStaleness(1)),
    Way("BoundedStaleness(3), 4 threads", psnb.BoundedStaleness(3), threads=4),
    Way("Async, 1 thread", psnb.Async()),
    Way("Async, 2 threads", psnb.Async(), threads=2),
    Way("Async, 4 threads", psnb.Async(), threads=4),
    Way("Async, 8 threads", psnb.Async(), threads=8),
    Way("Async, 16 threads", psnb.Async(), threads=16),
    Way("Geo(4)", psnb.Geo(4)),
    Way("Geo(16)", psnb.Geo(16)),
)


@dataclass(frozen=True)
class Point:
    """What came of a pass: mean and largest staleness, held-out AUC, and flights a second."""

    mean: float
    most: int
    auc: float
    rate: float


Passes = Mapping[Way, Sequence[Point]]


def trained(client: Client, way: Way, seed: int) -> Point:
    """Train one pass in a way, and score the held-out flights."""

    def loss(layers: Any, rows: Any, batch: Any) -> Any:
        found, reported = model.loss(layers, rows, batch)
        return way.shares * found, reported

    with psnb.ParameterServerStrategy(client, mode=way.mode) as strategy:
        of = run.place(strategy, seed)
        coordinator = psnb.ClusterCoordinator(strategy)
        trainer = run.make_trainer(coordinator, of, progress=False)
        step = psnb.jax.step(loss, has_aux=True, **of)

        def train_on(number: int, share: int) -> None:
            batch, size = run.loaded()[0].batch(number, BATCH, seed), BATCH // way.shares
            step.train_on(vars(batch[share * size : (share + 1) * size]))

        def train(first: int, stop: int) -> float:
            begun = time.perf_counter()
            for number in range(first, stop):
                for share in range(way.shares):
                    coordinator.schedule(train_on, (number, share))
            coordinator.join()
            return time.perf_counter() - begun

        coordinator.use_threads(way.threads)
        train(0, WARM)
        seconds = train(WARM, STEPS)
        coordinator.use_threads(None)
        stale = coordinator.statistics().staleness
        scores = trainer.infer_from_dataset(run.held_out())
        auc = float(model.auc(run.loaded()[1].labels, scores))
        return Point(stale.mean, stale.max, auc, (STEPS - WARM) * BATCH / seconds)


def middle(points: Sequence[Point], name: str) -> float:
    """Return the median of a field."""
    return float(median(getattr(each, name) for each in points))


def draw(passes: Passes, path: Path) -> None:
    """Draw AUC and speed over staleness: medians of the seeds, and the range of all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    kinds = dict(zip(("Sync", "BoundedStaleness", "Async", "Geo"), "osD^", strict=True))
    panels = figure.subplots(1, 2)
    for axes, name in zip(panels, ("auc", "rate"), strict=True):
        for kind, marker in kinds.items():
            own = [points for way, points in passes.items() if way.kind == kind]
            x, y = ([middle(points, each) for points in own] for each in ("mean", name))
            values = [[getattr(each, name) for each in points] for points in own]
            low = [at - min(found) for at, found in zip(y, values, strict=True)]
            high = [max(found) - at for at, found in zip(y, values, strict=True)]
            axes.errorbar(x, y, (low, high), fmt=marker, capsize=3, label=kind)
        axes.set_xscale("symlog", linthresh=0.5)
        axes.set_xticks([0, 0.5, 1, 2, 5, 10, 20], ["0", "0.5", "1", "2", "5", "10", "20"])
        axes.set_xlim(-0.08, 30)
        axes.set_xlabel("mean staleness: updates of others")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("held-out AUC after one pass")
    panels[1].set_ylabel("flights a second")
    panels[1].set_ylim(bottom=0)
    panels[0].legend(loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    """Run all ways, print a table, and draw the figure."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.staleness")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--to", type=Path, default=FIGURE, help="the PNG to write")
    asked = parser.parse_args()
    for name in ("distributed", "psnb"):
        logging.getLogger(name).setLevel(logging.ERROR)
    passes: dict[Way, list[Point]] = {way: [] for way in WAYS}
    with psnb.local_cluster(workers=WORKERS, servers=1) as client:
        for seed in range(asked.seeds):
            for way, points in passes.items():
                points.append(trained(client, way, seed))
                print(f"{way.name}, seed {seed}: {points[-1]}", flush=True)
    print("\n| way | mean staleness | largest | held-out AUC | flights/s |")
    print("| --- | --- | --- | --- | --- |")
    for way, points in passes.items():
        most = max(each.most for each in points)
        mean, auc, rate = (middle(points, name) for name in ("mean", "auc", "rate"))
        print(f"| `{way.name}` | {mean:.1f} | {most} | {auc:.4f} | {rate:,.0f} |")
    draw(passes, asked.to)


if __name__ == "__main__":
    main()
