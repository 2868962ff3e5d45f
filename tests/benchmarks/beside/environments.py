"""Virtual environments of peers: made on demand in the folder ``.peers``, kept, and ignored by git.

What psnb's own environment has (Dask, torch, JAX, Keras) is measured there: both sides then have
the same release.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.beside.talking import ROOT, PeerError

FOLDER = ROOT / ".peers"
SECONDS = 900

Packages = Sequence[Sequence[str]]
"""What to install: for each call of pip, its arguments."""


def python(name: str, packages: Packages, folder: Path = FOLDER) -> Path:
    """Return the interpreter of a peer's environment, which is made unless it is there.

    Raises
    ------
    PeerError
        If something cannot be installed; the environment is removed, and tried again next time.
    """
    if not packages:
        return Path(sys.executable)
    where, wanted = folder / name, "\n".join(" ".join(each) for each in packages)
    stamp, found = where / "installed", where / "bin" / "python"
    if stamp.exists() and stamp.read_text() == wanted:
        return found
    print(f"installing {name} into {where}: some minutes, once", file=sys.stderr, flush=True)
    try:
        _run(sys.executable, "-m", "venv", "--clear", str(where))
        for each in packages:
            _run(str(found), "-m", "pip", "install", "--quiet", *each)
    except PeerError:
        shutil.rmtree(where, ignore_errors=True)
        raise
    stamp.write_text(wanted)
    return found


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SECONDS, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"pip has not finished in {SECONDS} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        last = errors[-1] if errors else (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise PeerError(last.removeprefix("ERROR: "))
