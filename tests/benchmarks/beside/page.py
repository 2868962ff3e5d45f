"""The page of the site that a run makes: a table, what its figures are of, a picture of ratios."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.beside import cores
from tests.benchmarks.beside.measuring import Row, Run, Spread
from tests.benchmarks.beside.plan import WORKS, Peer

HEAD = """# Beside peers

The same work by psnb and by others, in one run, in turn. What counts are the ratios: each is the
median of rounds in which one was measured right after the other. The command writes this page and
its picture.
"""

NOT_TO_COMPARE = """```{warning}
This was a quick run, or other work ran on the machine. It shows that the command works, not how
fast anything is: the ratios may be off by several times.
```
"""

WORKLOADS = """## The work

Two processes work, of one core each. psnb, TensorFlow, Dask and Ray have one more as a server. All
run on one machine. There psnb and Ray pass arrays through shared memory, TensorFlow and Dask
through TCP. Over a network all wait for it.

- Empty closures: 1,000 are scheduled, then waited for.
- 16 MB: a closure reads a variable and adds a thousandth of it. Both ways count.
- Rows: 13,312 random rows of 16 floats, of a million, are looked up. A thousandth of each is taken
  away.
- Wide & deep: 26 features with 33.8 million ids, the cardinalities of Criteo's Kaggle set. Each has
  a table of 16 floats a row for the deep part, and one of a float for the wide part. The perceptron
  has 1,024, 512 and 256 units: with batches of 512, that is DeepRec's published configuration. The
  optimizer is Adagrad, with a rate of 0.01. Rows begin as zeros. An example takes 6.6 million
  operations in products of matrices, which TensorFlow, JAX and torch compute alike: at batch 4,096
  most of the time goes there, however rows are fetched.
- Clicks are made with a fixed seed: 98,304 examples of 26 ids and 13 numbers. Few ids are frequent,
  so most rows of the large tables are never touched.
- Datasets: these clicks, from memory, in batches of 512.

psnb uses `psnb.jax` beside TensorFlow, Paddle and JAX, `psnb.torch` beside torch and TorchRec, and
`psnb.keras` beside Keras. A step is a closure, and counts exactly once.
"""

CORES = """## Where the cores go

How many cores each process took, of those of the machine, on average over the rounds of a pair.
Each line adds up to them, but for rounding. The notebook is the process that asks: at psnb and
plain Dask it has Dask's scheduler, too. The rest are a side's other processes, such as Ray's
daemons. Idle time is the machine's; others are processes that are no part of that side, such as the
other side, which waits, and the system's own work. The CPU of an example is what the processes of
a side took, divided by its rate. When psnb has fewer examples/s than a peer, compare both: what it
computes more is CPU of an example, and where it waits, the machine is idle.
"""

ROLES = (cores.ASKS, cores.WORKER, cores.SERVER, cores.REST, cores.IDLE, cores.OTHERS)

NEVER = {
    "DeepRec itself, and Paddle's parameter servers": "no package of them installs.",
    "Keras with TensorFlow's `ParameterServerStrategy`": "Keras 3 does not support it.",
}
IDLE = 1.0
"""Load average before a run above which other work ran."""


@dataclass(frozen=True)
class About:
    """What a run was made with.

    Parameters
    ----------
    command : str
        That makes the page anew.
    machine, date : str
        Where and when.
    load : tuple of float
        The load average over a minute before and after.
    rounds : int
        How often each pair was measured.
    seconds : float
        How long each was, at least.
    minutes : float
        How long the run took.
    quick : bool
        Whether rounds were few and short.
    """

    command: str
    machine: str
    date: str
    load: tuple[float, float]
    rounds: int
    seconds: float
    minutes: float
    quick: bool


def write(run: Run, peers: Sequence[Peer], about: About, to: Path) -> None:
    """Write the page, and the picture beside it."""
    figure = to.with_suffix(".png")
    draw(run.rows, figure)
    to.write_text("\n".join(_lines(run, peers, about, figure.name)))


def _lines(run: Run, peers: Sequence[Peer], about: About, figure: str) -> Iterator[str]:
    yield HEAD
    if about.quick or about.load[0] > IDLE:
        yield NOT_TO_COMPARE
    yield f":Command: `{about.command}`, {about.minutes:.0f} minutes"
    yield f":Machine: {about.machine}"
    before, after = (f"{each:.1f}" for each in about.load)
    yield f":Load average: {before} before, {after} after; up to 3 of it is the run's own"
    yield f":Date: {about.date}"
    yield f":Versions: {', '.join(f'{name} {each}' for name, each in run.versions.items())}"
    yield f":Rounds: {about.rounds}, of at least {about.seconds:g} s each\n"
    yield f"![How many times as fast as each peer psnb is]({figure})\n"
    yield "| a second | beside | psnb | it | psnb / it | least to most | loss |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    before = ""
    for row in in_order(run.rows):
        work = "" if row.work == before else row.work
        before = row.work
        ratio = f"{_short(row.ratio.least)} to {_short(row.ratio.most)}"
        yield (
            f"| {work} | {row.peer} | {_rate(row.ours)} | {_rate(row.theirs)} "
            f"| {_short(row.ratio.median)} | {ratio} | {_losses(row.losses)} |"
        )
    yield "\nRates are medians, with half the distance from the least to the most."
    yield "Losses are of the last batches, psnb's and its peer's: both learn. Who is faster has"
    yield "trained longer, and psnb goes on from one peer to the next.\n"
    yield CORES
    yield f"| a second | of | {' | '.join(ROLES)} | us of CPU each |"
    yield "| --- " * (3 + len(ROLES)) + "|"
    for row in in_order(run.rows):
        for name, rate, took in zip(
            ("psnb", row.peer), (row.ours, row.theirs), row.cores, strict=True
        ):
            cells = (" + ".join(f"{each:.2f}" for each in took.get(role, ())) for role in ROLES)
            own = sum(sum(took.get(role, ())) for role in ROLES[:-2])
            each = _short(1e6 * own / rate.median)
            yield f"| {row.work} | {name} | {' | '.join(cells)} | {each} |"
    yield ""
    yield WORKLOADS
    yield "## What they do less, or otherwise\n"
    for peer in peers:
        if peer.name not in run.left_out:
            yield _item(peer.name, peer.less)
    yield "\n## Left out\n"
    for name, why in (run.left_out | NEVER).items():
        yield _item(name, why)
    yield ""


def _item(name: str, text: str) -> str:
    return textwrap.fill(f"- {name}: {text}", 100, subsequent_indent="  ", break_on_hyphens=False)


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Return rows by work, as they are shown."""
    return sorted(rows, key=lambda row: WORKS.index(row.work))


def _rate(spread: Spread) -> str:
    percent = 50 * (spread.most - spread.least) / spread.median
    return f"{float(f'{spread.median:.3g}'):,.0f} ± {percent:.0f} %"


def _short(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 20 else f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def _losses(losses: tuple[float, float]) -> str:
    if all(map(math.isnan, losses)):
        return ""
    return ", ".join("-" if math.isnan(each) else f"{each:.2f}" for each in losses)


def draw(rows: Sequence[Row], to: Path) -> None:
    """Draw the ratios."""
    from matplotlib.figure import Figure

    shown = in_order(rows)[::-1]
    figure = Figure((8.5, 1.2 + 0.3 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    medians = [row.ratio.median for row in shown]
    errors = [
        [row.ratio.median - row.ratio.least for row in shown],
        [row.ratio.most - row.ratio.median for row in shown],
    ]
    colors = ["#2c7a51" if each >= 1 else "#b3541e" for each in medians]
    labels = [
        f"{row.work.rpartition(',')[0] or row.work}: {row.peer.replace('`', '')}" for row in shown
    ]
    axes.barh(labels, [each - 1 for each in medians], left=1, color=colors, height=0.6)
    axes.errorbar(medians, labels, xerr=errors, fmt="none", ecolor="#444444", elinewidth=1)
    for label, row in zip(labels, shown, strict=True):
        if row.ratio.median >= 1:
            axes.text(row.ratio.most * 1.08, label, _short(row.ratio.median), va="center", size=8)
        else:
            axes.text(
                row.ratio.least / 1.08,
                label,
                _short(row.ratio.median),
                va="center",
                ha="right",
                size=8,
            )
    axes.set_xscale("log")
    axes.axvline(1, color="#444444", linewidth=1)
    axes.margins(x=0.12, y=0.01)
    axes.set_xlabel("psnb / peer: to the right of 1, psnb is faster")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(to, dpi=110, metadata={"Software": None})
