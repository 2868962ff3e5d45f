"""Fuzzes the parsers with atheris: ``python -m tests.fuzz <parser or all> [seconds or file]``.

For half of the seconds as Python, where atheris sees which lines a file reaches; for the other half
compiled, beginning from the files that were found, with numba's checks of bounds. A file that fails
is kept in the folder `FOUND`; given in place of the seconds, it is read once more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from psnb._src.cluster.neighbours import private_folder

PARSERS = [
    *("tfrecords", "example", "multi_slot", "csv", "criteo", "text_lines"),
    *("fixed_length_records", "zlib", "checkpoint"),
]
FOUND = Path("fuzz-found")
LONGEST = 10
"""Seconds after which reading a file counts as hanging."""

MODES = {
    "interpreted": {"NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore:overflow:RuntimeWarning"},
    "compiled": {"NUMBA_BOUNDSCHECK": "1"},
}


def _main(parser: str = "all", limit: str = "60") -> int:
    FOUND.mkdir(exist_ok=True)
    # What is compiled with checks must not be taken for what is without, nor the other way; and
    # numba unpickles what lies there.
    cache = Path(private_folder(tempfile.gettempdir()), "fuzz-numba")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    failed = 0
    for each in PARSERS if parser == "all" else [parser]:
        with tempfile.TemporaryDirectory() as corpus:
            for mode, settings in MODES.items():
                print(f"{each}, {mode}", flush=True)
                command = [sys.executable, "-m", "tests.fuzz", each, limit, mode, corpus]
                failed |= subprocess.run(command, env={**environment, **settings}).returncode
    return failed


def _fuzz(parser: str, limit: str, mode: str, corpus: str) -> None:
    """Fuzz, in a process of its own: it ends with the last file."""
    import atheris

    if mode == "interpreted":
        rooms = [
            "psnb._src.data",
            "psnb._src.checkpoint",
            "psnb._src.client",
            "psnb._src.server",
        ]
        with atheris.instrument_imports(include=rooms):
            # First: the seeds of a target are made with what is compiled.
            import psnb._src.data.formats.text
            import psnb._src.server.server  # noqa: F401

            _interpret_intrinsics()
            from tests.fuzz.targets import TARGETS
    else:
        from tests.fuzz.targets import TARGETS
    target = TARGETS[parser]
    if not limit.isdigit():
        target.check(Path(limit).read_bytes())
        return
    for number, seed in enumerate(target.seeds):
        Path(corpus, f"seed-{number}").write_bytes(seed)
        target.check(seed)  # compiles, too
    options = [f"-max_total_time={int(limit) // 2}", f"-timeout={LONGEST}", "-verbosity=0"]
    atheris.Setup([parser, corpus, f"-artifact_prefix={FOUND}/{parser}-", *options], target.check)
    atheris.Fuzz()


def _interpret_intrinsics() -> None:
    """Put Python in the place of the instructions that numba cannot interpret."""
    for name, module in list(sys.modules.items()):
        if name.startswith("psnb."):
            for each in (_zeros_below, _ask_for):
                if hasattr(module, each.__name__[1:]):
                    setattr(module, each.__name__[1:], each)


def _zeros_below(word: np.uint64) -> np.uint64:
    number = int(word)
    return np.uint64((number & -number).bit_length() - 1 if number else 64)


def _ask_for(array: np.ndarray, row: int, line: int) -> None:
    pass  # it has an effect on time alone


if __name__ == "__main__":
    if len(sys.argv) == 5:
        _fuzz(*sys.argv[1:])
    else:
        sys.exit(_main(*sys.argv[1:]))
