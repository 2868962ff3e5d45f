"""The benchmarks' work with TensorFlow's ParameterServerStrategy, in a process of its own.

``python -m tests.benchmarks.tensorflow_peer BATCH`` prints examples a second of wide & deep with
batches of that size; with ``dense`` bytes, and with ``sparse`` rows a second of a large variable
that is pulled and pushed. All are the best of some repetitions.
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


def best_rate(coordinator: Any, step: Any, args: tuple[Any, ...], amount: float) -> float:
    """Return what the best of some repetitions does a second, of so much each step."""
    rates = []
    for _ in range(1 + REPETITIONS):
        begin = time.perf_counter()
        for _ in range(STEPS):
            coordinator.schedule(step, args=args)
        coordinator.join()
        rates.append(STEPS * amount / (time.perf_counter() - begin))
    return max(rates[1:])


def dense_bytes(strategy: Any, coordinator: Any) -> float:
    """Return bytes a second, both ways, of a variable of 16 MB."""
    with strategy.scope():
        variable = tf.Variable(tf.zeros([4_000_000]))

    @tf.function
    def step() -> None:
        variable.assign_add(variable.read_value() * 0.0 + 1e-6)

    return best_rate(coordinator, step, (), 2 * 16e6)


def sparse_rows(strategy: Any, coordinator: Any) -> float:
    """Return rows a second that are looked up and updated, without an optimizer."""
    with strategy.scope():
        table = tf.Variable(tf.zeros([clicks.ROWS, clicks.DIM]))
    size = 512 * clicks.FIELDS

    def batches() -> Any:
        def random(_: Any) -> Any:
            return tf.random.uniform([size], maxval=clicks.ROWS, dtype=tf.int32)

        return tf.data.Dataset.from_tensors(0).repeat().map(random)

    @tf.function
    def step(batches: Any) -> None:
        ids = next(batches)
        table.scatter_sub(tf.IndexedSlices(tf.gather(table, ids) * 0.0 + 1e-3, ids))

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    return best_rate(coordinator, step, (iterator,), size)


def examples(strategy: Any, coordinator: Any, size: int) -> float:
    """Return examples a second of wide & deep."""
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
    return best_rate(coordinator, step, (iterator,), size)


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
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
        )
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        match sys.argv[1]:
            case "dense":
                rate = dense_bytes(strategy, coordinator)
            case "sparse":
                rate = sparse_rows(strategy, coordinator)
            case size:
                rate = examples(strategy, coordinator, int(size))
        print(json.dumps(rate), flush=True)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        os._exit(0)  # TensorFlow's coordinator would wait for its workers


if __name__ == "__main__":
    main()
