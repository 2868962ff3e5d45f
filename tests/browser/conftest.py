"""One server and one browser for all tests here; a page and a kernel for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.chromium import launch
from tests.browser.lab import Lab, running_lab
from tests.browser.notebook import Notebook

OpenNotebook = Callable[..., Notebook]

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Iterator[None]:
    """Note which tests fail, for their screenshots."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


# Not for the session: Playwright runs an event loop in this thread, and tests elsewhere have their
# own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium, the system's."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab server."""
    with running_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """A page of a browser without a past; if the test fails, a picture of it is kept."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    yield page
    if request.node.stash.get(_FAILED, False):
        picture = tmp_path / "failure.png"
        page.screenshot(path=picture)
        print(f"the page as it was: {picture}")
    context.close()


@pytest.fixture
def notebook(lab: Lab, page: Page, request: pytest.FixtureRequest) -> Iterator[OpenNotebook]:
    """Open a new notebook with the cells that are given; its kernel ends with the test."""
    count = 0

    def open_notebook(*cells: str, **options: bool) -> Notebook:
        nonlocal count
        count += 1
        name = f"{request.node.name[:60].strip('[]')}-{count}.ipynb"
        return Notebook(lab, page, lab.write(name, cells)).open(**options)

    yield open_notebook
    lab.end_kernels()


@pytest.fixture
def set_up(cluster: Client) -> str:
    """A cell that makes a coordinator on the cluster of all tests."""
    address = cluster.scheduler.address
    return f"""
import time
import psnb
client = psnb.connect({address!r})
strategy = psnb.ParameterServerStrategy(client)
coordinator = psnb.ClusterCoordinator(strategy)
weights = strategy.variable([0.0] * 4, "weights", optimizer=psnb.SGD(0.5))

def step(number, seconds=0.05):
    time.sleep(seconds)
    weights.push([0.001] * 4)
    psnb.report(loss=1.0 / (1 + number))
"""
