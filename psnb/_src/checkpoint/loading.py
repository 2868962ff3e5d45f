"""Checkpoint: one that was checked to fit some parameters, and is loaded into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from psnb._src.checkpoint.manifest import differences
from psnb._src.checkpoint.restore import ModelPartsOf, RestoreChoice, Restored, no_models
from psnb._src.checkpoint.restored_files import RestoredFiles
from psnb._src.checkpoint.shards import CheckpointReader
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import listed, truncate
from psnb.errors import CheckpointError

if TYPE_CHECKING:
    from psnb._src.client.dense_shards import DenseShards
    from psnb._src.client.sparse_shards import SparseShards

_ALL = RestoreChoice()


class Checkpoint:
    """A checkpoint that was checked to fit some parameters.

    No manager removes it while this object exists.

    Parameters
    ----------
    path : Path or RemotePath
        Where it is.
    parameters : mapping of str to DenseShards or SparseShards
        All parameters that there are.
    choice : RestoreChoice
        Which of them to load.
    strict : bool
        Whether all chosen parameters must fit; otherwise only fitting ones are loaded.
    models : callable
        Returns the records of models; by default there are none.

    Attributes
    ----------
    path : Path or RemotePath
        Where it is.
    restored : Restored
        Which parameters `load` loads, and which do not fit.
    complete : bool
        Whether `load` loads all parameters that are needed later, each by its name.
    optimizers : mapping of str to mapping or None
        By the names of parameters now, their optimizers when it was saved, described.

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
        path: AnyPath,
        parameters: Mapping[str, DenseShards | SparseShards],
        choice: RestoreChoice = _ALL,
        *,
        strict: bool = True,
        models: ModelPartsOf = no_models,
    ) -> None:
        self.path = path
        self._reader = CheckpointReader(path)
        manifest = self._reader.manifest
        moved, scratch, saved_scratch = models(manifest.run.get("models"))
        saved = {new: manifest.entries[old] for new, old in choice.among(manifest.entries).items()}
        needed = {name: each for name, each in parameters.items() if name not in scratch}
        wanted = {name: each for name, each in needed.items() if choice.takes(name)}
        both = {name: (saved[name], each) for name, each in wanted.items() if name in saved}
        different: dict[str, str] = {}
        for name, (entry, parameter) in both.items():
            where = "" if entry.name == name else f" in {entry.name!r:.200}"
            found = [each + where for each in differences(parameter.describe(), entry.description)]
            if text := "; ".join(found) or moved(name, entry.name):
                different[name] = text
        self._parts = {name: part for name, part in both.items() if name not in different}
        self.optimizers = {name: entry.optimizer for name, (entry, _) in self._parts.items()}
        self.complete = self._parts.keys() == needed.keys() and all(
            entry.name == name for name, (entry, _) in self._parts.items()
        )
        self.restored = Restored(
            path,
            manifest.metadata,
            manifest.run,
            tuple(self._parts),
            {
                name: f"expected {_shown(each.describe())}"
                for name, each in wanted.items()
                if name not in saved
            },
            {
                entry.name: f"found {_shown(entry.description)}"
                for name, entry in saved.items()
                if name not in wanted
                if name not in scratch and entry.name not in saved_scratch
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
        self._files = RestoredFiles(self._reader, self._parts)
        self._files.check()

    def load(self, only: frozenset[int] | None = None) -> None:
        """Load all as `loading` does."""
        for _ in self.loading(only):
            pass

    def loading(self, only: frozenset[int] | None = None) -> Iterator[list[str]]:
        """Load the saved state into the parameters that were chosen.

        Yields which of them come next. Before the first, nothing is changed.

        Parameters
        ----------
        only : frozenset of int, optional
            The shards to load; all by default.

        Raises
        ------
        CheckpointError
            If a file cannot be read any more.
        ServerMemoryError
            If a server has no memory for it; nothing was changed.
        ServerLostError
            If a server is gone.

        An exception that comes when something is changed has a note that says which parameters were
        loaded.
        """
        loading = self._files.loading(only)
        done: list[str] = []
        group = next(loading, [])  # nothing is changed yet
        while group:
            yield group
            try:
                coming = next(loading, [])
            except BaseException as error:  # whatever ends it: the note says what is loaded
                left = [name for name in self._parts if name not in done and name not in group]
                error.add_note(
                    f"of {str(self.path)!r}, loaded: {listed(done)}; {listed(group)} may be in "
                    f"part; not loaded: {listed(left)}"
                )
                raise
            done += group
            group = coming


def _shown(description: Mapping[str, Any]) -> str:
    """Return what a parameter is, in a line."""
    return truncate(", ".join(f"{key} {value!r}" for key, value in description.items()))
