"""Notebooks that outlive their kernels: what is seen of a coordinator then."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from playwright.sync_api import Page, expect

from tests.browser.conftest import REST, OpenNotebook
from tests.browser.dashboard import PATIENCE, Dashboard
from tests.browser.lab import running_lab
from tests.browser.notebook import Notebook


@REST
def test_a_notebook_that_is_saved_while_it_works_keeps_the_last_known_figures(
    notebook: OpenNotebook, set_up: str, page: Page, tmp_path: Path
) -> None:
    opened = notebook(
        set_up,
        "coordinator",
        "for n in range(123): coordinator.schedule(step, (n, 0.0))\ncoordinator.join()",
        "for n in range(10_000): coordinator.schedule(step, (n,))\ncoordinator.join()",
    )
    opened.run(0, 1, 2)
    widget = Dashboard(opened.output(1))
    widget.wait_for_state("idle")
    static = opened.output(1).locator(".psnb-static")
    expect(static).to_contain_text("completed 123", timeout=PATIENCE)
    expect(static).to_be_hidden()  # the dashboard beside it lives
    opened.save()
    exported, _ = HTMLExporter().from_notebook_node(nbformat.read(opened.path, as_version=4))
    assert "completed 123" in exported

    # The page is loaded anew while a cell runs: the widget cannot be asked for, and is not there.
    opened.start(3)
    expect(static).to_contain_text("running", timeout=PATIENCE)
    opened.save()
    opened.open(kernel=False)
    static = opened.output(1).locator(".psnb-static")
    expect(static).to_be_visible(timeout=PATIENCE)
    expect(static).to_contain_text("and not live: it was “running” then.")
    expect(opened.output(1).get_by_text("Loading widget")).to_be_hidden()

    with running_lab(tmp_path / "other") as other:
        path = Path(shutil.copy(opened.path, other.folder))
        elsewhere = Notebook(other, page, path).open(kernel=False)
        static = elsewhere.output(1).locator(".psnb-static")
        expect(static).to_be_visible(timeout=PATIENCE)
        expect(static).to_contain_text("running")


@REST
def test_a_widget_says_that_its_kernel_was_restarted(notebook: OpenNotebook, set_up: str) -> None:
    opened = notebook(
        set_up,
        "coordinator",
        "for n in range(10_000): coordinator.schedule(step, (n,))",
    )
    opened.run(0, 1, 2)
    widget = Dashboard(opened.output(1))
    widget.wait_for_state("running")
    opened.restart_kernel()
    widget.wait_for_state("gone")
    widget.wait_for_text("it was restarted or shut down")
    expect(widget.root.get_by_role("button", name="Pause")).to_be_disabled()


def closed(notebook: OpenNotebook, set_up: str) -> Notebook:
    """Show a coordinator below two cells, 1 and 2, and close it."""
    opened = notebook(
        set_up,
        "coordinator",
        "coordinator.dashboard()",
        "for n in range(123): coordinator.schedule(step, (n, 0.0))\ncoordinator.join()",
        "coordinator.close()",
    )
    opened.run(0, 1, 2)
    Dashboard(opened.output(1)).wait_for_state("idle")
    opened.run(3, 4)
    return opened


def test_a_saved_notebook_has_the_final_state_in_the_place_of_what_was_live(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = closed(notebook, set_up)
    for cell in (1, 2):
        live = opened.output(cell).locator(".psnb-dashboard, .psnb-static")
        expect(live).to_have_count(0, timeout=PATIENCE)
        expect(opened.output(cell)).to_contain_text("completed 123", timeout=PATIENCE)
    saved = opened.save()
    for cell in (1, 2):
        final, emptied = saved.cells[cell].outputs
        assert set(final["data"]) == {"text/html", "text/plain"}
        assert set(emptied["data"].values()) == {""}

    exported, _ = HTMLExporter().from_notebook_node(nbformat.read(opened.path, as_version=4))
    assert exported.count("completed 123") == 2
    assert "widget-view" not in exported


@REST
def test_what_is_below_a_dashboard_stays_in_place_when_it_is_closed(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(
        set_up,
        "coordinator",
        "for n in range(123): coordinator.schedule(step, (n, 0.0))\ncoordinator.join()",
        "import threading\nthreading.Timer(2.0, coordinator.close).start()" + 60 * "\n# below",
    )
    opened.run(0, 1, 2)
    Dashboard(opened.output(1)).wait_for_state("idle")
    opened.run(3)
    below = opened.page.locator(".jp-Notebook .jp-Cell").nth(3)
    # Near the beginning of the page, which cannot be scrolled by as much as the output shrinks.
    below.evaluate(
        """cell => {
            const view = cell.closest('.jp-WindowedPanel-outer').getBoundingClientRect();
            const shift = cell.getBoundingClientRect().top - view.bottom + 150;
            cell.closest('.jp-WindowedPanel-outer').scrollTop += shift;
        }"""
    )
    before = below.bounding_box()
    expect(opened.output(1)).to_contain_text("closed", timeout=PATIENCE)
    expect(opened.output(1).locator(".psnb-dashboard, .psnb-static")).to_have_count(0)
    after = below.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(after["y"] - before["y"]) < 2


@REST
def test_a_saved_notebook_shows_the_final_state_without_a_kernel(
    notebook: OpenNotebook, set_up: str, page: Page, tmp_path: Path
) -> None:
    opened = closed(notebook, set_up)
    for cell in (1, 2):
        expect(opened.output(cell)).to_contain_text("completed 123", timeout=PATIENCE)
    opened.save()
    # It does not trust the notebook, as a page that hosts code would not.
    with running_lab(tmp_path / "other") as other:
        path = Path(shutil.copy(opened.path, other.folder))
        elsewhere = Notebook(other, page, path).open(kernel=False)
        for cell in (1, 2):
            expect(elsewhere.output(cell)).to_contain_text("completed 123", timeout=PATIENCE)
            expect(elsewhere.output(cell).locator("table").first).to_be_visible()
            expect(elsewhere.output(cell).locator("svg").first).to_be_visible()
