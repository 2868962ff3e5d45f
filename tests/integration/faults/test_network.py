"""Workers behind a network that is cut: nothing is refused or closed, nothing arrives any more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.client.comm_client import CommServerClient
from tests.conftest import DEADLINE, connected, wait_until
from tests.integration.black_hole import BlackHole
from tests.integration.helpers import CommandLine, Steps, free_port, wait_until_ready
from tests.integration.namespaces import ADD_LINK, APART, require_namespaces

pytestmark = pytest.mark.second_tier(
    "to the notebook a worker behind a cut is like a frozen one, which test_hangs.py has"
)


def test_closures_behind_a_black_hole_run_elsewhere_and_count_once(tmp_path: Path) -> None:
    cluster = CommandLine(tmp_path)
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(cluster.scheduler())
        stack.enter_context(cluster.server())
        hole = stack.enter_context(BlackHole(port).running())
        where = (
            *("--listen-address", f"tcp://127.0.0.1:{port}"),
            *("--contact-address", f"tcp://127.0.0.1:{hole.port}"),
        )
        stack.enter_context(cluster.worker("--name", "far", "--no-nanny", where=where))
        client = stack.enter_context(connected(cluster.file))
        client.wait_for_workers(2, timeout=DEADLINE)
        strategy = stack.enter_context(psnb.ParameterServerStrategy(client))
        coordinator = psnb.ClusterCoordinator(strategy, heartbeat_timeout=2)
        counter = strategy.variable(np.int64(0))
        steps, late = Steps(tmp_path), tmp_path / "late"

        def count() -> str:
            counter.assign_add(np.int64(1))
            name = steps()
            if name == "far":  # the hole is for the notebook: it still reaches the server
                noted(CommServerClient.commit_soon)
            return name

        def noted(commit: Callable[..., None]) -> None:
            def noting(*args: Any, **options: Any) -> None:
                # It is refused, unless the other was applied before.
                ended = args[-1]
                commit(*args[:-1], lambda outcome: (ended(outcome), late.touch()), **options)

            CommServerClient.commit_soon = noting  # type: ignore[method-assign]

        remote = coordinator.schedule(count)
        assert steps.begun() == ["far"]
        stack.enter_context(cluster.worker("--name", "near", "--no-nanny"))
        wait_until_ready(coordinator, "near")
        hole.cut()
        assert steps.begun(2) == ["far", "near"]
        (lost,) = [e for e in coordinator.events() if e.kind is psnb.EventKind.WORKER_LOST]
        assert lost.worker == "far"
        assert "no heartbeat" in lost.message
        steps.end()
        assert remote.fetch(DEADLINE) == "near"
        wait_until(late.exists, "the attempt behind the hole has come to the server too")
        assert int(counter.read()) == 1


def run_apart(module: str, *arguments: str, limit: float = 150) -> None:
    """Run one of the test's modules as root of a network of its own."""
    require_namespaces(*APART, *ADD_LINK)
    done = subprocess.run(
        [*APART, sys.executable, "-m", f"tests.integration.faults.{module}", *arguments],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_closures_of_a_worker_whose_link_is_cut_run_elsewhere(tmp_path: Path) -> None:
    run_apart("cut_link", str(tmp_path))


@pytest.mark.parametrize("seconds", [15, 60])
@pytest.mark.parametrize("who", ["server", "worker", "scheduler", "notebook"])
def test_a_link_that_is_down_for_less_than_the_limit_loses_nothing(
    tmp_path: Path, who: str, seconds: int
) -> None:
    run_apart("cut_links", str(tmp_path), who, str(seconds), limit=280)


def test_what_is_lost_beyond_the_limit_is_said(tmp_path: Path) -> None:
    run_apart("cut_links", str(tmp_path), "beyond", "0", limit=280)


def test_a_host_that_dies_without_a_word_is_noticed_long_before_the_limit(tmp_path: Path) -> None:
    run_apart("cut_links", str(tmp_path), "dead", "0")
