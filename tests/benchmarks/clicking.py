"""How long a click takes while a cell blocks: ``python -m tests.benchmarks.clicking``.

In Chromium and JupyterLab, with a real kernel whose notebook waits in ``join``: the button "Pause",
or "Resume", is pressed in the page, and the page itself measures the time until the dashboard shows
another state. The click goes through the server to a subshell of the kernel, is carried out there,
and comes back with the update that it has called for. The bar is 60 ms on a quiet machine. Here the
browser, the server, the kernel and a cluster of four processes share the cores, so the quickest
clicks say what the way takes, the others what else had to be done.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

import psnb
from tests.browser.chromium import launch
from tests.browser.dashboard import Dashboard
from tests.browser.lab import running_lab
from tests.browser.notebook import Notebook

CLICKS, BAR = 60, 60.0
"""Clicks of each button, and milliseconds."""

SET_UP = """
import time
import psnb
strategy = psnb.ParameterServerStrategy(psnb.connect({address!r}))
coordinator = psnb.ClusterCoordinator(strategy)
weights = strategy.variable([0.0] * 4, "weights", optimizer=psnb.SGD(0.5))

def step(number):
    time.sleep(0.02)
    weights.push([0.001] * 4)
    psnb.report(loss=1.0 / (1 + number))
"""

BLOCK = """
coordinator.map(step, range(100_000))
coordinator.join()
"""

CLICK = """([root, label]) => new Promise((done) => {
    const shown = root.querySelector('.psnb-top .psnb-state');
    const before = shown.textContent;
    const button = [...root.querySelectorAll('button')].find((each) => each.textContent === label);
    const observer = new MutationObserver(() => {
        if (shown.textContent === before) return;
        observer.disconnect();
        done(performance.now() - begin);
    });
    observer.observe(shown, { childList: true, characterData: true, subtree: true });
    const begin = performance.now();
    button.click();
})"""

READY = """([root, label, state]) => {
    const shown = root.querySelector('.psnb-top .psnb-state').textContent;
    return shown === state && [...root.querySelectorAll('button')].some(
        (each) => each.textContent === label && each.getAttribute('aria-disabled') !== 'true');
}"""


def main() -> None:
    taken: dict[str, list[float]] = {"Pause": [], "Resume": []}
    with (
        psnb.local_cluster(2, 1) as client,
        tempfile.TemporaryDirectory() as home,
        running_lab(Path(home)) as lab,
        sync_playwright() as playwright,
    ):
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        address = client.scheduler.address
        path = lab.write("clicking.ipynb", [SET_UP.format(address=address), "coordinator", BLOCK])
        notebook = Notebook(lab, page, path).open()
        notebook.run(0, 1)
        notebook.start(2)
        widget = Dashboard(notebook.output(1))
        widget.wait_for_more("completed", 20, deadline=120)
        root = widget.root.element_handle()
        for _ in range(CLICKS):
            for label, state in (("Pause", "running"), ("Resume", "paused")):
                page.wait_for_function(READY, arg=[root, label, state], polling=50)
                taken[label].append(page.evaluate(CLICK, [root, label]))
        assert notebook.is_running(2)
        browser.close()
    for label, times in taken.items():
        best, median, late = np.quantile(times, [0.0, 0.5, 0.9])
        print(f"{label}: {best:.0f} ms at best, median {median:.0f}, nine of ten within {late:.0f}")


if __name__ == "__main__":
    main()
