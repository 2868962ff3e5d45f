"""Tests of `psnb checkpoints`: lists, verifies and prunes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from psnb._src import cli
from psnb._src.checkpoint.manifest import MANIFEST
from psnb._src.checkpoint.reader import load
from psnb._src.client.handles import shards_of
from tests.checkpoint.saved import in_hand, names, write
from tests.client.in_process import variable

FILE = "00000-variables.bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three checkpoints of a variable."""
    w = shards_of(variable(np.ones(4, np.float32), 1, name="w"))
    for step in range(3):
        states = [in_hand("w", w)]
        write(tmp_path, states, {"step": step, "rows": [1, 2], "mode": "a\nb"})
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str], str]:
    status = cli.main(["checkpoints", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out.splitlines(), said.err


def flip(file: Path) -> None:
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)


def test_checkpoints_are_listed_the_oldest_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines, _ = run(capsys, folder)
    assert status == 0
    assert lines[0].split() == [
        *("checkpoint", "written", "parameters", "bytes", "new", "metadata", "state"),
    ]
    assert [line.split()[0] for line in lines[1:]] == [f"ckpt-00000{i}" for i in (1, 2, 3)]
    size = (folder / "ckpt-000002" / FILE).stat().st_size
    assert lines[2].split()[3:6] == ["1", str(size), str(size)]
    assert lines[2].split()[6:] == ["step=1", "mode=a", "b", "not", "verified"]


def test_whole_ones_are_verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, _ = run(capsys, folder, "--verify")
    assert (status, [line.split()[-1] for line in lines[1:]]) == (0, ["ok"] * 3)


DAMAGE: dict[str, tuple[str, Callable[[Path], object], bool]] = {
    "a flipped byte": (FILE, flip, False),
    "a missing file": (FILE, Path.unlink, True),
    "a truncated file": (FILE, lambda file: file.write_bytes(file.read_bytes()[:-1]), False),
    "a truncated manifest": (MANIFEST, lambda file: file.write_text("{"), True),
}
"""The file, what happens to it, and whether it is seen without --verify."""


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("verify", [True, False])
def test_damage_is_shown_below_the_table_and_by_the_exit_status(
    folder: Path, capsys: pytest.CaptureFixture[str], damage: str, verify: bool
) -> None:
    file, harm, plain = DAMAGE[damage]
    harm(folder / "ckpt-000002" / file)
    status, lines, error = run(capsys, folder, *(["--verify"] if verify else []))
    found = [line.split()[-1] for line in lines[1:4]]
    if not verify and not plain:
        assert (status, found, error) == (0, ["verified"] * 3, "")
        return
    assert (status, found[1]) == (1, "damaged")
    assert "damaged" not in (found[0], found[2])
    assert "ckpt-000002" in lines[4]
    assert "1 of 3 checkpoints" in error


def test_old_ones_are_pruned_but_for_those_in_use(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = load(folder / "ckpt-000001")
    status, lines, _ = run(capsys, folder, "--prune", 1)
    assert (status, lines[0]) == (0, "removed: ckpt-000002")
    assert names(folder) == ["ckpt-000001", "ckpt-000003"]
    del held
    assert run(capsys, folder, "--prune", 1)[1][0] == "removed: ckpt-000001"
    assert run(capsys, folder, "--prune", 1)[1][0] == "removed: none"


def test_nothing_is_pruned_for_the_sake_of_a_damaged_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(folder / "ckpt-000003" / FILE)
    status, lines, error = run(capsys, folder, "--prune", 1)
    assert (status, lines) == (1, [])
    assert "nothing was removed" in error
    assert len(names(folder)) == 3


@pytest.mark.parametrize("options", [[], ["--verify"], ["--prune", "1"]])
def test_a_folder_without_checkpoints_is_reported_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    status, _, error = run(capsys, tmp_path / "none", *options)
    assert status == 1
    assert f"there is no checkpoint in '{tmp_path}/none'" in error
    assert not (tmp_path / "none").exists()


def test_the_help_names_the_command_and_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in ((["--help"], "psnb checkpoints"), (["checkpoints", "-h"], "--prune N")):
        with pytest.raises(SystemExit):
            cli.main(arguments)
        assert said in capsys.readouterr().out


def test_a_folder_whose_lock_is_a_pipe_is_listed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / ".lock").unlink()
    os.mkfifo(folder / ".lock")
    assert run(capsys, folder, "--verify")[0] == 0


def test_what_would_control_a_terminal_is_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    w = shards_of(variable(np.ones(4, np.float32), 1, name="\x1b[31mw"))
    write(tmp_path, [in_hand("\x1b[31mw", w)], {"step": "\x1b[2J"})
    flip(tmp_path / "ckpt-000001" / FILE)
    _, listed, _ = run(capsys, tmp_path)
    _, verified, _ = run(capsys, tmp_path, "--verify")
    assert "step=\\x1b[2J" in listed[1]
    assert all(line.isprintable() for line in [*listed, *verified])


@pytest.mark.parametrize("options", [[], ["--verify"], ["--prune", "1"]])
@pytest.mark.parametrize("where", ["s3x://bucket/a", "http://127.0.0.1:9/a"])
def test_a_place_that_is_not_reached_is_reported(
    where: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines, said = run(capsys, where, *options)
    assert (status, lines) == (1, [])
    assert said.startswith(f"psnb: '{where}' cannot be read now: ")
