"""RestoreChoice: which parameters are restored, and from which names in a checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from psnb._src.checkpoint.restored import listed
from psnb._src.excerpt import shown
from psnb.errors import ConfigurationError

Rename = Mapping[str, str] | Callable[[str], str]
"""Gives a name in the checkpoint the name that the parameter has now."""


def _always(_: str) -> bool:
    """Take all."""
    return True


def _same(name: str) -> str:
    """Rename nothing."""
    return name


@dataclass(frozen=True)
class RestoreChoice:
    """Which parameters are restored; all by default, from what has their name.

    Attributes
    ----------
    takes : callable
        Tells whether a parameter is restored, by the name that it has now.
    renamed : callable
        Returns the name that something in the checkpoint has now.
    """

    takes: Callable[[str], bool] = _always
    renamed: Callable[[str], str] = _same

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
        If it is no choice, or a pattern fits no parameter.
    """
    if isinstance(rename, Mapping):
        renamed = _by(rename)
    elif rename is None or callable(rename):
        renamed = rename or _same
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
