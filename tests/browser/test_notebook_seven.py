"""Jupyter Notebook 7: psnb needs JupyterLab only, and so do other tests."""

from __future__ import annotations

from playwright.sync_api import ConsoleMessage, Page, expect

from tests.browser.conftest import REST, OpenNotebook
from tests.browser.dashboard import PATIENCE
from tests.browser.lab import Lab


@REST
def test_the_panel_opens_a_dashboard_beside_the_notebook(
    lab: Lab, notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(set_up)
    opened.run(0)
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(message.text)

    page = opened.page.context.new_page()
    page.on("console", note)
    page.goto(f"{lab.url}notebooks/{opened.path.name}")
    expect(page.locator(".jp-Notebook .jp-Cell")).to_have_count(1, timeout=PATIENCE)
    choose(page, "View", "Left Sidebar", "psnb")
    card = page.locator(".psnb-Entry", has_text=opened.path.name)  # others may be there
    expect(card).to_have_count(1, timeout=PATIENCE)
    card.hover()
    card.get_by_role("button", name="Open the dashboard").click()
    dashboard = page.locator("#jp-right-stack .psnb-dashboard")
    expect(dashboard).to_contain_text("idle", timeout=PATIENCE)
    expect(dashboard).to_be_visible()
    assert not [each for each in errors if "psnb" in each]


def choose(page: Page, menu: str, *items: str) -> None:
    """Choose an item of a menu of the page."""
    page.locator(".lm-MenuBar-itemLabel", has_text=menu).first.click()
    for item in items:
        page.locator(".lm-Menu-itemLabel", has_text=item).first.click()
