"""The work of `wide_and_deep` with TensorFlow's ParameterServerStrategy; prints examples a second.

Run by that benchmark in a process of its own, with an interpreter that has TensorFlow:
``python -m tests.benchmarks.tensorflow_peer BATCH``. Prints the best of some repetitions.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

from tests.benchmarks import clicks

STEPS, REPETITIONS = 100, 5

_SERVER = """
import json, sys
import tensorflow as tf
role, index, cluster = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
spec = tf.train.ClusterSpec(cluster)
tf.distribute.Server(spec, job_name=role, task_index=index, protocol="grpc", start=True).join()
"""


def _address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def examples_per_second(cluster: dict[str, list[str]], size: int) -> float:
    """Return the best rate of some repetitions."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    rng = np.random.default_rng(1)

    def with_state(values: np.ndarray) -> tuple[Any, Any]:
        return tf.Variable(values), tf.Variable(tf.fill(values.shape, 0.1))

    with strategy.scope():
        deep, deep_state = with_state(
            (rng.standard_normal((clicks.ROWS, clicks.DIM)) * 0.01).astype(np.float32)
        )
        wide, wide_state = with_state(np.zeros((clicks.ROWS, 1), np.float32))
        weights, states = zip(*map(with_state, clicks.initial_weights()), strict=True)

    def batches() -> Any:
        examples = tf.data.Dataset.from_tensor_slices(clicks.clicks(clicks.EXAMPLES, 3))
        return examples.shuffle(10_000).repeat().batch(size).prefetch(4)

    @tf.function
    def step(batches: Any) -> Any:
        ids, numbers, labels = next(batches)
        flat = tf.reshape(ids, [-1])
        rows = [tf.gather(deep, flat), tf.gather(wide, flat)]
        dense = [each.read_value() for each in weights]
        with tf.GradientTape() as tape:
            tape.watch(rows + dense)
            hidden = tf.concat([tf.reshape(rows[0], [-1, clicks.FIELDS * clicks.DIM]), numbers], 1)
            hidden = tf.nn.relu(hidden @ dense[0] + dense[1])
            hidden = tf.nn.relu(hidden @ dense[2] + dense[3])
            linear = tf.reduce_sum(tf.reshape(rows[1], [-1, clicks.FIELDS]), 1)
            logits = (hidden @ dense[4] + dense[5])[:, 0] + linear
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, rows + dense)
        distinct, position = tf.unique(flat)
        for table, state, gradient in (
            (deep, deep_state, gradients[0]),
            (wide, wide_state, gradients[1]),
        ):
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle,
                accum=state.handle,
                lr=clicks.RATE,
                epsilon=1e-7,
                grad=tf.math.unsorted_segment_sum(gradient, position, tf.size(distinct)),
                indices=distinct,
            )
        for variable, state, gradient in zip(weights, states, gradients[2:], strict=True):
            tf.raw_ops.ResourceApplyAdagradV2(
                var=variable.handle,
                accum=state.handle,
                lr=clicks.RATE,
                epsilon=1e-7,
                grad=gradient,
            )
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    rates = []
    for _ in range(1 + REPETITIONS):
        begin = time.perf_counter()
        for _ in range(STEPS):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        rates.append(STEPS * size / (time.perf_counter() - begin))
    return max(rates[1:])


def main() -> None:
    """Start two workers and a server, and print the figure as JSON."""
    cluster = {"worker": [_address(), _address()], "ps": [_address()], "chief": [_address()]}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _SERVER, role, str(index), json.dumps(cluster)],
            stderr=subprocess.DEVNULL,
        )
        for role in ("worker", "ps")
        for index in range(len(cluster[role]))
    ]
    try:
        print(json.dumps(examples_per_second(cluster, int(sys.argv[1]))), flush=True)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        os._exit(0)  # TensorFlow's coordinator would wait for its workers


if __name__ == "__main__":
    main()
