"""The Dask worker plugin that brings a local module to the workers, also to those that join later.

Dask replaces a plugin by a later one of its name: `teardown` of the old one comes first.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from distributed import Worker, WorkerPlugin

from psnb._src.runtime.module_files import ModuleFiles


class UploadedModule(WorkerPlugin):
    """A module's files in a folder of the worker, from which it is imported before all others.

    What was imported of it before is forgotten, not changed: closures that run go on with it, and
    what is unpickled from now on gets the new one.

    Parameters
    ----------
    files : ModuleFiles
        The files.
    """

    def __init__(self, files: ModuleFiles) -> None:
        self.name = f"psnb-module-{files.name}"
        self._files = files
        self._folder = ""

    def setup(self, worker: Worker) -> None:
        """Write the files, and have them imported from now on."""
        # A folder for each state: no file that was removed since is found, no old bytecode.
        folder = Path(worker.local_directory, self.name, self._files.digest)
        for name, data in self._files.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self._folder = str(folder)
        sys.path.insert(0, self._folder)
        self._forget()

    def teardown(self, worker: Worker) -> None:
        """Import it from there no more."""
        if self._folder in sys.path:
            sys.path.remove(self._folder)
        self._forget()

    def _forget(self) -> None:
        name = self._files.name
        for each in [each for each in sys.modules if f"{each}.".startswith(f"{name}.")]:
            sys.modules.pop(each, None)
        importlib.invalidate_caches()
