"""Paddle: two Hogwild threads of one process, from MultiSlot text that was read into memory before.

PyPI's Paddle has no parameter servers: its threads train in the memory of one process.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

# Before Paddle is imported: train_from_dataset needs the old programs.
os.environ["FLAGS_enable_pir_api"] = "0"  # noqa: SIM112  # its name

import paddle

from tests.benchmarks.beside import criteo
from tests.benchmarks.beside.talking import Done, Some, serve

THREADS, PARTS = 2, 6
"""Paddle trains on a dataset as a whole: each part is one, a second's work."""


def write(folder: Path) -> list[str]:
    """Write the examples as MultiSlot text, a file for each part and thread."""
    ids, numbers, labels = criteo.clicks()
    files = [folder / f"part-{number}" for number in range(PARTS * THREADS)]
    each = criteo.EXAMPLES // len(files)
    for number, file in enumerate(files):
        with file.open("w") as out:
            for row in range(number * each, (number + 1) * each):
                sparse = " ".join(f"1 {id_}" for id_ in ids[row])
                dense = " ".join(f"{value:.5f}" for value in numbers[row])
                out.write(f"{sparse} {criteo.NUMBERS} {dense} 1 {labels[row]:.0f}\n")
    return list(map(str, files))


class Works:
    """The network, and what trains it."""

    def __init__(self, files: list[str]) -> None:
        self._files = files
        self._program, start = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self._program, start):
            self._inputs, self._loss = self._network()
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        self._executor.run(start)

    def works(self) -> dict[str, Callable[[], Some]]:
        """Return wide & deep by batch size."""
        return {f"wide {size}": partial(self._wide, size) for size in criteo.SIZES}

    def _network(self) -> tuple[list[Any], Any]:
        slots = [
            paddle.static.data(f"s{field}", [None, 1], "int64") for field in range(criteo.FIELDS)
        ]
        numbers = paddle.static.data("numbers", [None, criteo.NUMBERS], "float32")
        label = paddle.static.data("label", [None, 1], "float32")
        zeros = paddle.nn.initializer.Constant(0.0)

        def rows(name: str, dim: int) -> list[Any]:
            found = (
                paddle.static.nn.embedding(
                    slot,
                    [cardinality, dim],
                    is_sparse=True,
                    param_attr=paddle.ParamAttr(name=f"{name}{field}", initializer=zeros),
                )
                for field, (slot, cardinality) in enumerate(
                    zip(slots, criteo.CARDINALITIES, strict=True)
                )
            )
            return [paddle.reshape(each, [-1, dim]) for each in found]

        weights = [paddle.nn.initializer.Assign(each) for each in criteo.initial_weights()]
        hidden = paddle.concat([*rows("deep", criteo.DIM), numbers], 1)
        for layer, units in enumerate((*criteo.UNITS, 1)):
            hidden = paddle.static.nn.fc(
                hidden,
                units,
                activation="relu" if layer < len(criteo.UNITS) else None,
                weight_attr=paddle.ParamAttr(initializer=weights[2 * layer]),
                bias_attr=paddle.ParamAttr(initializer=weights[2 * layer + 1]),
            )
        logit = hidden + paddle.add_n(rows("wide", 1))
        losses = paddle.nn.functional.binary_cross_entropy_with_logits(logit, label)
        loss = paddle.mean(losses)
        paddle.optimizer.Adagrad(
            criteo.RATE,
            epsilon=criteo.EPSILON,
            initial_accumulator_value=criteo.ACCUMULATOR,
        ).minimize(loss)
        return [*slots, numbers, label], loss

    def _wide(self, size: int) -> Some:
        parts = []
        for part in range(PARTS):
            dataset = paddle.distributed.InMemoryDataset()
            dataset.init(
                batch_size=size, thread_num=THREADS, use_var=self._inputs, pipe_command="cat"
            )
            dataset.set_filelist(self._files[part * THREADS : (part + 1) * THREADS])
            dataset.load_into_memory()
            parts.append(dataset)
        return partial(self._some, cycle(parts))

    def _some(self, parts: Any) -> Done:
        self._executor.train_from_dataset(self._program, next(parts), thread=THREADS)
        return Done(criteo.EXAMPLES // PARTS)


def main() -> None:
    """Write the files and answer."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # Paddle leaves descriptions of its programs where it runs
        paddle.enable_static()
        serve("paddlepaddle", Works(write(Path(folder))).works())


if __name__ == "__main__":
    main()
