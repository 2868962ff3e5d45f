"""JupyterLab's panel: every coordinator of every kernel, and of clusters started elsewhere."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client
from playwright.sync_api import Locator, Page, expect

import psnb
from tests.browser.conftest import REST, OpenNotebook
from tests.browser.dashboard import PATIENCE, Dashboard
from tests.browser.notebook import WAITING, Notebook, dialogs
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import CommandLine

BLOCK = """
for number in range(5_000):
    coordinator.schedule(step, (number,))
coordinator.join()
"""

HOSTILE = '<img src=x onerror="alert(1)">'


class Panel:
    """The panel in the left sidebar of a page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.execute("psnb:open-panel")
        self.root = page.locator("#psnb-panel")

    def execute(self, command: str, **arguments: str) -> None:
        """Run one of JupyterLab's commands, and do not wait for its end."""
        self.page.evaluate(
            "([command, args]) => { window.jupyterapp.commands.execute(command, args); }",
            [command, arguments],
        )

    def entry(self, title: str) -> Locator:
        """Return the entry of the coordinator with this title."""
        return self.root.locator(".psnb-Entry").filter(has_text=title)

    def wait_for_state(self, title: str, state: str) -> None:
        """Wait until a coordinator's state is shown to be this."""
        shown = self.entry(title).locator(".psnb-State")
        expect(shown).to_have_text(state, timeout=PATIENCE)


def in_another_page(opened: Notebook) -> Page:
    """Return a second page on the same server, with nothing of the first one's memory."""
    page = opened.page.context.new_page()
    page.goto(f"{opened.lab.url}lab/workspaces/other?token={opened.lab.token}&reset")
    page.wait_for_function("window.jupyterapp && window.jupyterapp.restored", **WAITING)
    page.evaluate("() => window.jupyterapp.restored")
    return page


@REST
def test_two_kernels_show_as_two_coordinators_with_their_notebooks(
    notebook: OpenNotebook, set_up: str
) -> None:
    first = notebook(set_up)
    first.run(0)
    second = notebook(set_up)
    second.run(0)
    panel = Panel(second.page)
    for opened in (first, second):
        panel.wait_for_state(opened.path.name, "idle")


@REST
def test_coordinators_that_are_ticked_are_drawn_over_each_other(
    notebook: OpenNotebook, set_up: str
) -> None:
    trains = (
        "for number in range(20): coordinator.schedule(step, (number, 0.01))\ncoordinator.join()"
    )
    opened = []
    for _ in range(2):
        opened.append(notebook(set_up, trains))
        opened[-1].run(0)  # of the notebook in front
        opened[-1].run(1)
    page = opened[1].page
    panel = Panel(page)
    for each in opened:
        panel.wait_for_state(each.path.name, "idle")
        panel.entry(each.path.name).get_by_role("checkbox").check(timeout=PATIENCE)
    panel.root.get_by_role("button", name="Compare the 2 that are ticked").click(timeout=PATIENCE)
    shown = page.locator(".jp-MainAreaWidget .psnb-dashboard").last
    expect(shown.locator(".uplot canvas").first).to_be_visible(timeout=PATIENCE)
    expect(shown.locator(".psnb-legend").first.locator(".psnb-series")).to_have_count(2)


@REST
def test_the_curves_of_a_dashboard_are_downloaded(notebook: OpenNotebook, set_up: str) -> None:
    trains = (
        "for number in range(20): coordinator.schedule(step, (number, 0.01))\ncoordinator.join()"
    )
    opened = notebook(set_up, trains)
    opened.run(0)
    opened.run(1)
    panel = Panel(opened.page)
    panel.wait_for_state(opened.path.name, "idle")
    panel.entry(opened.path.name).get_by_role(
        "button", name="Open the dashboard", exact=True
    ).click()
    shown = opened.page.locator(".jp-MainAreaWidget .psnb-dashboard").first
    expect(shown.locator(".uplot canvas").first).to_be_visible(timeout=PATIENCE)
    with opened.page.expect_download() as table:
        shown.get_by_role("button", name="CSV").click(timeout=PATIENCE)
    lines = table.value.path().read_text().splitlines()
    assert lines[0] == "metric,step,time,value,smoothed,branch,abandoned"
    assert len(lines) == 21
    with opened.page.expect_download() as picture:
        shown.get_by_role("button", name="PNG").click(timeout=PATIENCE)
    assert picture.value.path().read_bytes().startswith(b"\x89PNG")


def test_a_coordinator_is_paused_from_the_panel_while_a_cell_blocks(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(set_up, BLOCK)
    opened.run(0)
    opened.start(1)
    panel = Panel(opened.page)
    panel.wait_for_state(opened.path.name, "running")
    panel.entry(opened.path.name).get_by_role("button", name="Pause", exact=True).click(
        timeout=PATIENCE
    )
    panel.wait_for_state(opened.path.name, "paused")
    assert opened.is_running(1)


@REST
def test_a_page_that_comes_later_sees_the_history_of_a_busy_kernel(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(set_up, BLOCK)
    opened.run(0)
    opened.start(1)
    panel = Panel(opened.page)
    panel.wait_for_state(opened.path.name, "running")
    panel.entry(opened.path.name).get_by_role(
        "button", name="Open the dashboard", exact=True
    ).click()
    before = Dashboard(opened.page.locator(".jp-MainAreaWidget .psnb-dashboard").first)
    before.wait_for_more("completed", 20)

    page = in_another_page(opened)
    panel = Panel(page)
    panel.wait_for_state(opened.path.name, "running")
    panel.entry(opened.path.name).get_by_role(
        "button", name="Open the dashboard", exact=True
    ).click()
    after = Dashboard(page.locator(".jp-MainAreaWidget .psnb-dashboard").first)
    after.wait_for_more("completed", 20)
    expect(after.root.locator(".uplot canvas").first).to_be_visible(timeout=PATIENCE)


@REST
def test_the_status_bar_tells_of_the_notebook_in_front(notebook: OpenNotebook, set_up: str) -> None:
    opened = notebook(set_up, BLOCK)
    opened.run(0)
    opened.start(1)
    status = opened.page.locator(".psnb-Status")
    expect(status).to_contain_text("queued", timeout=PATIENCE)
    expect(status).to_contain_text("in flight", timeout=PATIENCE)


@REST
def test_a_kernel_that_was_killed_is_shown_as_gone(notebook: OpenNotebook, set_up: str) -> None:
    opened = notebook(set_up, "import os\nprint(os.getpid())")
    opened.run(0, 1)
    panel = Panel(opened.page)
    panel.wait_for_state(opened.path.name, "idle")
    os.kill(int(opened.printed(1)), signal.SIGKILL)
    panel.wait_for_state(opened.path.name, "gone")
    expect(panel.entry(opened.path.name).locator(".psnb-Entry-notice")).not_to_be_empty()


@REST
def test_a_coordinator_that_was_closed_is_shown_as_closed(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(set_up, "coordinator.close()")
    opened.run(0)
    panel = Panel(opened.page)
    panel.wait_for_state(opened.path.name, "idle")
    opened.run(1)
    panel.wait_for_state(opened.path.name, "closed")


def test_hostile_names_stay_text(notebook: OpenNotebook, set_up: str) -> None:
    hostile = f"""
def fail():
    psnb.report(**{{{HOSTILE!r}: 1.0}})
    raise ValueError({HOSTILE!r})
coordinator.schedule(fail)
try:
    coordinator.join()
except ValueError:
    pass
"""
    opened = notebook(set_up, hostile)
    with dialogs(opened.page) as asked:
        opened.run(0, 1)
        panel = Panel(opened.page)
        panel.wait_for_state(opened.path.name, "idle")
        panel.entry(opened.path.name).get_by_role(
            "button", name="Open the dashboard", exact=True
        ).click()
        dashboard = Dashboard(opened.page.locator(".jp-MainAreaWidget .psnb-dashboard").first)
        dashboard.wait_for_text(HOSTILE)
        dashboard.open_sections()
        assert opened.page.locator(".psnb-dashboard img, #psnb-panel img").count() == 0
    assert asked == []


SCRIPT = """
import sys, time
import psnb
client = psnb.connect(sys.argv[1])
strategy = psnb.ParameterServerStrategy(client)
coordinator = psnb.ClusterCoordinator(strategy)
print("ready", flush=True)
for number in range(100_000):
    coordinator.schedule(time.sleep, (0.02,))
coordinator.join()
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[str]:
    """The dashboard's address of a command-line cluster that a script outside of Jupyter uses."""
    dask = CommandLine(tmp_path)
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if name != "JPY_PARENT_PID"}
    with dask.scheduler(), dask.server(), dask.worker("--no-nanny"):
        address = json.loads(Path(dask.file).read_text())["address"]
        with Client(address) as client:
            client.wait_for_workers(2, timeout=DEADLINE)
            port = client.scheduler_info()["services"]["dashboard"]
        process = subprocess.Popen(
            [sys.executable, str(file), address], stdout=subprocess.PIPE, env=environment
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield f"http://127.0.0.1:{port}"
        process.kill()
        process.wait(DEADLINE)
        process.stdout.close()


@REST
def test_a_cluster_from_the_command_line_appears_when_it_is_attached(
    notebook: OpenNotebook, script: str
) -> None:
    opened = notebook("1")
    panel = Panel(opened.page)
    panel.execute("psnb:attach", address=script)
    running = opened.page.locator(".psnb-State", has_text="running")
    entry = panel.root.locator(".psnb-Entry").filter(has=running)
    expect(entry).to_be_visible(timeout=PATIENCE)
    button = entry.get_by_role("button", name="Pause", exact=True)
    expect(button).to_have_attribute("aria-disabled", "true")
    assert "watching" in (button.get_attribute("title") or "")
    panel.execute("psnb:detach", address=script)
    wait_until(
        lambda: entry.count() == 0,
        "it goes when it is detached",
    )


@pytest.fixture
def nowhere() -> Iterator[str]:
    """The address of a port that is taken, and where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@REST
def test_what_cannot_be_attached_is_reported_in_the_page(
    notebook: OpenNotebook, nowhere: str
) -> None:
    opened = notebook("1")
    panel = Panel(opened.page)
    whys = {
        "ftp://host": "give the http:// address of the scheduler's dashboard",
        "http://no-such-host.invalid:8787": "its host is not known here",
        nowhere: "nothing can be reached there",
    }
    for address in whys:
        panel.execute("psnb:attach", address=address)
    panel.execute("apputils:display-notifications")
    told = opened.page.locator(".jp-Notification-List-Item")
    for why in whys.values():
        expect(told.filter(has_text=why)).to_be_visible(timeout=PATIENCE)
    assert panel.root.locator("[data-scheduler]").count() == 0


@REST
def test_what_was_typed_stays_when_it_cannot_be_attached(
    notebook: OpenNotebook, nowhere: str
) -> None:
    opened = notebook("1")
    panel = Panel(opened.page)
    panel.execute("psnb:attach")
    dialog = opened.page.locator(".jp-Dialog")
    dialog.locator("input").fill(nowhere)
    dialog.get_by_role("button", name="Attach").click()
    expect(dialog).to_contain_text("Not attached: nothing can be reached there", timeout=PATIENCE)
    expect(dialog.locator("input")).to_have_value(nowhere)
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)


@REST
def test_names_are_read_everywhere_and_what_is_gone_is_folded_away_and_dismissed(
    notebook: OpenNotebook, set_up: str
) -> None:
    other = "other = psnb.ParameterServerStrategy(client)\n"
    other += "job = psnb.ClusterCoordinator(other, name='a job')\njob"
    opened = notebook(set_up, other, "job.close()")
    opened.run(0, 1)
    panel = Panel(opened.page)
    titles = panel.root.locator("ul[aria-label=Coordinators] .psnb-Entry-title")
    expect(titles.filter(has_text="a job")).to_have_count(1, timeout=PATIENCE)
    # The other is called after its notebook, and older.
    expect(titles.filter(has_text=opened.path.stem)).to_have_count(1, timeout=PATIENCE)
    expect(titles.first).to_have_text("a job")
    expect(opened.page.locator(".psnb-name").first).to_have_text("a job", timeout=PATIENCE)

    opened.run(2)
    earlier = panel.root.locator(".psnb-Earlier")
    gone = earlier.locator(".psnb-Entry").filter(has_text="a job")
    expect(gone).to_have_count(1, timeout=PATIENCE)
    expect(gone).not_to_be_visible()
    earlier.locator("summary").click(position={"x": 20, "y": 10})
    expect(gone).to_be_visible()
    gone.locator(".psnb-Entry-title").click()
    tab = opened.page.locator(".lm-TabBar-tabLabel", has_text="a job - dashboard")
    expect(tab).to_be_visible(timeout=PATIENCE)
    gone.get_by_role("button", name="Dismiss a job", exact=True).click()
    expect(gone).to_have_count(0, timeout=PATIENCE)


@REST
def test_the_saved_runs_of_a_folder_are_listed_and_compared(notebook: OpenNotebook) -> None:
    opened = notebook("1")
    folder = opened.lab.folder / "runs"
    folder.mkdir()
    for day, loss in (("monday", 0.5), ("tuesday", 0.25)):
        rows = [psnb.EpochRow(epoch, {"loss": loss / epoch}, 100, 10, 1.5) for epoch in (1, 2)]
        psnb.TrainingHistory(rows=tuple(rows)).save(folder / f"{day}.run.json")
    panel = Panel(opened.page)
    panel.execute("psnb:attach", address="./runs")
    # Coordinators of tests before are there as well.
    panel.root.get_by_text(re.compile(r"Earlier \(\d+\)")).click(timeout=PATIENCE)
    for day in ("monday", "tuesday"):
        expect(panel.entry(day)).to_contain_text("a saved run", timeout=PATIENCE)
        panel.entry(day).get_by_role("checkbox").check()
    panel.root.get_by_role("button", name="Compare the 2 that are ticked").click(timeout=PATIENCE)
    chart = opened.page.get_by_role("group", name="Chart of loss")
    newest, oldest = "tuesday: 0.1250 at step 20, from 0.2500", "monday: 0.2500 at step 20"
    sentence = re.compile(f"{re.escape(newest)}.*{re.escape(oldest)}")
    expect(chart.get_by_role("img")).to_have_attribute("aria-label", sentence, timeout=PATIENCE)
