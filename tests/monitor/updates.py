"""A full update to show, with parts that tests replace."""

from __future__ import annotations

import base64
from typing import Any, cast

import numpy as np

from psnb._src.monitor.protocol import VERSION, Metric, Update


def packed(values: Any) -> str:
    return base64.b64encode(np.asarray(values, "<f8").tobytes()).decode()


def metric(name: str, values: Any, averages: Any = None) -> Metric:
    values = np.asarray(values, float)
    return Metric(
        name=name,
        count=len(values),
        last=float(values[-1]) if np.isfinite(values[-1]) else "nan",
        smoothed=1.5,
        start=0,
        steps=packed(np.arange(len(values))),
        times=packed(np.arange(len(values))),
        values=packed(values),
        averages=packed(values if averages is None else averages),
    )


def full_update(**parts: Any) -> Update:
    """Return a full update; ``summary`` and ``identity`` take parts of themselves."""
    summary = {
        "time": 1_700_000_000.0,
        "state": "running",
        "tone": "busy",
        "meaning": "Closures run or wait.",
        "elapsed": 3725.0,
        "eta": None,
        "training": None,
        "examples": None,
        "examples_per_second": None,
        "closures_per_second": 12.5,
        "queued": 5,
        "in_flight": 2,
        "completed": 12345,
        "failed": 1,
        "cancelled": 0,
        "retried": 3,
        "workers_lost": 2,
        "servers_lost": 0,
        "staleness_mean": "nan",
        "staleness_max": 0,
        "phases": [0.0] * 5,
    }
    identity = {
        "name": "strategy-1",
        "kernel": "",
        "process": 1,
        "host": "here",
        "cluster": "tcp://127.0.0.1:1",
        "cluster_id": "Scheduler-1",
        "cluster_started": 1_699_990_000.0,
        "dashboard": "",
        "started": 1_700_000_000.0,
    }
    worker = {
        "index": 0,
        "name": "alice",
        "address": "tcp://127.0.0.1:2",
        "host": "here",
        "state": "ready",
        "tone": "good",
        "in_flight": 2,
        "completed": 10,
        "failed": 1,
        "closures_per_second": 3.25,
        "busy": 0.5,
        "examples_per_second": 812.5,
        "cpu": 0.75,
        "memory": 123_000_000,
        "gpu_memory": None,
        "last_error": "",
        "activity": "",
        "running_since": None,
        "phases": [0.25, 0.0, 0.5, 0.0, 0.25],
    }
    server = {
        "name": "keeper",
        "address": "tcp://127.0.0.1:3",
        "state": "serving",
        "tone": "good",
        "shards": 2,
        "bytes": 4_200_000,
        "pulls_per_second": 11.0,
        "pushes_per_second": 9.0,
        "staleness": 1.5,
        "cpu": 0.5,
        "memory": 200_000_000,
        "memory_limit": 400_000_000,
    }
    update = {
        "type": "update",
        "version": VERSION,
        "coordinator": "c-1",
        "sequence": 0,
        "full": True,
        "summary": summary | parts.pop("summary", {}),
        "identity": identity | parts.pop("identity", {}),
        "notice": "",
        "starved": "",
        "depth": [],
        "workers": [worker | row for row in parts.pop("workers", [{}])],
        "servers": [server | row for row in parts.pop("servers", [{}])],
        "metrics": [],
        "timeline": [],
        "failures": [],
        "events": [],
        "optimizers": [],
        "tables": [],
        "checkpoint": {"state": "none", "path": "", "share": 0.0, "error": "", "held": 0.0},
        "controls": {},
    }
    return cast(Update, update | parts)
