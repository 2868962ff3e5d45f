"""Per-worker values and contexts, without Dask."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import psnb
from psnb import errors
from psnb._src.worker.context import WorkerContext, entered
from psnb._src.worker.resources import Resources, SharedIterator, make_dataset, make_iterator

REPORTS: list[dict[str, float]] = []
CONTEXT = WorkerContext(1, 3, "worker-b", 2, lambda when, values: REPORTS.append(values))


def test_a_closure_waits_for_a_value_that_is_being_made() -> None:
    resources = Resources()
    resources.define(1)
    begun, finish = threading.Event(), threading.Event()

    def make() -> str:
        begun.set()
        assert finish.wait(10)
        return "made"

    with ThreadPoolExecutor(2) as threads:
        threads.submit(resources.make, 1, make)
        assert begun.wait(10)
        waiting = threads.submit(resources.get, 1)
        finish.set()
        assert waiting.result(10) == "made"


def test_a_value_that_could_not_be_made_fails_each_use_with_the_reason_as_cause() -> None:
    resources = Resources()
    resources.define(1)
    resources.make(1, lambda: 1 / 0)
    for _ in range(2):
        with pytest.raises(errors.ClosureInputError, match="division by zero") as raised:
            resources.get(1)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_discarded_value_is_not_made() -> None:
    resources = Resources()
    resources.define(1)
    resources.discard(1)
    made: list[int] = []
    resources.make(1, lambda: made.append(1))
    assert not made
    with pytest.raises(errors.ClosureInputError, match="released"):
        resources.get(1)


def test_a_wait_for_a_value_raises_when_all_are_cleared() -> None:
    resources = Resources()
    resources.define(1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(resources.get, 1)
        resources.clear()
        with pytest.raises(errors.ClosureInputError):
            waiting.result(10)


def test_threads_that_share_an_iterator_get_each_element_once() -> None:
    def generate() -> Any:
        yield from range(1000)

    iterator = SharedIterator(generate())
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda _: list(iterator), range(4)))
    assert sorted(element for part in parts for element in part) == list(range(1000))


def test_a_dataset_may_be_an_iterable_a_function_or_a_function_of_the_context() -> None:
    with entered(CONTEXT):
        assert make_dataset([1, 2]).whole == [1, 2]
        assert make_dataset(lambda: [3]).whole == [3]
        assert make_dataset(lambda size=4: [size]).whole == [4]
        assert make_dataset(lambda context: context).whole == psnb.InputContext(3, 1)


def test_a_dataset_is_iterated_by_its_iterator_alone() -> None:
    dataset = make_dataset(psnb.data.Dataset.range(5))
    for use in (iter, next, lambda it: list(it), lambda it: it.iterator(), lambda it: it.take(2)):
        with pytest.raises((errors.ConfigurationError, AttributeError), match=r"iter\(dataset\)"):
            use(dataset)
    assert list(make_iterator(dataset)) == [0, 1, 2, 3, 4]


def test_the_context_tells_where_a_closure_runs() -> None:
    with entered(CONTEXT):
        assert psnb.worker_index() == 1
        assert psnb.worker_context().worker_name == "worker-b"
        assert psnb.worker_context().attempt == 2


def test_there_is_no_context_outside_a_closure() -> None:
    with pytest.raises(errors.ConfigurationError, match="inside a closure"):
        psnb.worker_index()


def test_report_takes_anything_that_is_a_number() -> None:
    import numpy as np

    with entered(CONTEXT):
        psnb.report(loss=np.float32(0.5), count=3)
    assert REPORTS[-1] == {"loss": 0.5, "count": 3.0}


def test_report_refuses_what_is_no_number() -> None:
    with entered(CONTEXT), pytest.raises(errors.ConfigurationError, match=r"report\(loss="):
        psnb.report(loss="low")  # type: ignore[arg-type]


def test_report_refuses_examples_that_have_no_sum_and_takes_a_loss_that_diverged() -> None:
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(errors.ConfigurationError, match="examples must be finite"):
            psnb.report(loss=1.0, examples=value)
        psnb.report(loss=value)


def test_report_refuses_what_is_too_large_or_has_too_long_a_name() -> None:
    with pytest.raises(errors.ConfigurationError, match="expected a number, found int"):
        psnb.report(loss=10**400)
    with pytest.raises(errors.ConfigurationError, match="200 characters at most") as caught:
        psnb.report(**{"x" * 5_000_000: 1.0})
    assert len(str(caught.value)) < 500


def test_report_outside_a_closure_does_nothing() -> None:
    before = len(REPORTS)
    psnb.report(loss=1.0)
    assert len(REPORTS) == before
