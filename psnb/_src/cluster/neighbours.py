"""Neighbours: the other users of this host, and a folder that they cannot enter.

The system protects users' processes and memory from each other, but not their ports on loopback.
And a name in the folder for temporary files belongs to the user who takes it first.
"""

from __future__ import annotations

import os
import stat
import tempfile

import psutil

_FIRST_PERSON = 1000
_SYSTEMS_OWN = range(61184, 65536)
"""User ids above `_FIRST_PERSON` that are not people: dynamic ids of services, and ``nobody``."""


def neighbours() -> list[str]:
    """Return the names of other people who are logged in or run something, sorted.

    Without root, who may do everything anyhow. If the system hides other users' processes, or in a
    container, some users are not seen.
    """
    running = {
        each.info["username"]
        for each in psutil.process_iter(["uids", "username"])
        if each.info["uids"] and is_person(each.info["uids"].real)
    }
    logged_in = {user.name for user in psutil.users()}
    return sorted((running | logged_in) - {psutil.Process().username(), "root"})


def is_person(uid: int) -> bool:
    """Return whether a user id belongs to a person, not to one of the system's services."""
    return uid >= _FIRST_PERSON and uid not in _SYSTEMS_OWN


def private_folder(parent: str) -> str:
    """Return a folder that only this user can enter, the same one each time if possible.

    Parameters
    ----------
    parent : str
        The folder in which it is made, or was.
    """
    folder = os.path.join(parent, f"psnb-{os.getuid()}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if not ours or stat.S_IMODE(found.st_mode) & 0o077:  # made by, or open to, another user
            return tempfile.mkdtemp(prefix="psnb-", dir=parent)
    return folder
