"""The command of `make bench`: its page, who is left out and why, and a run of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.beside import __main__ as command
from tests.benchmarks.beside import environments, measuring, page, plan
from tests.benchmarks.beside.talking import Answer, PeerError, Process

ABOUT = page.About("make bench", "2 cores", "2026-11-26", (1.0, 2.5), 3, 0.5, 9.4, quick=False)
CORES = {"notebook": [0.25], "worker": [0.5, 0.75], "rest": [0.0], "idle": [0.4], "others": [0.1]}
BY_MODULE = {peer.module: peer for peer in plan.PEERS}


class Fake:
    """A process that answers at once: psnb is twice as fast, Ray cannot start, Dask dies."""

    def __init__(self, module: str, *_: Any) -> None:
        if module == "ray":
            raise PeerError("ModuleNotFoundError: No module named 'ray'")
        self._module, self.version = module, "1.0"

    def ask(self, work: str, seconds: float) -> Answer:
        """Return a rate."""
        if (self._module, work) == ("dask", "rows"):
            raise PeerError("it ended without a word")
        return Answer(2000.0 if self._module == "psnb" else 1000.0, 0.25, CORES)

    def close(self) -> None:
        """End it."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> measuring.Run:
    """A run of fake peers."""
    monkeypatch.setattr(measuring, "Process", Fake)
    monkeypatch.setattr(environments, "python", lambda name, packages: Path("python"))
    peers = [BY_MODULE[name] for name in ("ray", "dask", "jax")]
    return measuring.measure(peers, 3, 0.1, tmp_path, lambda text: None)


def test_who_fails_is_left_out_with_the_reason_and_the_others_go_on(run: measuring.Run) -> None:
    assert run.left_out == {
        "Ray": "ModuleNotFoundError: No module named 'ray'",
        "plain Dask": "it ended without a word",
    }
    assert [row.peer for row in run.rows if row.work in plan.WIDE.values()] == ["JAX alone"] * 2
    assert all(row.ratio == measuring.Spread(2.0, 2.0, 2.0) for row in run.rows)


def test_the_page_has_the_table_the_load_and_who_is_left_out(
    run: measuring.Run, tmp_path: Path
) -> None:
    page.write(run, plan.PEERS, ABOUT, tmp_path / "peers.md")

    text = (tmp_path / "peers.md").read_text()
    assert "| JAX alone | 2,000 ± 0 % | 1,000 ± 0 % | 2.00 | 2.00 to 2.00 | 0.25, 0.25 |" in text
    jax = f"| {plan.WIDE[512]} | JAX alone | 0.25 | 0.50 + 0.75 |  | 0.00 | 0.40 | 0.10 | 1,500 |"
    assert jax in text
    assert ":Load average: 1.0 before, 2.5 after" in text
    assert "- Ray: ModuleNotFoundError: No module named 'ray'" in text
    assert "- Ray: Two actors" not in text
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("quick", "load", "warned"), [(False, 0.9, False), (True, 0.9, True), (False, 1.1, True)]
)
def test_a_run_that_says_little_is_marked(
    run: measuring.Run, tmp_path: Path, quick: bool, load: float, warned: bool
) -> None:
    about = replace(ABOUT, quick=quick, load=(load, 2.0))
    page.write(run, plan.PEERS, about, tmp_path / "peers.md")
    assert ("{warning}" in (tmp_path / "peers.md").read_text()) == warned


def test_rates_and_losses_are_short() -> None:
    spread = measuring.Spread(123_456.0, 111_111.0, 135_802.0)
    assert page._rate(spread) == "123,000 ± 10 %"
    assert page._losses((0.5, math.nan)) == "0.50, -"
    assert page._losses((math.nan, math.nan)) == ""


def test_every_pair_is_of_a_work_that_is_shown() -> None:
    assert {pair.work for peer in plan.PEERS for pair in peer.pairs} == set(plan.WORKS)


def test_a_peer_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"No module named .*peers\.nothing"):
        Process("nothing", environments.python("nothing", ()), tmp_path / "log")


@pytest.mark.second_tier("makes a virtual environment")
def test_what_cannot_be_installed_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="no-such-folder"):
        environments.python("peer", [["./no-such-folder"]], tmp_path)
    assert not (tmp_path / "peer").exists()


@pytest.mark.second_tier("a minute: psnb and two peers at work")
def test_a_quick_run_makes_a_page(tmp_path: Path) -> None:
    made = tmp_path / "peers.md"
    command.main(["--quick", "--only", "dask", "torch", "--to", str(made)])

    text = made.read_text()
    for row in ("Dask `Client.submit`", "plain Dask", "torch alone"):
        assert f"| {row} | " in text
    assert "- TensorFlow: this run was asked for others only" in text
