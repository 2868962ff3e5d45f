"""The git commit that a folder's files are of, read from git's files: it runs nothing. Pure.

So no hook runs, no network is asked, and git need not be installed. Changes since the commit are
not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_COMMIT = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")
_MOST_BYTES = 1 << 24  # of the list of packed references


def commit_of(folder: Path) -> str:
    """Return the commit that is checked out around a folder; an empty text if there is none."""
    try:
        for place in (folder, *folder.parents):
            if (place / ".git").exists():
                return _head(_repository(place / ".git"))
    except (OSError, ValueError):
        pass  # of another user, or of a git to come
    return ""


def _repository(entry: Path) -> Path:
    """Return the folder of a repository: of a worktree or a submodule, ``.git`` is a file."""
    if entry.is_dir():
        return entry
    return entry.parent / _text(entry).removeprefix("gitdir:").strip()


def _head(repository: Path) -> str:
    found = _text(repository / "HEAD")
    common = repository / "commondir"  # a worktree has only its own head
    shared = repository / _text(common) if common.exists() else repository
    for _ in range(5):  # a reference may name another one
        if _COMMIT.fullmatch(found):
            return found
        name = found.removeprefix("ref:").strip()
        if ".." in name or name.startswith("/"):
            return ""
        places = (repository / name, shared / name)
        file = next((each for each in places if each.is_file()), None)
        if file is None:
            return next(_packed(shared / "packed-refs", name), "")
        found = _text(file)
    return ""


def _packed(file: Path, name: str) -> Iterator[str]:
    for line in _text(file).splitlines():
        commit, _, named = line.partition(" ")
        if named == name and _COMMIT.fullmatch(commit):
            yield commit


def _text(file: Path) -> str:
    with open(file, "rb") as opened:
        return opened.read(_MOST_BYTES).decode().strip()
