"""What only a real kernel has, with a real cluster: the stop button and outputs of cells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

TIMEOUT = 60.0

# Processes: the stop button is a signal to them, too.
SET_UP = """
import psnb
client = psnb.local_cluster(workers=1, servers=1)
strategy = psnb.ParameterServerStrategy(client)
coordinator = psnb.ClusterCoordinator(strategy)
v = strategy.variable([1.0, 2.0])
def wait(path):
    import os, threading
    while not os.path.exists(path):
        threading.Event().wait(0.02)
    return float(v.read()[1])
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """A kernel in which `SET_UP` has run."""
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        assert run(client, SET_UP)["status"] == "ok"
        yield manager, client
    finally:
        client.execute_interactive("strategy.close(); client.close()", timeout=TIMEOUT)
        client.stop_channels()
        manager.shutdown_kernel()


def run(client: BlockingKernelClient, code: str, **options: Any) -> dict[str, Any]:
    reply: dict[str, Any] = client.execute_interactive(code, timeout=TIMEOUT, **options)["content"]
    return reply


def test_interrupting_join_leaves_cluster_parameters_and_closures_as_they_were(
    kernel: tuple[KernelManager, BlockingKernelClient], tmp_path: Path
) -> None:
    manager, client = kernel
    end = tmp_path / "end"
    # The output says that join begins; then the stop button is pressed.
    interrupted = run(
        client,
        f"remotes = [coordinator.schedule(wait, ({str(end)!r},)) for _ in range(2)]\n"
        "print('joining', flush=True); coordinator.join()",
        output_hook=lambda message: (
            manager.interrupt_kernel() if message["msg_type"] == "stream" else None
        ),
    )
    assert interrupted["ename"] == "KeyboardInterrupt"
    end.touch()
    after = run(
        client,
        "coordinator.join()",
        user_expressions={
            "fetched": "coordinator.fetch(remotes)",
            "retried": "coordinator.statistics().retried",
        },
    )
    assert after["status"] == "ok"
    shown = {k: e["data"]["text/plain"] for k, e in after["user_expressions"].items()}
    assert shown == {"fetched": "[2.0, 2.0]", "retried": "0"}


def test_join_shows_its_progress_in_one_output_of_its_cell(
    kernel: tuple[KernelManager, BlockingKernelClient], tmp_path: Path
) -> None:
    _, client = kernel
    shown: list[dict[str, Any]] = []
    end = tmp_path / "end"

    def note(message: dict[str, Any]) -> None:
        if "display" in message["msg_type"]:
            shown.append(message)
            end.touch()

    reply = run(
        client,
        f"for _ in range(3): coordinator.schedule(wait, ({str(end)!r},))\ncoordinator.join()",
        output_hook=note,
        user_expressions={"completed": "coordinator.statistics().completed"},
    )
    completed = reply["user_expressions"]["completed"]["data"]["text/plain"]
    kinds = [message["msg_type"] for message in shown]
    assert kinds[0] == "display_data"
    assert set(kinds[1:]) == {"update_display_data"}
    cells = {message["parent_header"]["msg_id"] for message in shown}
    assert len(cells) == 1
    last = shown[-1]["content"]["data"]["text/plain"]
    assert last.startswith(f"idle, {completed} completed, 0 to do")


def test_what_is_saved_of_a_coordinator_is_up_to_date_when_the_cell_ends_that_joined(
    kernel: tuple[KernelManager, BlockingKernelClient],
) -> None:
    """What only executes a notebook takes no output that comes later, or for another cell."""
    _, client = kernel
    run(client, "coordinator")
    shown: list[str] = []

    def note(message: dict[str, Any]) -> None:
        if message["msg_type"] == "update_display_data":
            shown.append(message["content"]["data"]["text/html"])

    reply = run(
        client,
        "for _ in range(3): coordinator.schedule(v.read)\ncoordinator.join()",
        output_hook=note,
        user_expressions={"completed": "coordinator.statistics().completed"},
    )
    completed = reply["user_expressions"]["completed"]["data"]["text/plain"]
    assert f"completed {completed} " in shown[-1]
    assert "queued 0 · in flight 0" in shown[-1]
