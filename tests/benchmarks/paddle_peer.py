"""Paddle on the wide & deep work of `clicks`, from MultiSlot files: two Hogwild threads, no server.

``python -m tests.benchmarks.paddle_peer "512 FOLDER"`` prints examples a second, as JSON: the best
of some epochs after the first. Run by an interpreter that has paddlepaddle 3.3; see
`files_to_model`. PyPI's Paddle has no parameter servers: its threads train in one process's memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

# Before Paddle is imported: train_from_dataset needs the old programs.
os.environ["FLAGS_enable_pir_api"] = "0"  # noqa: SIM112  # its name

import paddle

from tests.benchmarks import clicks

THREADS, EPOCHS = 2, 4


def main() -> None:
    """Train, and print the best rate."""
    size, folder = sys.argv[1].split(maxsplit=1)
    os.chdir(folder)  # Paddle leaves descriptions of its programs where it runs
    paddle.enable_static()
    program, start = paddle.static.Program(), paddle.static.Program()
    adagrad = paddle.optimizer.Adagrad(clicks.RATE)
    with paddle.static.program_guard(program, start):
        slots = [
            paddle.static.data(f"s{number}", [None, 1], "int64") for number in range(clicks.FIELDS)
        ]
        numbers = paddle.static.data("numbers", [None, clicks.NUMBERS], "float32")
        label = paddle.static.data("label", [None, 1], "float32")

        def rows(name: str, dim: int) -> list[paddle.Tensor]:
            shared = paddle.ParamAttr(name=name)
            found = (
                paddle.static.nn.embedding(
                    slot, [clicks.ROWS, dim], is_sparse=True, param_attr=shared
                )
                for slot in slots
            )
            return [paddle.reshape(each, [-1, dim]) for each in found]

        hidden = paddle.concat([*rows("deep", clicks.DIM), numbers], 1)
        hidden = paddle.static.nn.fc(hidden, 256, activation="relu")
        hidden = paddle.static.nn.fc(hidden, 128, activation="relu")
        logit = paddle.static.nn.fc(hidden, 1) + paddle.add_n(rows("wide", 1))
        loss = paddle.nn.functional.binary_cross_entropy_with_logits(logit, label)
        adagrad.minimize(paddle.mean(loss))
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(start)
    dataset = paddle.distributed.QueueDataset()
    dataset.init(
        batch_size=int(size),
        thread_num=THREADS,
        use_var=[*slots, numbers, label],
        pipe_command="cat",
    )
    dataset.set_filelist(sorted(map(str, Path(folder).glob("part-*"))))
    seconds = []
    for _ in range(1 + EPOCHS):
        begin = time.perf_counter()
        executor.train_from_dataset(program, dataset, thread=THREADS)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps(clicks.EXAMPLES / min(seconds[1:])))


if __name__ == "__main__":
    main()
