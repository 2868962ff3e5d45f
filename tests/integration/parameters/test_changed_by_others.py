"""Memory that others change: every door keeps, or hands out, what it was, in every form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from distributed import Client

import psnb
from psnb.data import Dataset, InMemoryDataset, Ragged

N = 4


@dataclass
class Example:
    x: Any


class Form(NamedTuple):
    """A kind of value: what makes one of zeros, an array that shows its memory, and one that may
    not be written."""

    make: Callable[[], Any]
    array: Callable[[Any], Any]


def _frame() -> pd.DataFrame:
    return pd.DataFrame({"x": np.zeros(2)})


class Table:
    """A frame that is changed in place, as with ``frame.loc[...] = ``."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def __setitem__(self, at: Any, value: Any) -> None:
        self._frame.iloc[:] = value

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self._frame.to_numpy().ravel()


FORMS = {
    "array": Form(lambda: np.zeros(2), lambda value: value),
    "dict": Form(lambda: {"x": np.zeros(2)}, lambda value: value["x"]),
    "nested": Form(lambda: {"x": ([np.zeros(2)], 1)}, lambda value: value["x"][0][0]),
    "Ragged": Form(lambda: Ragged(np.zeros(2), np.array([0, 0, 2])), lambda value: value.values),
    "dataclass": Form(lambda: Example(np.zeros(2)), lambda value: value.x),
    "record": Form(lambda: np.zeros(2, [("x", np.float64)]), lambda value: value["x"]),
    "objects": Form(lambda: _objects(np.zeros(2)), lambda value: value[0]),
    "tensor": Form(lambda: torch.zeros(2), lambda value: value),
    "frame": Form(_frame, Table),
    "series": Form(lambda: pd.Series(np.zeros(2)), Table),
    "masked": Form(lambda: np.ma.masked_array(np.zeros(2), [False, False]), lambda value: value),
}
ELEMENTS = {name: FORMS[name] for name in ("array", "dict", "Ragged", "dataclass")}
"""Those that datasets have."""


def _objects(array: Any) -> Any:
    found = np.empty(1, object)
    found[0] = array
    return found


def filled(form: Form) -> Iterator[Any]:
    """Yield one value again and again, filled with 0, then with 1, and so on."""
    value = form.make()
    for number in range(N):
        form.array(value)[:] = number
        yield value


def seen(form: Form, value: Any) -> list[float]:
    return [float(each) for each in np.asarray(form.array(value)).ravel()]


EXPECTED = [[float(number)] * 2 for number in range(N)]
forms = pytest.mark.parametrize("name", FORMS)
elements = pytest.mark.parametrize("name", ELEMENTS)


def change(form: Form, value: Any) -> None:
    """Change a value in place, if it can be."""
    with suppress(ValueError):  # it is read-only
        form.array(value)[:] = 9


@forms
def test_arguments_are_what_they_were_when_scheduled(
    coordinator: psnb.ClusterCoordinator, name: str
) -> None:
    form = FORMS[name]
    found = coordinator.map(lambda value: seen(form, value), filled(form))
    coordinator.join()
    assert [each.fetch() for each in found] == EXPECTED


@forms
def test_results_are_what_they_were_when_returned_and_each_closure_has_its_own(
    coordinator: psnb.ClusterCoordinator, name: str
) -> None:
    form = FORMS[name]
    _buffers[name] = form.make()

    def fill(number: int) -> Any:
        value = _buffer(name)
        form.array(value)[:] = number
        return value

    def spoil(value: Any) -> list[float]:
        found = seen(form, value)
        change(form, value)
        return found

    results = [coordinator.schedule(fill, (number,), worker=0) for number in range(N)]
    again = [coordinator.schedule(spoil, (each,)) for each in results for _ in range(2)]
    coordinator.join()
    assert [seen(form, each.fetch()) for each in results] == EXPECTED
    assert [each.fetch() for each in again[::2]] == [each.fetch() for each in again[1::2]]
    assert [each.fetch() for each in again[::2]] == EXPECTED


_buffers: dict[str, Any] = {}


def _buffer(name: str) -> Any:
    """Return the one value of this process."""
    return _buffers[name]


@forms
def test_a_dask_future_stays_what_it_is_for_others(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator, name: str
) -> None:
    form = FORMS[name]
    (future,) = strategy.client.scatter([form.make()], hash=False)

    def spoil(value: Any) -> list[float]:
        found = seen(form, value)
        change(form, value)
        return found

    results = [coordinator.schedule(spoil, (future,)) for _ in range(N)]
    coordinator.join()
    assert [each.fetch() for each in results] == [EXPECTED[0]] * N
    assert seen(form, future.result()) == EXPECTED[0]


@forms
def test_what_is_prefetched_for_is_what_it_was(
    strategy: psnb.ParameterServerStrategy, name: str
) -> None:
    form, table = FORMS[name], strategy.embedding("t", 1, rows=N, initializer=0.0)
    table.assign(np.arange(N), np.arange(N, dtype=np.float32)[:, None])

    def wanted(value: Any) -> Any:
        return {table: np.array(seen(form, value), np.int64)}

    for depth in (0, 1, 3):
        pairs = psnb.prefetch(filled(form), wanted, depth=depth)
        found = [(seen(form, value), rows[table][:, 0].tolist()) for value, rows in pairs]
        assert found == [(each, each) for each in EXPECTED]


@forms
def test_elements_of_a_generator_that_closures_share_are_each_closures_own(
    coordinator: psnb.ClusterCoordinator, name: str
) -> None:
    form = FORMS[name]
    iterator = iter(coordinator.create_per_worker_dataset(lambda: filled(form)))

    def step(values: Iterator[Any]) -> list[list[float]]:
        return [seen(form, value) for value in list(values)]

    assert coordinator.schedule(step, (iterator,), worker=0).fetch() == EXPECTED


@pytest.mark.parametrize(
    ("sharding", "name"),
    [*(("none", name) for name in FORMS), *(("dynamic", name) for name in ELEMENTS)],
)
def test_a_failed_closure_is_run_again_on_what_it_was_given(
    coordinator: psnb.ClusterCoordinator, name: str, sharding: str
) -> None:
    form = FORMS[name]
    source: Any = lambda: filled(form)  # noqa: E731
    if sharding == "dynamic":
        source = Dataset.range(1).map(lambda _: form.make())
    iterator = iter(coordinator.create_per_worker_dataset(source, sharding=sharding))

    def step(values: Iterator[Any], more: Any) -> None:
        value = next(values)
        found = seen(form, value), seen(form, more)
        change(form, value)
        change(form, more)
        raise RuntimeError(found)

    coordinator.schedule(step, (iterator, form.make()), worker=0)
    with pytest.raises(RuntimeError) as raised:
        coordinator.join()
    (failure,) = coordinator.failures()
    for _ in range(2):
        with pytest.raises(RuntimeError) as again:
            failure.rerun()
        assert again.value.args == raised.value.args == ((EXPECTED[0], EXPECTED[0]),)


DATASETS: dict[str, Callable[[Form], Any]] = {
    "from_generator": lambda form: Dataset.from_generator(lambda: filled(form)),
    "map": lambda form: Dataset.from_generator(lambda: filled(form)).map(lambda value: value),
    "from_tensors": lambda form: Dataset.from_tensors(form.make()).repeat(2),
    "cache": lambda form: Dataset.from_generator(lambda: filled(form)).cache().repeat(2),
    "shuffle": lambda form: Dataset.from_generator(lambda: filled(form)).shuffle(1).repeat(2),
    "take": lambda form: Dataset.from_generator(lambda: filled(form)).take(N),
    "prefetch": lambda form: Dataset.from_generator(lambda: filled(form)).prefetch(2),
}


@elements
@pytest.mark.parametrize("how", DATASETS)
def test_datasets_give_the_same_elements_whatever_was_done_to_them_before(
    name: str, how: str
) -> None:
    form = FORMS[name]
    dataset = DATASETS[how](form)
    for _ in range(2):
        found = []
        for element in dataset:
            found.append(seen(form, element))
            change(form, element)
        expected = {
            "from_tensors": EXPECTED[:1] * 2,
            "cache": EXPECTED * 2,
            "shuffle": EXPECTED * 2,
        }
        assert found == expected.get(how, EXPECTED)


@pytest.mark.parametrize("kind", ["slices", "ragged", "table", "memory"])
def test_epochs_are_equal_though_steps_change_what_they_get(
    coordinator: psnb.ClusterCoordinator, kind: str
) -> None:
    ragged = Ragged.from_rows([[1.0, 1.0]] * 4)
    source: Any = {
        "slices": lambda: Dataset.from_tensor_slices({"x": np.ones((4, 2))}),
        "ragged": lambda: Dataset.from_tensor_slices({"x": ragged}),
        "table": lambda: Dataset.from_table(np.ones(4, [("x", np.float64, 2)])),
        "memory": lambda: InMemoryDataset.of(Dataset.from_tensor_slices({"x": ragged}), 2),
    }[kind]()
    how = {} if kind == "memory" else {"sharding": "dynamic"}
    dataset = coordinator.create_per_worker_dataset(source, **how)
    if kind == "memory":
        dataset.load_into_memory()
    sums: list[float] = []

    def step(iterator: Iterator[Any]) -> None:
        x = next(iterator)["x"]
        for array in (x.values, x.offsets) if isinstance(x, Ragged) else (x,):
            psnb.report(total=float(np.sum(array)), examples=1)
            change(FORMS["array"], array)

    for _ in range(2):
        history = psnb.Trainer(coordinator, step, progress=False).train_from_dataset(dataset)
        sums.append(history["total"][-1])
    assert sums[0] == sums[1]


@pytest.mark.parametrize("kind", ["array", "view", "rows", "masked", "tensor"])
@pytest.mark.parametrize("inside", [False, True])
def test_what_is_written_is_what_it_was_when_it_was_given(
    strategy: psnb.ParameterServerStrategy,
    coordinator: psnb.ClusterCoordinator,
    kind: str,
    inside: bool,
) -> None:
    v = strategy.variable(np.zeros((4, 1)), "v", psnb.SGD(1.0))
    t = strategy.embedding("t", 1, rows=4, initializer=0.0, optimizer=psnb.SGD(1.0), dtype="f8")

    def write() -> None:
        base = np.ones((4, 1))
        given: Any = {
            "array": lambda: base,
            "view": lambda: _read_only(base),
            "rows": lambda: base,
            "masked": lambda: np.ma.masked_array(base),
            "tensor": lambda: torch.from_numpy(base).numpy(),
        }[kind]()
        ids = np.arange(4)
        v.assign(given)
        v.scatter_add(_read_only(ids) if kind == "view" else ids, given)
        v.push(given)
        t.push(_read_only(ids) if kind == "view" else ids, given)
        base[:], ids[:] = 9, 0

    if inside:
        coordinator.schedule(write).fetch()
    else:
        write()
    assert v.read().ravel().tolist() == [1] * 4
    assert t.lookup(np.arange(4)).ravel().tolist() == [-1] * 4


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def test_answers_are_the_callers_own_or_read_only(
    strategy: psnb.ParameterServerStrategy, coordinator: psnb.ClusterCoordinator
) -> None:
    v = strategy.variable(np.ones(4), "v")
    t = strategy.embedding("t", 1, rows=4, initializer=1.0)
    ids = np.arange(4)

    def look() -> list[float]:
        found = []
        for _ in range(2):
            answers = v.read(), t.lookup(ids), *psnb.pull({v: None, t: ids}).values()
            for each in answers:
                found.append(float(each.sum()))
                change(FORMS["array"], each)
        return found

    assert {*look(), *coordinator.schedule(look).fetch()} == {4.0}


def test_metrics_are_what_was_reported(coordinator: psnb.ClusterCoordinator) -> None:
    def step() -> None:
        labels, scores, loss = np.array([0, 1]), np.array([0.2, 0.8]), np.ones(())
        psnb.report(auc=psnb.metrics.AUC()(labels, scores), loss=loss)
        labels[:], scores[:], loss[...] = 0, 0, 9

    coordinator.schedule(step).fetch()
    assert coordinator.metrics["auc"].result() == 1.0
    assert coordinator.statistics().metrics["loss"].total == 1.0


@pytest.mark.parametrize("as_", [lambda x: x, lambda x: {"y": x}, torch.from_numpy])
def test_predictions_are_what_the_function_returned(
    coordinator: psnb.ClusterCoordinator, as_: Callable[[Any], Any]
) -> None:
    def predict(batch: Any) -> Any:
        buffer = _buffers.setdefault("predict", np.zeros(2))
        buffer[:] = batch
        return as_(buffer)

    trainer = psnb.Trainer(coordinator, predict=predict, step=next)
    data = coordinator.create_per_worker_dataset(
        Dataset.range(8).batch(2), sharding="dynamic", splits=1
    )
    found = trainer.infer_from_dataset(data)
    assert (found["y"] if isinstance(found, dict) else found).tolist() == list(range(8))


MODES = {
    "async": (psnb.Async(), psnb.Hogwild()),
    "sync": (psnb.Sync(1), psnb.Hogwild()),
    "geo": (psnb.Geo(3), psnb.Hogwild()),
    "downpour": (psnb.Async(), psnb.Downpour(push_every=3)),
}


@pytest.mark.parametrize(("mode", "worker"), MODES.values(), ids=MODES)
def test_steps_may_fill_one_gradient_and_change_what_they_read_in_every_mode(
    cluster: Client, mode: psnb.Mode, worker: psnb.DeviceWorker
) -> None:
    with psnb.ParameterServerStrategy(cluster, num_servers=1, mode=mode) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        v = strategy.variable(np.zeros(2), "v", psnb.SGD(1.0))
        t = strategy.embedding("t", 1, rows=2, initializer=0.0, optimizer=psnb.SGD(1.0))
        _buffers["gradient"] = np.zeros(2)
        _buffers["rows"] = np.zeros((2, 1), np.float32)
        _buffers["ids"] = np.zeros(2, np.int64)

        def step(iterator: Iterator[Any]) -> None:
            gradient, rows, ids = (_buffers[each] for each in ("gradient", "rows", "ids"))
            gradient[:] = rows[:] = -next(iterator)
            ids[:] = 0, 1
            for each in (v.read(), t.lookup(ids)):
                change(FORMS["array"], each)
            v.push(gradient)
            t.push(ids, rows)
            gradient[:], rows[:], ids[:] = 100, 100, 1
            for each in (v.read(), t.lookup(np.arange(2))):
                change(FORMS["array"], each)

        data = coordinator.create_per_worker_dataset(
            Dataset.range(1, 7), sharding="dynamic", splits=1
        )
        coordinator.use_threads(1)
        psnb.Trainer(coordinator, step, worker, progress=False).train_from_dataset(data)
        total = 21 / (strategy.num_workers if isinstance(mode, psnb.Geo) else 1)
        assert v.read().tolist() == [total] * 2
        assert t.lookup(np.arange(2)).ravel().tolist() == [total] * 2
