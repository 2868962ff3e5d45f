"""Updates that are too large for one message."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from psnb._src.monitor.updates import chunks
from tests.monitor.hub.updates import update

rows = st.lists(st.text("x", max_size=300), max_size=20)


def test_what_fits_stays_in_one() -> None:
    small = update(3, True, metrics=[], controls={"pause": ""})
    assert list(chunks(small)) == [small]


@given(metrics=rows, timeline=rows, full=st.booleans())
def test_portions_are_small_and_together_say_the_same(
    metrics: list[str], timeline: list[str], full: bool
) -> None:
    whole: dict[str, Any] = {
        **update(3, full, metrics=metrics, timeline=timeline, controls={"pause": ""})
    }
    cut: list[dict[str, Any]] = [{**each} for each in chunks(update(0) | whole, 1500)]  # type: ignore[arg-type]
    assert all(len(json.dumps(each)) <= 1500 for each in cut)
    assert [each["full"] for each in cut] == [full] + [False] * (len(cut) - 1)
    assert [each.get("controls") for each in cut[1:]] == [None] * (len(cut) - 1)
    for part in ("metrics", "timeline"):
        assert part in cut[0]
        assert [row for each in cut for row in each.get(part, [])] == whole[part]
