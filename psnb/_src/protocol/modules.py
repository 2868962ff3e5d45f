"""ModuleFiles: the files of modules that are not installed, and which the workers were sent.

Pure, without Dask.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from distributed import Worker, WorkerPlugin

from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError

_MOST_BYTES = 1 << 24
_INSTALLED = {"site-packages", "dist-packages"}


@dataclass(frozen=True, slots=True)
class ModuleFiles:
    """The files of a module, or of a package with all that it contains.

    Attributes
    ----------
    name : str
        The module's name, without dots.
    files : dict of str to bytes
        By their paths below the folder from which they are imported.
    """

    name: str
    files: dict[str, bytes]

    @property
    def digest(self) -> str:
        """The same for the same files."""
        text = repr(sorted(self.files.items())).encode()
        return hashlib.blake2b(text, digest_size=8).hexdigest()


def is_local(name: str) -> bool:
    """Return whether a module is the user's own: one with a source file that is not installed."""
    top = _top(name)
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and top not in ("__main__", "psnb") and _is_own(file)


@functools.lru_cache(4096)
def _is_own(file: str) -> bool:
    path = Path(file)
    if path.suffix != ".py":
        return False
    return not _INSTALLED & {*path.parts} and Path(sysconfig.get_path("stdlib")) not in path.parents


def read_files(module: ModuleType) -> ModuleFiles:
    """Read the files of a local module; for a part of a package, of the whole package.

    Raises
    ------
    ConfigurationError
        If it is not a local module, or its files are too large.
    SyntaxError
        If one of them is not Python.
    """
    if not isinstance(module, ModuleType):
        raise ConfigurationError(f"upload takes a module that was imported, found {shown(module)}")
    name = _top(module.__name__)
    if name == "__main__":
        raise ConfigurationError("what the notebook itself defines travels with its closures")
    if not is_local(name):
        raise ConfigurationError(
            f"module {name!r} is not a file of yours: install it where the workers run"
        )
    path = Path(str(sys.modules[name].__file__))
    files = _package(path.parent) if path.name == "__init__.py" else {path.name: path.read_bytes()}
    size = sum(map(len, files.values()))
    if size > _MOST_BYTES:
        raise ConfigurationError(
            f"package {name!r} has {size} bytes in its folder {path.parent}; {_MOST_BYTES} are the "
            "limit: keep data elsewhere"
        )
    for each, data in files.items():
        if each.endswith(".py"):
            compile(data, str(path.parent / each), "exec", dont_inherit=True)
    return ModuleFiles(name, files)


class Uploads:
    """Which modules were sent to the workers, and in which state.

    Any thread: each operation on a field is atomic.

    Attributes
    ----------
    version : int
        Increases with each upload.
    """

    def __init__(self) -> None:
        self.version = 0
        self._digests: dict[str, str] = {}

    def note(self, files: ModuleFiles) -> None:
        """Note that a module was sent."""
        self._digests[files.name] = files.digest
        self.version += 1

    def is_current(self, name: str) -> bool:
        """Return whether the workers were sent a module as it is on this disk; reads its files."""
        top = _top(name)
        if top not in self._digests:
            return False
        try:
            return read_files(sys.modules[top]).digest == self._digests[top]
        except (OSError, KeyError, SyntaxError, ConfigurationError):  # gone, or being edited
            return False


def _top(name: str) -> str:
    return name.partition(".")[0]


def _package(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder.parent)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(
            part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts
        )
    }


# The Dask worker plugin that brings a local module to the workers, also to those that join later.
#
# Dask replaces a plugin by a later one of its name: `teardown` of the old one comes first.


class UploadedModule(WorkerPlugin):
    """A module's files in a folder of the worker, from which it is imported before all others.

    Modules that were imported before are forgotten, not changed: running closures keep them, and
    whatever is unpickled from now on gets the new ones.

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
        """Stop importing it from there."""
        if self._folder in sys.path:
            sys.path.remove(self._folder)
        self._forget()

    def _forget(self) -> None:
        name = self._files.name
        for each in [each for each in sys.modules if f"{each}.".startswith(f"{name}.")]:
            sys.modules.pop(each, None)
        importlib.invalidate_caches()
