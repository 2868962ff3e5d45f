"""What closures print is seen where the notebook prints."""

from __future__ import annotations

import doctest
import logging
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from distributed import Client

import psnb
from psnb import errors
from tests.conftest import DEADLINE, wait_until
from tests.integration.helpers import kill_myself, wait_for_file

WHOLE = re.compile(r"\[[^]]+\] (closure \d part \d+|no end of line)")

SCRIPT = """
import logging, sys, warnings
import psnb

def talk(number):
    for part in range(50):
        print("closure", number, "part", part)
    print("error", number, file=sys.stderr)
    warnings.warn(f"warning {number}")
    logging.getLogger("mine").warning("logged %d", number)
    print("no end of line", end="")

if __name__ == "__main__":
    with psnb.local_cluster(2, 1) as client, psnb.ParameterServerStrategy(client) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.map(talk, range(8))
        coordinator.join()
"""


def talk(number: int) -> None:
    for part in range(50):
        print("closure", number, "part", part)
    print("error", number, file=sys.stderr)
    print("no end of line", end="")


def test_lines_of_several_workers_have_their_names_and_are_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        psnb.local_cluster(workers=2, processes=False) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.map(talk, range(8))
        coordinator.join()
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 8 * 51
    assert [line for line in lines if not WHOLE.fullmatch(line)] == []
    for number in range(8):
        end = f"] error {number}"
        assert [line[:8] for line in err.splitlines() if line.endswith(end)] == ["[worker-"]


def test_what_closures_write_is_kept_by_worker(whole: Client) -> None:
    def talks(word: str) -> None:
        print("printed", word)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(f"warned {word}", stacklevel=1)
        logging.Logger("without a handler").warning("logged %s", word)
        print("no end", end="")

    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.schedule(talks, ("here",), worker=0)
        coordinator.join(DEADLINE)
        lines = coordinator.output(0)
        assert {line.closure for line in lines} == {f"{talks.__qualname__} #0"}
        texts = [line.text for line in lines]
        assert (texts[0], *texts[-2:]) == ("printed here", "logged here", "no end")
        assert texts[1].endswith("UserWarning: warned here")
        assert coordinator.output(lines[0].worker) == lines
        (address,) = [
            w.address for w in coordinator.statistics().workers if w.name == lines[0].worker
        ]
        assert coordinator.output(address) == lines
        assert coordinator.output(1) == ()
        with pytest.raises(errors.ConfigurationError, match=f"no worker 'none'.*{lines[0].worker}"):
            coordinator.output("none")
        names = {"coordinator": coordinator}
        (example,) = doctest.DocTestFinder().find(
            psnb.ClusterCoordinator.output, "output", globs=names
        )
        assert doctest.DocTestRunner().run(example) == (0, 4)


def test_the_last_words_of_a_killed_worker_are_kept(whole: Client, tmp_path: Path) -> None:
    heard = tmp_path / "heard"

    def dies() -> None:
        if psnb.worker_context().attempt == 1:
            print("last words")
            wait_for_file(heard)
            kill_myself()

    with psnb.ParameterServerStrategy(whole) as strategy:
        coordinator = psnb.ClusterCoordinator(strategy)
        coordinator.schedule(dies)

        def speakers() -> list[str]:
            names = {worker.name for worker in coordinator.statistics().workers}
            return [name for name in names if coordinator.output(name)]

        wait_until(lambda: bool(speakers()), "the line arrives")
        heard.touch()
        coordinator.join(DEADLINE)
        assert coordinator.statistics().workers_lost == 1
        (name,) = speakers()
        assert [line.text for line in coordinator.output(name)] == ["last words"]


@pytest.mark.second_tier("as people start processes; what logging writes is in tests/worker")
def test_lines_of_several_processes_have_their_names_and_are_whole(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 8 * 51
    assert [line for line in lines if not WHOLE.fullmatch(line)] == []
    told = done.stderr.splitlines()
    for number in range(8):
        for text in ("error %d", "UserWarning: warning %d", "logged %d"):
            end = text % number
            assert [line[:8] for line in told if line.endswith(end)] in (["[worker-"],), end
