"""Takes the pictures of the widget: ``python -m tests.browser.screenshots DIRECTORY [KIND ...]``.

Kinds are ``widget`` (light, dark, narrow; the panel's too, if JupyterLab has it) and ``replaced``
(a worker is killed and replaced: the README's). Without one, all are taken.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from distributed import Client
from playwright.sync_api import Page, sync_playwright

import psnb
from psnb._src.cluster.roles import identity
from tests.browser.chromium import launch
from tests.browser.dashboard import Dashboard
from tests.browser.lab import Lab, running_lab
from tests.browser.notebook import Notebook
from tests.conftest import wait_until

NARROW = 400

TRAIN = """
import time
import numpy as np
import psnb
client = psnb.connect({address!r})
strategy = psnb.ParameterServerStrategy(client)
coordinator = psnb.ClusterCoordinator(strategy)
manager = psnb.CheckpointManager(coordinator, "checkpoints")
users = strategy.embedding("users", 16, optimizer=psnb.Adagrad(0.05))
items = strategy.embedding("items", 16, optimizer=psnb.Adagrad(0.05))
tower = strategy.variable(np.zeros(64, np.float32), "tower", optimizer=psnb.SGD(0.1))

def step(iterator):
    number = int(next(iterator)[0])
    rng = np.random.default_rng(number)
    ids = rng.integers(0, 10_000, 256)
    gradients = rng.normal(0, 0.01, (256, 16)).astype(np.float32)
    users.push(ids, gradients)
    items.push(ids, -gradients)
    tower.push(tower.read() * 0.001)
    time.sleep(0.02 + 0.06 * rng.random())
    loss = 0.69 * (0.45 + 0.55 * np.exp(-number / 400)) + 0.03 * rng.normal()
    psnb.report(loss=loss, auc=0.82 - 0.3 * np.exp(-number / 300) + 0.01 * rng.normal(),
                examples=256)

def batches(epoch):
    return psnb.data.Dataset.range(300 * epoch - 300, 300 * epoch).batch(1)
"""

FIT = """
psnb.Trainer(coordinator, step).train_from_dataset(
    batches, epochs=8, validation=psnb.data.Dataset.range(900, 920).batch(1))
"""

KILLED = "worker-1"

ONLY_WORKERS = """
.psnb-controls, .psnb-checkpoint, .psnb-outcome, .psnb-section { display: none !important; }
.psnb-section:has(.psnb-timeline), .psnb-section:has(tr[title*="worker-"]) {
    display: block !important;
}
"""
"""Styles that leave the header, the counters, the workers and their timeline."""

STILLS = """
<style>
    body { margin: 0; background: white; font: 15px system-ui, sans-serif; }
    #stills { width: 970px; }
    p { margin: 14px 4px 6px; font-weight: 600; }
    img { display: block; width: 970px; }
</style>
<div id="stills">
"""


def take_widget(lab: Lab, page: Page, client: Client, folder: Path) -> None:
    """Take all pictures of one run."""
    address = client.scheduler.address
    path = lab.write("training.ipynb", [TRAIN.format(address=address), "coordinator", FIT])
    notebook = Notebook(lab, page, path).open()
    notebook.run(0, 1)
    notebook.start(2)
    widget = Dashboard(notebook.output(1))
    widget.wait_for_more("completed", 1200, deadline=300)
    picture(notebook, folder / "widget-light.png")
    theme(page, "JupyterLab Dark")
    picture(notebook, folder / "widget-dark.png")
    if page.evaluate("() => window.jupyterapp.commands.hasCommand('psnb:open-panel')"):
        page.evaluate("() => window.jupyterapp.commands.execute('psnb:open-panel')")
        theme(page, "JupyterLab Light")
        page.wait_for_timeout(3000)  # for the charts of the panel to fill
        page.screenshot(path=folder / "panel.png")
    theme(page, "JupyterLab Light")
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    output = notebook.output(1)
    box = output.bounding_box()
    assert box is not None
    page.set_viewport_size({"width": int(1400 - box["width"]) + NARROW, "height": 2400})
    picture(notebook, folder / "widget-narrow.png")


def take_replaced(lab: Lab, page: Page, client: Client, folder: Path) -> None:
    """Take three stills of a run in which a worker is killed, one below the other."""
    address = client.scheduler.address
    path = lab.write("training.ipynb", [TRAIN.format(address=address), "coordinator", FIT])
    notebook = Notebook(lab, page, path).open()
    notebook.run(0, 1)
    notebook.start(2)
    widget = Dashboard(notebook.output(1))
    widget.wait_for_more("completed", 400, deadline=300)
    page.add_style_tag(content=ONLY_WORKERS)
    widget.root.locator(".psnb-top").scroll_into_view_if_needed()
    page.wait_for_timeout(1000)  # for the charts to be drawn
    row = widget.root.locator(f'tr[title^="{KILLED}"]').last
    stills = []

    def still(said: str) -> None:
        # At once: a dead worker's place is taken within a second.
        output = notebook.output(1).locator(".jp-OutputArea-output").first
        stills.append((said, b64encode(output.screenshot()).decode()))

    still("1. Two workers train.")
    processes = client.run(os.getpid)
    (killed,) = [
        each for each, worker in identity(client)["workers"].items() if worker["name"] == KILLED
    ]
    os.kill(processes[killed], signal.SIGKILL)
    wait_until(lambda: "lost" in row.inner_text(), f"{KILLED} is lost", 30)
    still(f"2. {KILLED} is killed. What it had begun runs again on worker-0.")
    wait_until(lambda: "ready" in row.inner_text(), f"{KILLED} is back", 60)
    page.wait_for_timeout(6000)  # for the timeline to show that it works
    still("3. A new process has taken its place. Every example counts once.")
    page.set_content(
        STILLS
        + "".join(f'<p>{said}</p><img src="data:image/png;base64,{it}">' for said, it in stills)
    )
    page.locator("#stills").screenshot(path=folder / "worker-replaced.png")


def picture(notebook: Notebook, path: Path) -> None:
    """Take a picture of the widget, all of it."""
    output = notebook.output(1).locator(".jp-OutputArea-output").first
    output.scroll_into_view_if_needed()
    notebook.page.wait_for_timeout(1000)  # for charts that were out of sight to be drawn
    output.screenshot(path=path)


def theme(page: Page, name: str) -> None:
    """Switch JupyterLab's theme."""
    page.evaluate(
        "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name
    )
    dark = "true" if "Light" in name else "false"
    page.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{dark}'")


KINDS = {"widget": take_widget, "replaced": take_replaced}


def main(folder: Path, kinds: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds or KINDS:
        client: Client = psnb.local_cluster(2, 2)
        with (
            client,
            tempfile.TemporaryDirectory() as home,
            running_lab(Path(home)) as lab,
            sync_playwright() as playwright,
        ):
            browser = launch(playwright)
            page = browser.new_page(viewport={"width": 1400, "height": 1750})
            KINDS[kind](lab, page, client, folder)
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
