"""Which peers there are, what each does beside psnb, and what it does less."""

from __future__ import annotations

from dataclasses import dataclass

from tests.benchmarks.beside.criteo import SIZES
from tests.benchmarks.beside.environments import Packages

CLOSURES = "empty closures or tasks"
DENSE = "16 MB read and added, MB"
ROWS = "13,312 of a million rows looked up and pushed, rows"
WIDE = {size: f"wide & deep, batch {size:,}, examples" for size in SIZES}
CUT = {size: f"wide & deep, tables cut, batch {size:,}, examples" for size in SIZES}
SHUFFLE = "dataset: shuffle, batch 512, elements"
MAP = "dataset: map one by one, batch 512, elements"
WORKS = (CLOSURES, DENSE, ROWS, *WIDE.values(), *CUT.values(), SHUFFLE, MAP)
"""In the order in which they are shown; each is of something a second."""


@dataclass(frozen=True)
class Pair:
    """Some work of psnb's beside the same of a peer's.

    Parameters
    ----------
    work : str
        One of ``WORKS``.
    ours, theirs : str
        The name that each process has for it.
    label : str, optional
        What is shown instead of the peer's name.
    """

    work: str
    ours: str
    theirs: str
    label: str = ""


def _wide(framework: str, works: dict[int, str] = WIDE) -> tuple[Pair, ...]:
    # The larger batches first: with them psnb goes once through the examples in fewer steps.
    return tuple(Pair(works[size], f"{framework} {size}", f"wide {size}") for size in SIZES[::-1])


_DENSE, _ROWS = Pair(DENSE, "dense", "dense"), Pair(ROWS, "rows", "rows")
_ELEMENTS = Pair(SHUFFLE, "shuffle", "shuffle"), Pair(MAP, "map", "map")


@dataclass(frozen=True)
class Peer:
    """A system beside psnb.

    Parameters
    ----------
    module : str
        In `tests.benchmarks.beside.peers`.
    name : str
        As it is shown.
    pairs : tuple of Pair
        What it does.
    less : str
        What it does less than psnb, or otherwise.
    packages : list of list of str, optional
        For an environment of its own; by default it runs in psnb's.
    threads : int, optional
        Of OpenMP in each process; None: as the library decides.
    """

    module: str
    name: str
    pairs: tuple[Pair, ...]
    less: str
    packages: Packages = ()
    threads: int | None = 1


PEERS = (
    Peer(
        "tensorflow",
        "TensorFlow",
        (
            Pair(CLOSURES, "closures", "closures"),
            _DENSE,
            _ROWS,
            *_wide("jax"),
            *(Pair(each.work, each.ours, each.theirs, "tf.data") for each in _ELEMENTS),
        ),
        "`ParameterServerStrategy`, two workers and a server. A closure that is retried after a "
        "lost worker may have pushed already: at least once. Its processes take threads for all "
        "cores. "
        "`tf.data` uses both cores, psnb one; both shuffle in a buffer of 10,000.",
        [["tensorflow-cpu"]],
        None,
    ),
    Peer(
        "dask",
        "plain Dask",
        (Pair(CLOSURES, "closures", "closures", "Dask `Client.submit`"), _DENSE, _ROWS),
        "Two workers and an actor of 20 lines as the server. What a lost worker has written stays "
        "written when its task is repeated; a lost actor is gone.",
    ),
    Peer(
        "ray",
        "Ray",
        (
            Pair(CLOSURES, "closures", "closures", "Ray tasks"),
            Pair(CLOSURES, "closures", "actor calls", "Ray calls of actors"),
            *(Pair(each.work, each.ours, each.theirs, "Ray actors") for each in (_DENSE, _ROWS)),
        ),
        "Two actors as workers and one as the server, the same 20 lines. A lost actor takes its "
        "state along. Values go through its store in shared memory.",
        [["ray", "numpy"]],
    ),
    Peer(
        "paddle",
        "Paddle",
        _wide("jax"),
        "Two Hogwild threads in the memory of one process: its package has no parameter servers. "
        "No worker can be lost on its own, and nothing is sent. Examples are parsed before.",
        [["paddlepaddle==3.3.1", "numpy", "setuptools"]],
    ),
    Peer(
        "jax",
        "JAX alone",
        _wide("jax"),
        "Two processes, each with a model of its own in memory, which a compiled step changes in "
        "place. Nothing is shared, sent or kept: what the two learn is never put together.",
    ),
    Peer(
        "torch",
        "torch alone",
        _wide("torch"),
        "As JAX alone, with `nn.Embedding(sparse=True)` and Adagrad. psnb's tables take any id "
        "here.",
    ),
    Peer(
        "torchrec",
        "TorchRec",
        _wide("torch"),
        "Two processes on the CPU, tables sharded over both. They train in step through gloo, so "
        "each waits for the other in every step, and neither can be lost.",
        [
            ["torch==2.13.0", "numpy", "tensordict", "torchmetrics==1.0.3", "pyre-extensions"],
            # torchrec asks for fbgemm-gpu, which is for GPUs.
            ["--no-deps", "torchrec==1.8.0", "fbgemm-gpu-cpu==1.8.0"],
        ],
    ),
    Peer(
        "keras",
        "Keras alone",
        _wide("keras", CUT),
        "As JAX alone, on JAX. Its gradients of tables are dense, 2 GB a step for whole tables: "
        "both sides have one table, with at most 100,000 rows for each feature.",
    ),
    Peer(
        "grain",
        "Grain",
        _ELEMENTS,
        "One process, as psnb. It shuffles all examples by index, psnb in a buffer of 10,000.",
        [["grain", "numpy"]],
    ),
)
