"""A tour of the lab in a browser: a notebook that trains, and all that its user does meanwhile.

The cell that trains blocks the kernel from the first step to the last. With PSNB_PICTURES=FOLDER,
pictures are taken there at each stage, in light, in dark and narrow, to be looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import OpenNotebook
from tests.browser.dashboard import PATIENCE, Dashboard
from tests.browser.screenshots import theme
from tests.browser.test_panel import Panel

pytestmark = pytest.mark.second_tier(
    "a minute in a browser, of what tests/browser, tests/monitor and extension/test have each alone"
)

SET_UP = """
import time
import ipywidgets
import numpy as np
import psnb
client = psnb.connect({address!r})
COUNTRIES = np.array(["DE", "FR", "IT"])
auc = psnb.metrics.AUC()

def coordinator_of(day, rate):
    strategy = psnb.ParameterServerStrategy(client)
    users = strategy.embedding("users", 8, optimizer=psnb.SGD(rate))
    weights = strategy.variable(np.zeros(8, np.float32), "weights", optimizer=psnb.SGD(rate))

    def step(iterator):
        number = int(next(iterator)[0])
        rng = np.random.default_rng(number)
        ids = rng.integers(0, 400, 64)
        rows = users.lookup(ids)
        labels = (ids % 2).astype(np.float32)
        noise = np.where(ids % 3 == 2, 3.0, 0.5)  # what is in Italy can hardly be told
        users.push(ids, 0.1 * (rows - (2 * labels - 1)[:, None]))
        weights.push(rng.normal(0, 0.01, 8).astype(np.float32))
        time.sleep(0.03)
        if number % 10 == 0:
            print(f"batch {{number}}: {{labels.mean():.0%}} were liked")
        scores = 1 / (1 + np.exp(-(labels + rng.normal(0, noise))))
        psnb.report(loss=float(np.square(rows - (2 * labels - 1)[:, None]).mean()),
                    auc=auc(labels, scores, by=COUNTRIES[ids % 3]), examples=len(ids))

    coordinator = psnb.ClusterCoordinator(strategy, name=day)
    return coordinator, psnb.Trainer(coordinator, step)

def batches(epoch):
    return psnb.data.Dataset.range(200 * epoch - 200, 200 * epoch).batch(1)

yesterday, trainer = coordinator_of("yesterday", 0.05)
trainer.train_from_dataset(batches, epochs=1)
coordinator, trainer = coordinator_of("today", 0.25)
"""

PAGE = """
widgets = coordinator.widgets
buttons = ipywidgets.HBox([widgets.pause, widgets.resume])
ipywidgets.VBox([buttons, widgets.sliders, widgets.progress, widgets.message])
"""

TRAIN = """
trainer.train_from_dataset(
    batches, epochs=100, validation=psnb.data.Dataset.range(9000, 9010).batch(1))
"""

LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"

LOOKS = {
    "light": (LIGHT, 1280),
    "dark": (DARK, 1280),
    "medium": (DARK, 800),
    "narrow": (LIGHT, 530),
}
"""Themes, and widths of the window."""

COLLAPSE = "() => window.jupyterapp.shell.collapseLeft()"

TakePictures = Callable[[str, Locator], None]


@pytest.fixture
def pictures(page: Page) -> Iterator[TakePictures]:
    """Take pictures of a part of the page, in each look, if they are wanted."""
    if not (folder := os.environ.get("PSNB_PICTURES")):
        yield lambda name, part: None
        return
    size = page.viewport_size
    assert size is not None

    def take(name: str, part: Locator) -> None:
        for look, (colors, width) in LOOKS.items():
            theme(page, colors)
            page.set_viewport_size({"width": width, "height": 2600})
            part.scroll_into_view_if_needed()
            page.wait_for_timeout(1000)  # for charts that were out of sight to be drawn
            part.screenshot(path=Path(folder) / f"{name}-{look}.png")
        theme(page, LIGHT)
        page.set_viewport_size(size)

    yield take
    theme(page, LIGHT)
    page.set_viewport_size(size)


def test_what_a_user_meets_while_a_cell_trains(
    notebook: OpenNotebook, cluster: Client, pictures: TakePictures
) -> None:
    set_up = SET_UP.format(address=cluster.scheduler.address)
    opened = notebook(set_up, "coordinator", PAGE, "mark = coordinator.mark()", TRAIN)
    opened.run(0, 1, 2, 3)
    opened.start(4)
    opened.page.evaluate(COLLAPSE)
    widget = Dashboard(opened.output(1))
    root = widget.root

    # It lives.
    widget.wait_for_state("running")
    widget.wait_for_more("completed", 220, deadline=60)
    expect(root.locator(".psnb-figures")).to_contain_text("of 100", timeout=PATIENCE)
    loss = root.get_by_role("group", name="Chart of loss").get_by_role("img")
    expect(loss).to_have_attribute("aria-label", re.compile("^loss: .* at step"), timeout=PATIENCE)

    # For whom is it bad?
    table = root.get_by_role("table", name="Slices of auc, the worst first", exact=True)
    expect(table.get_by_role("rowheader").first).to_have_text("IT", timeout=PATIENCE)
    values = [float(text) for text in table.get_by_role("cell").all_text_contents()[::2]]
    assert len(values) == 3
    assert values == sorted(values)

    # What does a worker print?
    root.get_by_role("button", name="worker-0", exact=True).click(timeout=PATIENCE)
    printed = root.get_by_label("Output of worker-0")
    expect(printed).to_contain_text(re.compile(r"batch \d+0: \d+% were liked"), timeout=PATIENCE)
    pictures("1-training", root)
    widget.press("Close")
    expect(printed).not_to_be_visible()

    # What is in a table?
    tables = root.get_by_role("group", name="Look into a table")
    tables.get_by_role("button", name="Describe").click(timeout=PATIENCE)
    widget.wait_for_text(re.compile(r"^users: \d+ rows"))
    norms = tables.get_by_role("img", name=re.compile("^Norms of rows from"))
    expect(norms).to_be_visible(timeout=PATIENCE)
    pictures("2-described", root)
    tables.get_by_label("Id of a row").fill("7")
    tables.get_by_role("button", name="Look up", exact=True).click(timeout=PATIENCE)
    widget.wait_for_text(re.compile("^users, id 7: norm"))
    near = tables.get_by_role("table", name="Nearest rows").get_by_role("rowheader")
    expect(near.first).to_be_visible(timeout=PATIENCE)
    assert {int(text) % 2 for text in near.all_text_contents()} == {1}  # those with its label

    # What if the rate were ten times as high? And back.
    widget.open_sections()
    rates = root.get_by_role("list", name="Learning rates").get_by_role("listitem")
    rate = rates.filter(has_text="users").locator(".psnb-rate-now")
    expect(rate).to_have_text("0.25", timeout=PATIENCE)
    field = root.get_by_label("New learning rate of users")
    field.fill("2.5")
    field.press("Enter")
    expect(rate).to_have_text("2.5", timeout=PATIENCE)
    question = root.get_by_role("group", name=re.compile("^Really take back"))
    widget.press("Rewind")
    pictures("3-asked", root)
    question.get_by_role("button", name="No").click(timeout=PATIENCE)
    expect(question).to_have_count(0)
    expect(rate).to_have_text("2.5")
    widget.press("Rewind")
    question.get_by_role("button", name="Yes").click(timeout=PATIENCE)
    widget.wait_for_text("Rewind: parameters have gone back")
    expect(rate).to_have_text("0.25", timeout=PATIENCE)
    loss.scroll_into_view_if_needed()
    expect(loss).to_have_attribute(
        "aria-label", re.compile(r"rewound at step [\d,]+$"), timeout=PATIENCE
    )
    events = root.get_by_role("list", name="Events, newest first").get_by_role("listitem")
    expect(events.filter(has_text="rewound")).to_have_count(1, timeout=PATIENCE)
    pictures("4-rewound", root)

    # A page of one's own.
    own = opened.output(2)
    own.get_by_role("button", name="Pause").click(timeout=PATIENCE)
    widget.wait_for_state("paused")
    slider = own.locator(".widget-hslider").filter(has_text="users")
    slider.locator(".widget-readout").fill("0.125")
    slider.locator(".widget-readout").press("Enter")
    expect(own.get_by_text("learning rate of users: 0.125")).to_be_visible(timeout=PATIENCE)
    expect(rate).to_have_text(re.compile(r"^0\.125"), timeout=PATIENCE)
    pictures("5-own-page", own)
    own.get_by_role("button", name="Resume").click(timeout=PATIENCE)
    widget.wait_for_state("running")

    # Numbers instead of pictures.
    with opened.page.expect_download() as downloaded:
        widget.press("CSV")
    lines = downloaded.value.path().read_text().splitlines()
    assert lines[0] == "metric,step,time,value,smoothed,branch,abandoned"
    assert {"loss", "auc", "val_loss"} <= {line.split(",")[0] for line in lines[1:]}

    # Is it better than yesterday's?
    panel = Panel(opened.page)
    for day in ("yesterday", "today"):
        panel.entry(day).get_by_role("checkbox").check(timeout=PATIENCE)
    pictures("6-panel", panel.root)
    panel.root.get_by_role("button", name="Compare the 2 that are ticked").click(timeout=PATIENCE)
    opened.page.evaluate(COLLAPSE)
    compared = opened.page.locator(".jp-MainAreaWidget .psnb-dashboard").last
    lines_of = compared.get_by_role("group", name="Chart of loss").locator(".psnb-series")
    expect(lines_of).to_have_count(2, timeout=PATIENCE)
    pictures("7-compared", compared)

    # All that was in one cell, which ends when it is asked to.
    opened.page.locator(".lm-TabBar-tabLabel", has_text=opened.path.name).click()
    assert opened.is_running(4)
    widget.press("Stop training")
    opened.wait_for_end(4)
