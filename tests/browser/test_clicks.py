"""Clicks in the widget, most of them while a cell blocks the notebook in ``join``.

They fail when Jupyter changes what `psnb._src.jupyter_compat` builds on.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.browser.conftest import REST, OpenNotebook
from tests.browser.dashboard import Dashboard

MANY = 5_000
"""Closures that no test waits for, of two minutes: those that are left at its end are cancelled."""

BLOCK = f"""
for number in range({MANY}):
    coordinator.schedule(step, (number,))
coordinator.join()
"""


def test_a_click_pauses_and_another_resumes_while_a_cell_blocks_in_join(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(set_up, "coordinator", BLOCK)
    opened.run(0, 1)
    widget = Dashboard(opened.output(1))
    opened.start(2)
    widget.wait_for_more("completed", 5)
    widget.press("Pause")
    widget.wait_for_state("paused")
    completed = widget.count("completed")
    widget.press("Resume")
    widget.wait_for_more("completed", completed)
    assert opened.is_running(2)


@REST
def test_a_figure_that_the_running_cell_builds_survives_a_click(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(
        set_up,
        "coordinator",
        f"""
%matplotlib inline
import matplotlib.pyplot as plt
plt.plot([1, 2])
for number in range({MANY}):
    coordinator.schedule(step, (number,))
while not coordinator.paused:
    time.sleep(0.05)
print("figures:", plt.get_fignums())
coordinator.cancel_queued()
""",
    )
    opened.run(0, 1)
    widget = Dashboard(opened.output(1))
    opened.start(2)
    widget.wait_for_more("completed", 5)
    widget.press("Pause")
    opened.wait_for_end(2)
    kinds = [output["output_type"] for output in opened.outputs(2)]
    # On a slow machine, Matplotlib first says that it builds the cache of its fonts.
    assert opened.printed(2).endswith("figures: [1]\n")
    assert kinds.index("stream") < kinds.index("display_data"), "shown before the cell ended"
    assert kinds.count("display_data") == 1


@REST
def test_checkpoint_now_writes_what_it_says(notebook: OpenNotebook, set_up: str) -> None:
    opened = notebook(
        set_up,
        "import tempfile; folder = tempfile.mkdtemp(); print(folder)\n"
        "manager = psnb.CheckpointManager(coordinator, folder)",
        "coordinator",
        BLOCK,
    )
    opened.run(0, 1, 2)
    widget = Dashboard(opened.output(2))
    opened.start(3)
    widget.wait_for_more("completed", 5)
    widget.press("Checkpoint now")
    folder = opened.printed(1).strip()
    shown = widget.wait_for_text(re.compile(f"saved: {re.escape(folder)}/")).inner_text()
    path = Path(shown.split("saved: ", 1)[1].split(" (closures held", 1)[0].strip())
    assert path.parent == Path(folder)
    assert list(path.iterdir())
    assert opened.is_running(3)


@REST
def test_a_learning_rate_takes_effect_on_the_next_update(
    notebook: OpenNotebook, set_up: str
) -> None:
    opened = notebook(
        set_up,
        "coordinator",
        "weights.assign([0.0] * 4); weights.push([1.0] * 4); print(weights.read()[0])",
    )
    opened.run(0, 1)
    widget = Dashboard(opened.output(1))
    widget.wait_for_text("Learning rates")  # the servers are asked for them
    widget.open_sections()
    field = widget.root.get_by_label("New learning rate of weights")
    field.fill("0.125")
    field.press("Enter")
    widget.wait_for_text("0.125")
    opened.run(2)
    assert opened.printed(2) == "-0.125\n"
