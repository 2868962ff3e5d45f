"""SavedRuns: the runs that checkpoints in a folder have, listed by the hub beside live ones.

Another process reads them, ``python -m psnb runs --updates``: the server does not import what reads
checkpoints, and what is in a folder cannot stop it. Its answer is shown only if it has the form of
updates. Everything runs on the event loop of the Jupyter server.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from psnb._src.monitor import protocol
from psnb._src.monitor.jupyter_server import messages
from psnb._src.monitor.jupyter_server.coordinators import CoordinatorRegistry, TooManyError
from psnb._src.monitor.jupyter_server.panel import Panels

MOST_RUNS = 30
"""Runs of a folder that are listed: the newest."""

TIME_LIMIT = 9.0
"""Seconds in which a folder must be read: the page waits for ten."""


# Not in the server's folder: a file there could have the name of a module.
_READ = (sys.executable, "-P", "-m", "psnb", "runs", "--updates", str(MOST_RUNS))


def is_folder(typed: str) -> bool:
    """Return whether what people have typed is a folder, not the address of a scheduler."""
    return typed.startswith((".", "~")) or ("/" in typed and "://" not in typed)


class SavedRuns:
    """Lists runs.

    Parameters
    ----------
    root : pathlib.Path
        The server's folder, from which relative paths count.
    sources : CoordinatorRegistry
        Where runs are added.
    panels : Panels
        Woken when some are.
    """

    def __init__(self, root: Path, sources: CoordinatorRegistry, panels: Panels) -> None:
        self._root, self._sources, self._panels = root, sources, panels

    async def add(self, typed: str) -> str:
        """List the runs of a folder; return why that failed, or an empty string."""
        folder = self._root / Path(typed).expanduser()
        process = await asyncio.create_subprocess_exec(
            *(*_READ, str(folder)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(TIME_LIMIT):
                told, complaint = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return f"{folder} was not read within {TIME_LIMIT:g} s: name a folder with fewer runs"
        if process.returncode:
            return complaint.decode(errors="replace").strip().removeprefix("psnb: ")
        try:
            for line in told.splitlines():
                self._add(messages.read(line, protocol.Update), str(folder))
        except (messages.MalformedError, TooManyError) as error:
            return f"{folder}: {error}"
        finally:
            self._panels.wake(listing=True)
        return ""

    def _add(self, update: protocol.Update, folder: str) -> None:
        coordinator = update["coordinator"]
        self._sources.pop(coordinator, None)  # as it was the last time
        known = self._sources.add(coordinator, "saved", folder)
        known.add(update)
        self._sources.end(known, f"a saved run: {update['checkpoint']['path']}")
