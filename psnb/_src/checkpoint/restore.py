"""Restoring a checkpoint: which parameters, from which names, and what did not fit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from psnb._src.utils.paths import AnyPath
from psnb._src.utils.text import MOST_LISTED, listed, quoted, shown, truncate
from psnb.errors import ConfigurationError


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
        yield f"  {fault}: {quoted(name)}: {text}"
    if len(texts) > MOST_LISTED:
        yield f"  {fault}: {len(texts) - MOST_LISTED:,} more"


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


ModelParts = tuple[Callable[[str, str], str], Collection[str], Collection[str]]
"""The models that parameters are of, as `ModelRecords.compared` returns them."""

ModelPartsOf = Callable[[Any], ModelParts]
"""Takes the models that a checkpoint has."""


def no_models(saved: object) -> ModelParts:
    """Return that parameters are of no models."""
    return lambda now, before: "", (), ()
