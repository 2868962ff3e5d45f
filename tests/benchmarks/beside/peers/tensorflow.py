"""TensorFlow: ParameterServerStrategy with two workers and a server; tf.data in this process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

from tests.benchmarks.beside import cores, criteo, elements, parameters
from tests.benchmarks.beside.talking import Done, Some, serve

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


class Works:
    """What is measured on a cluster."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._made: tuple[Any, ...] = ()

    def works(self) -> dict[str, Callable[[], Some]]:
        """Return them by name."""
        return {
            "closures": self._closures,
            "dense": self._dense,
            "rows": self._rows,
            **{f"wide {size}": partial(self._wide, size) for size in criteo.SIZES},
        }

    def _some(self, step: Any, args: tuple[Any, ...], count: int, amount: float) -> Done:
        values = [self._coordinator.schedule(step, args=args) for _ in range(count)]
        self._coordinator.join()
        losses = [] if values[0].fetch() is None else self._coordinator.fetch(values)
        return Done(count * amount, *([float(np.mean(losses))] if losses else []))

    def _closures(self) -> Some:
        @tf.function
        def nothing() -> None:
            return None

        return partial(self._some, nothing, (), parameters.AT_ONCE, 1)

    def _dense(self) -> Some:
        with self._strategy.scope():
            variable = tf.Variable(tf.zeros([parameters.FLOATS]))

        @tf.function
        def step() -> None:
            variable.assign_add(variable.read_value() * -parameters.RATE)

        return partial(self._some, step, (), parameters.DENSE_STEPS, parameters.DENSE_MB)

    def _rows(self) -> Some:
        with self._strategy.scope():
            table = tf.Variable(tf.zeros([parameters.ROWS, parameters.DIM]))

        def ids() -> Any:
            def random(_: Any) -> Any:
                return tf.random.uniform([parameters.IDS], maxval=parameters.ROWS, dtype=tf.int32)

            return tf.data.Dataset.from_tensors(0).repeat().map(random)

        @tf.function
        def step(batches: Any) -> None:
            ids = next(batches)
            table.scatter_sub(tf.IndexedSlices(tf.gather(table, ids) * parameters.RATE, ids))

        iterator = iter(self._coordinator.create_per_worker_dataset(ids))
        return partial(self._some, step, (iterator,), parameters.ROW_STEPS, parameters.IDS)

    def _parameters(self) -> tuple[Any, ...]:
        """Return tables, weights and the step, made once for all batch sizes."""
        if self._made:
            return self._made

        def filled(value: float, *shape: int) -> Any:
            # Made by the server: no message may have more than 2 GB.
            return tf.Variable(lambda: tf.fill(shape, value))

        with self._strategy.scope():
            tables = [
                (filled(0.0, rows, dim), filled(criteo.ACCUMULATOR, rows, dim))
                for dim in (criteo.DIM, 1)
                for rows in criteo.CARDINALITIES
            ]
            weights = [
                (tf.Variable(each), tf.Variable(tf.fill(each.shape, criteo.ACCUMULATOR)))
                for each in criteo.initial_weights()
            ]

        @tf.function
        def step(batches: Any) -> Any:
            ids, numbers, labels = next(batches)
            columns = tf.unstack(ids, axis=1) * 2
            rows = [tf.gather(table, at) for (table, _), at in zip(tables, columns, strict=True)]
            dense = [variable.read_value() for variable, _ in weights]
            with tf.GradientTape() as tape:
                tape.watch(rows + dense)
                hidden = tf.concat([*rows[: criteo.FIELDS], numbers], 1)
                for layer in range(len(criteo.UNITS)):
                    hidden = tf.nn.relu(hidden @ dense[2 * layer] + dense[2 * layer + 1])
                wide = tf.add_n(rows[criteo.FIELDS :])[:, 0]
                logits = (hidden @ dense[-2] + dense[-1])[:, 0] + wide
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
            gradients = tape.gradient(loss, rows + dense)
            options = {"lr": criteo.RATE, "epsilon": criteo.EPSILON}
            for (table, sums), at, gradient in zip(tables, columns, gradients, strict=False):
                distinct, position = tf.unique(at)
                tf.raw_ops.ResourceSparseApplyAdagradV2(
                    var=table.handle,
                    accum=sums.handle,
                    grad=tf.math.unsorted_segment_sum(gradient, position, tf.size(distinct)),
                    indices=distinct,
                    **options,
                )
            for (variable, sums), gradient in zip(weights, gradients[len(rows) :], strict=True):
                tf.raw_ops.ResourceApplyAdagradV2(
                    var=variable.handle, accum=sums.handle, grad=gradient, **options
                )
            return loss

        self._made = tables, weights, step
        return self._made

    def _wide(self, size: int) -> Some:
        *_, step = self._parameters()

        def batches() -> Any:
            examples = tf.data.Dataset.from_tensor_slices(criteo.clicks())
            return examples.shuffle(elements.BUFFER).repeat().batch(size).prefetch(2)

        iterator = iter(self._coordinator.create_per_worker_dataset(batches))
        return partial(self._some, step, (iterator,), criteo.STEPS[size], size)


def shuffled() -> Iterator[Any]:
    """Yield batches of shuffled clicks."""
    dataset = tf.data.Dataset.from_tensor_slices(criteo.clicks())
    dataset = dataset.shuffle(elements.BUFFER).repeat().batch(elements.BATCH)
    return iter(dataset.prefetch(tf.data.AUTOTUNE))


def mapped() -> Iterator[Any]:
    """Yield batches of clicks to which a function was applied one by one."""
    dataset = tf.data.Dataset.from_tensor_slices(criteo.clicks())
    dataset = dataset.map(lambda ids, numbers, label: (ids + 1, numbers, label))
    return iter(dataset.repeat().batch(elements.BATCH).prefetch(tf.data.AUTOTUNE))


def main() -> None:
    """Start two workers and a server, and answer."""
    cluster = {"worker": [_address(), _address()], "ps": [_address()], "chief": [_address()]}
    roles = {}
    for job, role in ("worker", cores.WORKER), ("ps", cores.SERVER):
        for index in range(len(cluster[job])):
            command = [sys.executable, "-c", _SERVER, job, str(index), json.dumps(cluster)]
            # They end with this process's group.
            roles[subprocess.Popen(command).pid] = role
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc", task_type="chief", task_id=0
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    works = Works(strategy).works() | elements.works(shuffled, mapped)
    serve("tensorflow-cpu", works, lambda: roles)
    os._exit(0)  # TensorFlow's coordinator would wait for its workers


if __name__ == "__main__":
    main()
