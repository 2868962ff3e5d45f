"""A disk of a few megabytes, which is full when it is full: a tmpfs, where one may be mounted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount it, or skip the test where the system does not let this process."""
    place = folder / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "psnb-test", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        # Lazily: a process of a test that failed may still have files there.
        subprocess.run(["umount", "--lazy", str(place)], check=True)
