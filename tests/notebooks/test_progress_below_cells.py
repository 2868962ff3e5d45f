"""The line of progress, in a real kernel."""

from __future__ import annotations

from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.notebooks.test_interrupt import SET_UP, kernel, run

__all__ = ["kernel"]  # the fixture

pytestmark = pytest.mark.slow


def test_join_shows_its_progress_in_one_output_of_its_cell(
    kernel: tuple[KernelManager, BlockingKernelClient],
) -> None:
    _, client = kernel
    assert run(client, SET_UP)["status"] == "ok"
    shown: list[dict[str, Any]] = []
    run(
        client,
        "[coordinator.schedule(wait) for _ in range(3)]; coordinator.join()",
        output_hook=lambda message: (
            shown.append(message) if "display" in message["msg_type"] else None
        ),
    )
    kinds = [message["msg_type"] for message in shown]
    assert kinds[0] == "display_data"
    assert set(kinds[1:]) == {"update_display_data"}
    cells = {message["parent_header"]["msg_id"] for message in shown}
    assert len(cells) == 1
    assert shown[-1]["content"]["data"]["text/plain"].startswith("idle, 3 completed, 0 to do")
