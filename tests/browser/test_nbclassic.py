"""The classic notebook, where nbclassic is installed: psnb does not need it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import REST
from tests.browser.dashboard import PATIENCE
from tests.browser.lab import Lab

pytest.importorskip("nbclassic")


@REST
def test_the_saved_summary_is_not_seen_beside_the_live_dashboard(
    lab: Lab, page: Page, set_up: str
) -> None:
    path = lab.write("classic.ipynb", [set_up, "coordinator"])
    shown = page.context.new_page()
    shown.goto(f"{lab.url}nbclassic/notebooks/{path.name}?token={lab.token}")
    shown.wait_for_function("window.Jupyter?.notebook?.kernel?.is_connected()")
    # What a cell displays before the page has loaded that is no widget, and stays none.
    shown.wait_for_function("'jupyter.widget' in Jupyter.notebook.kernel.comm_manager.targets")
    shown.evaluate("Jupyter.notebook.execute_all_cells()")
    expect(shown.locator(".psnb-dashboard")).to_be_visible(timeout=PATIENCE)
    static = shown.locator(".psnb-static")
    expect(static).to_have_count(1, timeout=PATIENCE)
    expect(static).to_be_hidden()
