"""A page of one's own of a coordinator's single widgets, used while a cell blocks in ``join``."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import REST, OpenNotebook
from tests.browser.dashboard import PATIENCE
from tests.browser.test_clicks import BLOCK

PAGE = """
import ipywidgets
widgets = coordinator.widgets
state = ipywidgets.Label()
ipywidgets.dlink((widgets, "state"), (state, "value"))
buttons = ipywidgets.HBox([widgets.pause, widgets.resume])
ipywidgets.VBox([buttons, state, widgets.progress, widgets.sliders, widgets.message])
"""


@REST
def test_buttons_and_sliders_act_while_a_cell_blocks(notebook: OpenNotebook, set_up: str) -> None:
    opened = notebook(set_up, PAGE, BLOCK)
    opened.run(0, 1)
    page = opened.output(1)
    expect(page.get_by_text("idle")).to_be_visible(timeout=PATIENCE)
    resume = page.get_by_role("button", name="Resume")
    expect(resume).to_be_disabled(timeout=PATIENCE)
    opened.start(2)
    expect(page.get_by_text("running")).to_be_visible(timeout=PATIENCE)
    page.get_by_role("button", name="Pause").click(timeout=PATIENCE)
    expect(page.get_by_text("paused").first).to_be_visible(timeout=PATIENCE)
    # A slider takes what is typed into its readout.
    readout = page.locator(".widget-readout").first
    readout.fill("0.125")
    readout.press("Enter")
    expect(page.get_by_text("learning rate of weights: 0.125")).to_be_visible(timeout=PATIENCE)
    resume.click(timeout=PATIENCE)
    expect(page.get_by_text("running")).to_be_visible(timeout=PATIENCE)
    assert opened.is_running(2)
