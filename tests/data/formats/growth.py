"""Reads a file in a process of its own, which says how much memory that took."""

from __future__ import annotations

import ctypes
import json
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.forking import Forked

MB = 1_000_000

_OPTIONS = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""The numbers that mallopt(3) has for what is set in workers of local clusters."""


def growth(form: Any, path: str, small: bytes) -> tuple[float, str, list[int]]:
    """Return by how many MB reading a file grew its process at most, the error, chunks' counts.

    A small file is read before, so that what is compiled and imported is there already.
    """
    warm = Path(path).with_name("warm" + "".join(Path(path).suffixes))
    warm.write_bytes(small)
    given = pickle.dumps((form, path, str(warm))).hex()
    errors = Path(path).with_name("errors")
    with Forked("tests.data.formats.growth", given, heard=True, errors_to=errors) as process:
        assert process.stdout is not None
        found = process.stdout.read()
        assert process.wait() == 0, errors.read_text()[-2000:]
    peak, said, counts = json.loads(found)
    return peak / MB, said, counts


def main() -> None:
    from psnb._src.cluster.forking import MALLOC
    from psnb.errors import DatasetError

    warnings.simplefilter("error")
    form, path, warm = pickle.loads(bytes.fromhex(sys.argv[1]))
    list(form.read(warm))
    for name, value in MALLOC.items():
        assert ctypes.CDLL(None).mallopt(_OPTIONS[name], int(value))
    # What was at most in memory is forgotten (proc_pid_clear_refs(5)); `getrusage` also counts what
    # the process that started this one had.
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    said, counts = "", []
    try:
        for chunk in form.read(path):
            counts.append(chunk.count)
    except DatasetError as error:
        said = str(error)
    print(json.dumps([_peak() - before, said, counts]))


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


if __name__ == "__main__":
    main()
