"""Other people of this host: who is there, and what they can enter."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from psnb._src.cluster.neighbours import is_person, neighbours, private_folder

STRANGER = 10_000 + os.getpid() % 50_000
"""A number of a user that nobody has here, nor another run of these tests."""

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.mark.parametrize(
    ("uid", "person"),
    [
        *((0, False), (33, False), (999, False), (1000, True), (60_000, True)),
        *((61_184, False), (65_534, False), (65_535, False), (100_000, True), (1 << 31, True)),
    ],
)
def test_people_are_distinguished_from_services_by_their_numbers(uid: int, person: bool) -> None:
    assert is_person(uid) is person


@as_root
def test_who_runs_something_is_a_neighbour() -> None:
    assert str(STRANGER) not in neighbours()
    with subprocess.Popen(["sleep", "60"], user=STRANGER) as theirs:
        assert str(STRANGER) in neighbours()
        theirs.kill()


def test_they_are_no_neighbours() -> None:
    assert "root" not in neighbours()
    assert str(os.getuid()) not in neighbours()


def test_a_private_folder_is_the_same_one_each_time(tmp_path: Path) -> None:
    folder = private_folder(str(tmp_path))
    assert _mode(folder) == 0o700
    assert private_folder(str(tmp_path)) == folder


def _open(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def _file(place: Path) -> None:
    place.touch(0o600)


def _link(place: Path) -> None:
    elsewhere = place.with_name("elsewhere")
    elsewhere.mkdir(0o700)
    place.symlink_to(elsewhere)


def _theirs(place: Path) -> None:
    place.mkdir(0o700)
    os.chown(place, STRANGER, STRANGER)


@pytest.mark.parametrize("take", [_open, _file, _link, pytest.param(_theirs, marks=as_root)])
def test_a_private_folder_is_never_another_users(
    tmp_path: Path, take: Callable[[Path], None]
) -> None:
    taken = tmp_path / f"psnb-{os.getuid()}"
    take(taken)
    folder = private_folder(str(tmp_path))
    assert Path(folder) != taken
    assert _mode(folder) == 0o700


def _mode(folder: str) -> int:
    return stat.S_IMODE(os.lstat(folder).st_mode)
