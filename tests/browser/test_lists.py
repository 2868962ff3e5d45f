"""What stands in the dashboard's lists and tables, beside what charts draw."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.browser.conftest import REST, OpenNotebook
from tests.browser.dashboard import PATIENCE, Dashboard

SLICED = """
auc = psnb.metrics.AUC()

def sliced(number):
    countries = ["DE", "DE", "FR", "FR", "FR"]
    return psnb.report(auc=auc([0, 1, 0, 1, 1], [0.2, 0.9, 0.7, 0.6, 0.8], by=countries), loss=1.0)

coordinator.map(sliced, range(4))
coordinator.join()
coordinator.pause()
coordinator.resume()
"""


def texts(rows: Locator) -> list[list[str]]:
    """Return the words of each row as a screen reader takes them."""
    return [(row.text_content() or "").split() for row in rows.all()]


@REST
def test_slices_are_in_a_table_and_what_happened_in_a_list(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(set_up, "coordinator", SLICED)
    opened.run(0, 1, 2)
    widget = Dashboard(opened.output(1))
    table = widget.root.get_by_role("table", name="Slices of auc, the worst first")
    expect(table.get_by_role("row")).to_have_count(3, timeout=PATIENCE)
    expect(table.get_by_role("cell")).to_have_text(["0.5000", "12", "1", "8"], timeout=PATIENCE)
    assert table.get_by_role("rowheader").all_text_contents() == ["FR", "DE"]

    widget.open_sections()
    events = widget.root.get_by_role("list", name="Events, newest first").locator("li")
    expect(events.first).to_be_visible(timeout=PATIENCE)
    found = texts(events)
    assert [words[1:4] for words in found if "joined" in words]  # a time, then what happened


@REST
def test_each_chart_has_a_sentence_and_each_row_words_for_those_that_do_not_see_them(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(set_up, "coordinator", SLICED)
    opened.run(0, 1, 2)
    widget = Dashboard(opened.output(1))
    loss = widget.root.get_by_role("group", name="Chart of loss").get_by_role("img")
    said = "loss: 1 at step 4, from 1; lowest 1 at 1, highest 1 at 1"
    expect(loss).to_have_attribute("aria-label", re.compile("^loss: 1 at step"), timeout=PATIENCE)
    loss.scroll_into_view_if_needed()
    expect(loss).to_have_attribute("aria-label", said, timeout=PATIENCE)
    workers = widget.root.get_by_role("table", name="Workers").get_by_role("rowheader")
    assert [words[:2] for words in texts(workers)] == [
        ["worker-0", "127.0.0.1"],
        ["worker-1", "127.0.0.1"],
    ]
