"""Checkpoint: a saved checkpoint that is ready to be loaded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from psnb._src.checkpoint.check_files import Loads, check_files
from psnb._src.checkpoint.folder_of import use
from psnb._src.checkpoint.manifest import ManifestEntry
from psnb._src.checkpoint.restore_choice import RestoreChoice
from psnb._src.checkpoint.restored import Restored, listed
from psnb._src.checkpoint.shard_files import read_states
from psnb._src.excerpt import excerpt
from psnb._src.remote_path import Place
from psnb.errors import CheckpointError


class Parameter(Loads, Protocol):
    """A parameter that is saved and loaded."""

    def describe(self) -> Mapping[str, Any]:
        """Return the description that must be equal to load it."""

    def load_states(
        self, states: Sequence[dict[str, np.ndarray]], only: frozenset[int] | None = None
    ) -> None:
        """Load the states of shards, on all shards or only on some."""


_ALL = RestoreChoice()

Moved = Callable[[Mapping[str, Any]], Callable[[str, str], str]]
"""Takes what psnb saved of a run. Returns what takes the name of a parameter, and that of one in
the checkpoint, and returns what lies elsewhere in it; empty if nothing does."""


def stays(run: Mapping[str, Any]) -> Callable[[str, str], str]:
    """Tell that nothing lies elsewhere."""
    return lambda now, before: ""


class Checkpoint:
    """A checkpoint that was checked to fit some parameters.

    No manager removes it while this object exists.

    Parameters
    ----------
    path : Path or RemotePath
        Where it is.
    parameters : mapping of str to Parameter
        All parameters that there are.
    choice : RestoreChoice
        Which of them to load.
    strict : bool
        Whether all that is chosen must fit; otherwise only what fits is loaded.
    moved : callable
        Tells what lies elsewhere in a parameter than it did; by default nothing.

    Attributes
    ----------
    path : Path or RemotePath
        Where it is.
    restored : Restored
        What `load` loads, and what does not fit.
    complete : bool
        Whether `load` loads all parameters, each from what has its name.

    Raises
    ------
    CheckpointError
        If it is missing or damaged; or if it is to fit, and lacks a parameter, has one more, or has
        another shape, dtype or optimizer state for one.
    ConfigurationError
        If the choice renames two to one.
    """

    def __init__(
        self,
        path: Place,
        parameters: Mapping[str, Parameter],
        choice: RestoreChoice = _ALL,
        *,
        strict: bool = True,
        moved: Moved = stays,
    ) -> None:
        self.path = path
        self._stored = use(path)
        weakref.finalize(self, self._stored.release)
        manifest = self._stored.manifest()
        saved = {new: manifest.entries[old] for new, old in choice.among(manifest.entries).items()}
        wanted = {name: each for name, each in parameters.items() if choice.takes(name)}
        both = {name: (saved[name], each) for name, each in wanted.items() if name in saved}
        tell = moved(manifest.run)
        different = {
            name: "; ".join(differences)
            for name, (entry, parameter) in both.items()
            if (
                differences := list(_differences(name, entry, parameter.describe()))
                or [*filter(None, [tell(name, entry.name)])]
            )
        }
        self._parts = {name: part for name, part in both.items() if name not in different}
        self.complete = self._parts.keys() == parameters.keys() and all(
            entry.name == name for name, (entry, _) in self._parts.items()
        )
        self.restored = Restored(
            path,
            manifest.metadata,
            manifest.run,
            tuple(self._parts),
            {
                name: f"expected {_told(each.describe())}"
                for name, each in wanted.items()
                if name not in saved
            },
            {
                entry.name: f"found {_told(entry.description)}"
                for name, entry in saved.items()
                if name not in wanted
            },
            different,
        )
        if strict and (faults := self.restored.faults):
            raise CheckpointError(
                "\n".join(
                    [
                        f"checkpoint {str(path)!r} does not fit the parameters:",
                        *faults,
                        "nothing was changed; CheckpointManager.restore(strict=False) restores "
                        "what fits, names= what you choose, rename= what has another name now",
                    ]
                )
            )
        for entry, parameter in self._parts.values():
            check_files(self._stored, entry, parameter)

    def load(self, only: frozenset[int] | None = None) -> None:
        """Load the saved state into the parameters that were chosen.

        Parameters
        ----------
        only : frozenset of int, optional
            The shards to load; all by default.

        Raises
        ------
        CheckpointError
            If a file cannot be read any more.
        ServerLostError
            If a server is gone.

        Any exception has a note that says which parameters were loaded.
        """
        names = list(self._parts)
        for done, (name, (entry, parameter)) in enumerate(self._parts.items()):
            try:
                parameter.load_states(list(read_states(self._stored, entry)), only)
            except BaseException as error:
                error.add_note(
                    f"of {str(self.path)!r}, loaded: {listed(names[:done])}; {name!r} may be in "
                    f"part; not loaded: {listed(names[done + 1 :])}"
                )
                raise


def _differences(name: str, entry: ManifestEntry, expected: Mapping[str, Any]) -> Iterator[str]:
    for key, value in expected.items():
        if (found := entry.description.get(key)) != value:
            yield f"expected {key} {value!r:.80}, found {found!r:.80}" + (
                "" if entry.name == name else f" in {entry.name!r:.200}"
            )


def _told(description: Mapping[str, Any]) -> str:
    """Return what a parameter is, in a line."""
    return excerpt(", ".join(f"{key} {value!r}" for key, value in description.items()))
