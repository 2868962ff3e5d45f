"""The live widget in a notebook: what it shows, and when."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from distributed import Client
from playwright.sync_api import expect

from psnb._src.cluster.roles import identity
from tests.browser.conftest import REST, OpenNotebook
from tests.browser.dashboard import PATIENCE, Dashboard
from tests.browser.notebook import dialogs
from tests.conftest import wait_until
from tests.integration.helpers import process

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"

SCHEDULE = """
for number in range({0}):
    coordinator.schedule(step, (number,))
"""

HOSTILE = '<img src=x onerror="alert(1)">'


@REST
def test_the_quickstart_runs_and_its_numbers_move(notebook: OpenNotebook) -> None:
    cells = [
        cell.source
        for cell in nbformat.read(QUICKSTART, as_version=4).cells
        if cell.cell_type == "code"
    ]
    shown = next(n for n, source in enumerate(cells) if source.endswith("coordinator"))
    opened = notebook(*cells)
    for cell in range(len(cells) - 1):
        opened.start(cell)
    widget = Dashboard(opened.output(shown))
    # Until then, workers start, load the data and compile the model.
    widget.wait(deadline=120)
    widget.wait_for_more("completed", 0, deadline=120)
    widget.wait_for_more("completed", widget.count("completed"))
    # Charts out of sight are not drawn.
    widget.root.locator(".psnb-top").scroll_into_view_if_needed()
    widget.wait_for_text("loss")
    opened.wait_for_end(len(cells) - 2)
    widget.wait_for_state("idle")
    opened.run(len(cells) - 1)
    expect(opened.output(shown)).to_contain_text("closed", timeout=PATIENCE)


@REST
def test_a_reload_in_the_middle_of_a_run_brings_the_charts_back(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(set_up, "coordinator", SCHEDULE.format(5_000))
    opened.run(0, 1, 2)
    widget = Dashboard(opened.output(1))
    widget.wait_for_more("completed", 20)
    opened.save()
    opened.open()
    widget.wait_for_more("completed", 20)
    expect(widget.root.locator("canvas").first).to_be_visible(timeout=PATIENCE)
    widget.wait_for_more("completed", widget.count("completed"))


@REST
def test_a_reload_while_a_cell_blocks_brings_the_widget_back_when_it_has_ended(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(
        set_up, "coordinator", SCHEDULE.format(20) + "while not coordinator.paused: time.sleep(0.1)"
    )
    opened.run(0, 1)
    widget = Dashboard(opened.output(1))
    opened.start(2)
    widget.wait_for_more("completed", 19)
    opened.save()
    opened.open(kernel=False)  # which answers no more than it did before
    for kernel in opened.lab.api("kernels"):
        opened.lab.api(f"kernels/{kernel['id']}/interrupt", "POST")
    widget.wait_for_more("completed", 19)
    expect(widget.root.locator("canvas").first).to_be_visible(timeout=PATIENCE)


@REST
def test_charts_say_the_latest_value_and_can_be_folded_and_filtered(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(
        set_up,
        "coordinator",
        """
def report():
    for value in (3, 2, 1):
        psnb.report(**{f"{kind}/{name}": value for kind in ("train", "val") for name in "abcd"})
coordinator.schedule(report).fetch()
""",
    )
    opened.run(0, 1, 2)
    widget = Dashboard(opened.output(1))
    train, val = (
        widget.root.get_by_role("group", name=f"Chart of {kind}/a") for kind in ("train", "val")
    )
    train.scroll_into_view_if_needed()  # Charts out of sight are not drawn.
    expect(train.locator(".psnb-metric-latest")).to_have_text("1", timeout=PATIENCE)
    expect(train.locator(".psnb-metric-average")).to_contain_text("avg 2")
    widget.root.locator(".psnb-group > summary", has_text="train/").click()
    expect(train).to_be_hidden()
    expect(val).to_be_visible()
    widget.root.get_by_label("Filter metrics by name").fill("VAL b")
    expect(val).to_be_hidden(timeout=PATIENCE)
    expect(widget.root.locator(".psnb-chart:visible")).to_have_count(1)


@REST
def test_a_schedule_is_shown_with_the_rate_that_it_has_now(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(
        set_up,
        """
schedule = psnb.PiecewiseConstant((1,), (0.5, 0.25))
falling = strategy.variable([0.0], "falling", optimizer=psnb.SGD(schedule))
coordinator
""",
        "falling.push([1.0])",
    )
    opened.run(0, 1, 2)
    widget = Dashboard(opened.output(1))
    widget.wait_for_text("Learning rates")  # the servers are asked for them
    widget.open_sections()
    row = widget.root.get_by_role("listitem").filter(has_text="falling")
    expect(row.locator(".psnb-rate-now")).to_have_text("0.25", timeout=PATIENCE)
    expect(row.locator(".psnb-schedule")).to_contain_text("PiecewiseConstant")


def test_names_are_text_and_nothing_in_them_runs(
    notebook: OpenNotebook, set_up: str, cluster: Client
) -> None:
    opened = notebook(
        set_up,
        f"""
name = {HOSTILE!r}
strategy.variable([0.0], name, optimizer=psnb.SGD(1.0))
def hostile():
    psnb.report(**{{name: 1.0}})
    raise ValueError(name)
coordinator.schedule(hostile)
coordinator
""",
        "strategy.close()",
    )
    with dialogs(opened.page) as asked, worker_named(HOSTILE, cluster):
        opened.run(0, 1)
        widget = Dashboard(opened.output(1))
        widget.wait_for_text("ValueError")
        expect(widget.root.get_by_text(HOSTILE).first).to_be_visible(timeout=PATIENCE)
        widget.open_sections()
        row = widget.root.get_by_role("row").filter(has_text=HOSTILE)
        expect(row.first).to_be_visible(timeout=PATIENCE)
        opened.run(2)
        expect(opened.output(1)).to_contain_text("closed", timeout=PATIENCE)
        expect(opened.output(1)).to_contain_text(f"ValueError: {HOSTILE}")
        assert opened.page.locator("img[src='x']").count() == 0
    assert asked == []


@REST
def test_a_worker_that_takes_long_says_at_what(
    notebook: OpenNotebook, set_up: str, tmp_path: Path
) -> None:
    opened = notebook(
        set_up,
        "coordinator",
        f"""
import os
def wait_for(name):
    while not os.path.exists(os.path.join({str(tmp_path)!r}, name)):
        time.sleep(0.05)
def load():
    wait_for("loaded")
data = coordinator.create_per_worker_resource(load)
def wait(data):
    wait_for("waited")
coordinator.schedule(wait, (data,))
""",
        "strategy.close()",
    )
    opened.run(0, 1, 2)
    widget = Dashboard(opened.output(1))
    widget.open_sections()
    widget.wait_for_text("loading per-worker data")
    (tmp_path / "loaded").touch()
    since = widget.wait_for_text("running wait").get_attribute("title") or ""
    assert re.fullmatch(r"running wait since \d\d:\d\d:\d\d", since)
    (tmp_path / "waited").touch()
    widget.wait_for_more("completed", 0)
    expect(widget.root.get_by_text("running wait")).to_have_count(0, timeout=PATIENCE)
    expect(widget.root.get_by_text("Dask dashboard")).to_be_hidden()  # there is none
    opened.run(3)


@REST
def test_a_table_is_looked_into_while_a_cell_blocks(notebook: OpenNotebook, set_up: str) -> None:
    opened = notebook(
        set_up
        + """
items = strategy.embedding("items", 2, accessor=psnb.CtrAccessor())
items.assign([7, 2**64 - 1, 9], [[3.0, 4.0], [4.0, 3.0], [-4.0, 3.0]])
""",
        "coordinator",
        "while not coordinator.paused: time.sleep(0.1)",
    )
    opened.run(0, 1)
    opened.start(2)
    widget = Dashboard(opened.output(1))
    widget.wait()
    tables = widget.root.get_by_role("group", name="Look into a table")
    tables.get_by_role("button", name="Describe").click()
    widget.wait_for_text("items: 3 rows")
    expect(tables.get_by_role("img", name="Norms of rows from 5 to")).to_be_visible(
        timeout=PATIENCE
    )
    widget.wait_for_text("rows by days unseen: 0: 3")
    tables.get_by_label("Id of a row").fill("7")
    tables.get_by_label("Id of a row").press("Enter")
    widget.wait_for_text("items, id 7: norm 5, unseen for 0 days")
    tables.get_by_role("button", name=f"Look up id {2**64 - 1}").click()
    widget.wait_for_text(f"items, id {2**64 - 1}: norm 5")
    tables.get_by_label("Id of a row").fill("8")
    tables.get_by_label("Id of a row").press("Enter")
    widget.wait_for_text("has no row for id 8")
    widget.root.get_by_role("button", name="Pause").click()
    opened.wait_for_end(2)


@REST
def test_a_killed_worker_is_shown_before_it_could_be_missed(notebook: OpenNotebook) -> None:
    opened = notebook(
        """
import os, time
import psnb
client = psnb.local_cluster(2, 1)
strategy = psnb.ParameterServerStrategy(client)
coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=1000)
def process():
    return os.getpid()
""",
        "coordinator",
        """
print(coordinator.schedule(process, worker=0).fetch())
def wait():
    time.sleep(0.05)
for _ in range(500):
    coordinator.schedule(wait)
""",
        "coordinator.cancel_queued(); strategy.close(); client.close()",
    )
    opened.run(0, 1, 2)
    widget = Dashboard(opened.output(1))
    widget.wait_for_more("completed", 5)
    os.kill(int(opened.printed(2)), signal.SIGKILL)
    lost = widget.root.get_by_role("row").filter(has_text="lost")
    lost.first.wait_for(timeout=PATIENCE)
    opened.run(3)


@contextmanager
def worker_named(name: str, cluster: Client) -> Iterator[None]:
    """Have one more worker in a cluster, of this name."""
    options = ("--name", name, "--nthreads", "1", "--no-nanny", "--no-dashboard")
    with process("dask", "worker", cluster.scheduler.address, *options):
        wait_until(
            lambda: any(worker["name"] == name for worker in identity(cluster)["workers"].values()),
            "the worker joins",
        )
        yield
