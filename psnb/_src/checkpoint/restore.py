"""Restoring a checkpoint: which parameters, from which names, and what did not fit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any

from psnb._src.checkpoint.manifest import differences
from psnb._src.checkpoint.shards import CheckpointReader
from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import NAME, shown, truncate
from psnb.errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from psnb._src.client.dense_shards import DenseShards
    from psnb._src.client.sparse_shards import SparseShards

MOST_LISTED = 10
"""Parameters of a kind that are listed one by one."""


@dataclass(frozen=True, eq=False, repr=False)
class Restored(Mapping[str, Any]):
    """What `CheckpointManager.restore` did: a mapping, which is the checkpoint's metadata.

    Attributes
    ----------
    path : pathlib.Path or RemotePath
        The checkpoint.
    metadata : mapping
        The metadata with which it was saved.
    run : mapping
        psnb's state of the run: ``"epochs"`` are the states of the epochs that were not over, in
        the order of their beginning, ``"closures"`` the number that had ended, ``"versions"`` those
        of psnb, Python and packages. See `psnb.resume`.
    restored : tuple of str
        The parameters that were restored.
    missing : mapping of str to str
        The parameters that the checkpoint lacks, and what each was expected to be.
    unexpected : mapping of str to str
        The parameters that only the checkpoint has, by their names there, and what each is.
    different : mapping of str to str
        The parameters that have another shape, dtype or optimizer state there: expected and found.
    """

    path: AnyPath
    metadata: Mapping[str, Any]
    run: Mapping[str, Any]
    restored: tuple[str, ...]
    missing: Mapping[str, str]
    unexpected: Mapping[str, str]
    different: Mapping[str, str]

    def __getitem__(self, key: str) -> Any:
        return self.metadata[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metadata)

    def __len__(self) -> int:
        return len(self.metadata)

    def __repr__(self) -> str:
        return "\n".join(
            [
                f"from {str(self.path)!r}",
                f"  restored: {listed(self.restored)}",
                *self.faults,
                f"  metadata: {truncate(repr(dict(self.metadata)))}",
            ]
        )

    @property
    def faults(self) -> list[str]:
        """A line for each parameter that does not fit; of many, for the first, and a count."""
        return [
            *_lines("missing in it", self.missing),
            *_lines("only in it", self.unexpected),
            *_lines("different", self.different),
        ]


def _lines(fault: str, texts: Mapping[str, str]) -> Iterator[str]:
    for name, text in islice(texts.items(), MOST_LISTED):
        yield f"  {fault}: {_quoted(name)}: {text}"
    if len(texts) > MOST_LISTED:
        yield f"  {fault}: {len(texts) - MOST_LISTED:,} more"


def listed(names: Sequence[str]) -> str:
    """Return names in a line; of many, the first ones and a count."""
    more = f" and {len(names) - MOST_LISTED:,} more" if len(names) > MOST_LISTED else ""
    return (", ".join(map(_quoted, names[:MOST_LISTED])) or "none") + more


def _quoted(name: str) -> str:
    return truncate(repr(name), NAME)


Rename = Mapping[str, str] | Callable[[str], str]
"""Gives a name in the checkpoint the name that the parameter has now."""


@dataclass(frozen=True)
class RestoreChoice:
    """Which parameters are restored; by default all, each by its name.

    Attributes
    ----------
    takes : callable
        Tells whether a parameter is restored, by the name that it has now.
    renamed : callable
        Returns the name that something in the checkpoint has now.
    """

    takes: Callable[[str], bool] = lambda name: True
    renamed: Callable[[str], str] = str  # the same

    def among(self, saved: Iterable[str]) -> dict[str, str]:
        """Return what is chosen of the names in a checkpoint, by the names that they have now.

        Raises
        ------
        ConfigurationError
            If two have the same name now, or one has none.
        """
        found: dict[str, str] = {}
        for old in saved:
            new = self.renamed(old)
            if not isinstance(new, str):
                raise ConfigurationError(
                    f"restore: rename must give names, found {shown(new)} for {old!r:.200}"
                )
            if not self.takes(new):
                continue
            if new in found:
                raise ConfigurationError(
                    f"restore: rename gives {found[new]!r:.200} and {old!r:.200} of the checkpoint "
                    f"the same name, {new!r:.200}; choose one with names="
                )
            found[new] = old
        return found


def restore_choice(
    names: str | Sequence[str] | None, rename: Rename | None, parameters: Collection[str]
) -> RestoreChoice:
    """Return what a user chose.

    Parameters
    ----------
    names, rename
        As for `CheckpointManager.restore`.
    parameters : collection of str
        The names of all parameters.

    Raises
    ------
    ConfigurationError
        If it is not a choice, or a pattern fits no parameter.
    """
    if isinstance(rename, Mapping):
        renamed = _by(rename)
    elif rename is None or callable(rename):
        renamed = rename or str
    else:
        raise ConfigurationError(
            "restore: rename must be a mapping from names in the checkpoint to names now, or a "
            f"function, found {shown(rename)}"
        )
    if names is None:
        return RestoreChoice(renamed=renamed)
    patterns = (names,) if isinstance(names, str) else tuple(names)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ConfigurationError(
                f"restore: names must be patterns like 'deep*', found {shown(pattern)}"
            )
        if not any(fnmatchcase(name, pattern) for name in parameters):
            raise ConfigurationError(
                f"restore: no parameter is called {pattern!r:.200}; there are "
                f"{listed(list(parameters))}"
            )
    return RestoreChoice(lambda name: any(fnmatchcase(name, each) for each in patterns), renamed)


def _by(rename: Mapping[str, str]) -> Callable[[str], str]:
    return lambda name: rename.get(name, name)


_ALL = RestoreChoice()


ModelParts = tuple[Callable[[str, str], str], Collection[str], Collection[str]]
"""The models that parameters are of, as `ModelRecords.compared` returns them."""

ModelPartsOf = Callable[[Any], ModelParts]
"""Takes the models that a checkpoint has."""


def no_models(saved: object) -> ModelParts:
    """Return that parameters are of no models."""
    return lambda now, before: "", (), ()


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
        for entry, parameter in self._parts.values():
            self._reader.check(entry, parameter.check_state)

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
                parameter.load_states(list(self._reader.states(entry)), only)
            except BaseException as error:  # whatever ends it: the note says what is loaded
                error.add_note(
                    f"of {str(self.path)!r}, loaded: {listed(names[:done])}; {name!r} may be in "
                    f"part; not loaded: {listed(names[done + 1 :])}"
                )
                raise


def _shown(description: Mapping[str, Any]) -> str:
    """Return what a parameter is, in a line."""
    return truncate(", ".join(f"{key} {value!r}" for key, value in description.items()))
