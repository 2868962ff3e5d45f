"""What the scheduler is told: nothing that closures were called with, nor what they said."""

from __future__ import annotations

import json

from psnb._src.monitor.protocol import Update
from psnb._src.monitor.updates import outline
from tests.monitor.updates import full_update, metric

SECRET = "hunter2-secret"


def _update() -> Update:
    return full_update(
        workers=[{"last_error": f"PermissionError: {SECRET}"}, {"last_error": f"{SECRET}: x"}],
        failures=[
            {
                "number": 0,
                "time": 1.0,
                "worker": "alice",
                "closure": "login #3",
                "error": f"PermissionError: {SECRET}",
                "traceback": f"in closure login('bob', '{SECRET}')",
            }
        ],
        events=[
            {
                "time": 1.0,
                "kind": "worker lost",
                "worker": "alice",
                "message": f"worker alice is lost: {SECRET}",
            }
        ],
        checkpoint={"state": "failed", "path": "", "share": 0.0, "error": SECRET, "held": 0.0},
        controls={"pause": "", "checkpoint": SECRET},
        metrics=[metric("loss", [1.0])],
        slices=[{"metric": "auc", "count": 1, "rows": [{"slice": SECRET}], "others": None}],
        later={"anything": SECRET},
        notice=f"No longer updated: ValueError: {SECRET}",
        starved=f"workers wait 90% of their time for csv({SECRET})",
    )


def test_no_text_of_a_closure_is_left() -> None:
    assert SECRET not in json.dumps(outline(_update()))


def test_what_happened_where_is_left() -> None:
    told = outline(_update())
    (failure,) = told["failures"]
    assert (failure["closure"], failure["error"]) == ("login #3", "PermissionError")
    assert [each["last_error"] for each in told["workers"]] == ["PermissionError", ""]
    assert told["events"][0]["message"] == "worker lost alice"
    assert told["checkpoint"]["error"]
    assert told["notice"] == "No longer updated."
    assert told["metrics"] == _update()["metrics"]
    assert told["summary"] == _update()["summary"]


def test_what_was_there_is_changed_by_nothing_and_what_was_not_is_not_made_up() -> None:
    update = _update()
    outline(update)
    assert update == _update()
    small = Update(
        type="update",
        version=1,
        coordinator="abc",
        sequence=1,
        full=False,
        summary=update["summary"],
    )
    assert outline(small) == small
