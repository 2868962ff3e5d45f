"""Neighbours: the other people who work on this host, and a folder that they cannot enter.

The system keeps them out of each other's processes and memory, but not out of ports on loopback,
nor out of names in the folder for temporary files, which belong to whoever takes them first.
"""

from __future__ import annotations

import os
import stat
import tempfile

import psutil

_FIRST_PERSON = 1000
_SYSTEMS_OWN = range(61184, 65536)
"""Among the numbers of people: services that get one while they run, and nobody."""


def neighbours() -> list[str]:
    """Return the names of other people who are logged in or run something, sorted.

    Not root's, who may do everything anyhow. Where the system hides the processes of others, or in
    a container, some are not seen.
    """
    running = {
        each.info["username"]
        for each in psutil.process_iter(["uids", "username"])
        if each.info["uids"] and is_person(each.info["uids"].real)
    }
    logged_in = {user.name for user in psutil.users()}
    return sorted((running | logged_in) - {psutil.Process().username(), "root"})


def is_person(uid: int) -> bool:
    """Return whether a user's number is one of people, not of the system's services."""
    return uid >= _FIRST_PERSON and uid not in _SYSTEMS_OWN


def private_folder(parent: str) -> str:
    """Return a folder that only this user can enter, the same one each time if it can be.

    Parameters
    ----------
    parent : str
        Where it is made, or was.
    """
    folder = os.path.join(parent, f"psnb-{os.getuid()}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if not ours or stat.S_IMODE(found.st_mode) & 0o077:  # somebody was here before
            return tempfile.mkdtemp(prefix="psnb-", dir=parent)
    return folder
