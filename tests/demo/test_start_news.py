"""What `psnb demo` says until its first step has ended."""

from __future__ import annotations

import psnb
from psnb._src.demo.run import start_news


def worker(activity: str) -> psnb.WorkerStatistics:
    return psnb.WorkerStatistics(
        "worker-0", "tcp://w:1", 0, "ready", 1, 0, 0, 0.0, activity=activity
    )


def test_each_thing_that_workers_do_is_told_once() -> None:
    told: set[str] = set()
    loading = [worker("loading per-worker data"), worker("loading per-worker data"), worker("")]
    assert start_news(loading, told) == ["workers: loading per-worker data ..."]
    assert start_news(loading, told) == []
    assert start_news([worker("running step")], told) == ["workers: compiling the model ..."]
