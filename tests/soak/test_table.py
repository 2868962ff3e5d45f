"""The soak's table."""

from __future__ import annotations

from tests.soak.table import Row, printed


def test_rows_are_added_up_but_for_the_longest_stall() -> None:
    row = Row("a", seconds=1, closures=2, stall=3, violations=["x"])
    row.add(Row("b", seconds=1, closures=2, stall=2, violations=["y"], note="left out"))
    assert row == Row("a", 2, 4, stall=3, violations=["x", "y"], note="left out")


def test_it_is_markdown_with_notes_below() -> None:
    lines = printed([Row("a", 60, 1234, stall=1.25, note="hm")]).splitlines()
    assert lines[2].startswith("| a | 60 | 1,234 | 0 |")
    assert {line.count("|") for line in lines[:3]} == {15}
    assert lines[3:] == ["", "a: hm"]
