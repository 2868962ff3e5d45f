"""One server, one browser and one page for all tests here; notebooks and a kernel for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client
from playwright.sync_api import Browser, Page, sync_playwright

import psnb
from tests.browser.chromium import launch
from tests.browser.lab import Lab, running_lab
from tests.browser.notebook import Notebook, close_all

REST = pytest.mark.second_tier(
    "a browser for what tests/monitor and extension/test have, each for its side"
)
"""A handful is in the first tier: one for each way between a page and a kernel."""

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


@pytest.fixture(scope="package")
def cluster() -> Iterator[Client]:
    """Two workers and two servers for all tests here; processes, or no kernel could reach them."""
    with psnb.local_cluster(workers=2, servers=2) as client:
        yield client


class Pages:
    """Keeps a page from one test to the next: to load JupyterLab takes seconds."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._kept: Page | None = None

    def take(self) -> Page:
        """Return the page that is kept, or one of a browser without a past."""
        page, self._kept = self._kept, None
        return (
            page or self._browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
        )

    def keep(self, page: Page) -> None:
        """Keep a page for the next test, and close those that were opened beside it."""
        for other in page.context.pages:
            if other is not page:
                other.close()
        self._kept = page


@pytest.fixture(scope="package")
def pages(browser: Browser) -> Pages:
    """The page that tests pass on."""
    return Pages(browser)


@pytest.fixture
def page(request: pytest.FixtureRequest, pages: Pages, lab: Lab, tmp_path: Path) -> Iterator[Page]:
    """A page with nothing open, which knows of no notebook of this test.

    It may be another test's, if that one has passed and left no dialog. If this test fails, a
    picture of it is kept.
    """
    page = pages.take()
    yield page
    failed = request.node.stash.get(_FAILED, False)
    if failed:
        picture = tmp_path / "failure.png"
        page.screenshot(path=picture)
        print(f"the page as it was: {picture}")
    if failed or not page.url.startswith(lab.url) or page.locator(".jp-Dialog").count():
        page.context.close()
    else:
        close_all(page)
        pages.keep(page)
    lab.end_kernels()  # of notebooks that are open no more, or the page would ask what to do


@pytest.fixture
def notebook(lab: Lab, page: Page, request: pytest.FixtureRequest) -> OpenNotebook:
    """Open a new notebook with the cells that are given; its kernel ends with the test."""
    count = 0

    def open_notebook(*cells: str) -> Notebook:
        nonlocal count
        count += 1
        name = f"{request.node.name[:60].strip('[]')}-{count}.ipynb"
        return Notebook(lab, page, lab.write(name, cells)).show()

    return open_notebook


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
