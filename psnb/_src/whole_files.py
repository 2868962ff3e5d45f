"""Files that must be whole: their checksums, and that they are on disk. Pure."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

from xxhash import xxh3_64

from psnb._src.threads import Answer, uninterrupted

_CHUNK = 1 << 18


def checksum(file: Path) -> str:
    """Return the XXH3 checksum of a file, which is read piece by piece."""
    found, chunk = xxh3_64(), bytearray(_CHUNK)
    view = memoryview(chunk)
    with open(file, "rb", buffering=0) as opened:
        while size := opened.readinto(chunk):
            found.update(view[:size])
    return found.hexdigest()


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def synced(file: Path) -> str:
    """Sync a file to disk, and return its checksum, computed meanwhile."""
    done: Answer[None] = Answer()
    waits = partial(done.give, sync, file)
    with uninterrupted:
        threading.Thread(target=waits, name="psnb-sync", daemon=True).start()
    found = checksum(file)
    done.result()
    return found
