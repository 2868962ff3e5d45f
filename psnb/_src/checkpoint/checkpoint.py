"""Checkpoint: a saved checkpoint that is ready to be loaded."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from psnb._src.checkpoint.check_files import Loads, check_files
from psnb._src.checkpoint.checkpoint_folder import keep
from psnb._src.checkpoint.manifest import read_manifest
from psnb._src.checkpoint.shard_files import read_states
from psnb.errors import CheckpointError


class Parameter(Loads, Protocol):
    """A parameter that is saved and loaded."""

    def describe(self) -> Mapping[str, Any]:
        """Return the description that must be equal to load it."""

    def load_states(
        self, states: Sequence[dict[str, np.ndarray]], only: frozenset[int] | None = None
    ) -> None:
        """Load the states of shards, on all shards or only on some."""


class Checkpoint:
    """A checkpoint that was checked to fit some parameters.

    No manager removes it while this object exists.

    Parameters
    ----------
    path : pathlib.Path
        Where it is.
    parameters : mapping of str to Parameter
        The parameters to load. Parameters that only the checkpoint has are left out.

    Attributes
    ----------
    path : pathlib.Path
        Where it is.
    metadata : mapping
        The metadata that it was saved with.

    Raises
    ------
    CheckpointError
        If it is missing or damaged, lacks a parameter, or has another shape, dtype or optimizer
        state for one.
    """

    def __init__(self, path: Path, parameters: Mapping[str, Parameter]) -> None:
        self.path, self._parameters = path, parameters
        weakref.finalize(self, keep(path).release)
        self._manifest = read_manifest(path)
        self.metadata = self._manifest.metadata
        for name, parameter in parameters.items():
            entry = self._manifest.entries.get(name)
            if entry is None:
                raise CheckpointError(
                    f"checkpoint {str(path)!r} lacks {name!r}; "
                    f"it has {', '.join(map(repr, self._manifest.entries)) or 'nothing'}"
                )
            for key, value in parameter.describe().items():
                if entry.description.get(key) != value:
                    raise CheckpointError(
                        f"checkpoint {str(path)!r}, parameter {name!r}: expected {key} {value!r}, "
                        f"found {entry.description.get(key)!r}"
                    )
            check_files(path, entry, parameter)

    def load(self, only: frozenset[int] | None = None) -> None:
        """Load the saved state into all parameters.

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
        names = list(self._parameters)
        for done, (name, parameter) in enumerate(self._parameters.items()):
            try:
                states = list(read_states(self.path, self._manifest.entries[name]))
                parameter.load_states(states, only)
            except BaseException as error:
                error.add_note(
                    f"of {str(self.path)!r}, loaded: {_listed(names[:done])}; {name!r} may be in "
                    f"part; not loaded: {_listed(names[done + 1 :])}"
                )
                raise


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
