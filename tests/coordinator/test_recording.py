"""What a run tells of itself, without a cluster."""

from __future__ import annotations

import pickle
import time
from typing import Any

from msgspec import to_builtins

from psnb._src.coordinator.recording import Recording
from psnb._src.monitor.run_record import RunRecord, RunSettings
from psnb._src.monitor.viewed import Records

SETTINGS = RunSettings({"name": "Async"}, 0, 2, 1, "", {}, [], {})


def begun() -> tuple[Recording, Records]:
    records = Records.empty(pickle.loads)
    return Recording("monday", records), records


def checkpoint_of(record: RunRecord | None) -> dict[str, Any]:
    return {"record": to_builtins(record)}


def test_what_is_saved_is_divided_from_what_comes_also_if_clocks_differ() -> None:
    recording, records = begun()
    records.history.add(time.time() + 1000, {"loss": 1.0})
    record = recording.record(SETTINGS)
    records.history.add(0.0, {"loss": 1.0})
    before, after = records.history.series("loss")["time"].tolist()
    assert before <= record.saved < after
    resumed, later = begun()
    resumed.go_on_from(record)
    later.history.add(0.0, {"loss": 1.0})
    assert later.history.series("loss")["time"][0] > record.saved


def test_a_checkpoint_of_another_run_has_no_moment_in_this_one() -> None:
    recording, _ = begun()
    record = recording.record(SETTINGS)
    resumed, _ = begun()
    assert resumed.moment_of(checkpoint_of(record)) == 0.0
    resumed.go_on_from(record)
    for each in (recording, resumed):
        assert each.moment_of(checkpoint_of(record)) == record.saved
        assert each.moment_of(checkpoint_of(None)) == 0.0
        assert each.moment_of({"record": 3}) == 0.0
