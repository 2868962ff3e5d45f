"""Restored: what came of a checkpoint, and what did not fit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from psnb._src.excerpt import NAME, excerpt
from psnb._src.remote_path import Place

_MOST = 10
"""Parameters of a kind that are told one by one."""


@dataclass(frozen=True, eq=False, repr=False)
class Restored(Mapping[str, Any]):
    """What `CheckpointManager.restore` did: a mapping, which is the checkpoint's metadata.

    Attributes
    ----------
    path : pathlib.Path or RemotePath
        The checkpoint.
    metadata : mapping
        What it was saved with.
    run : mapping
        What psnb saved of the run: ``"epochs"`` are the states of the epochs that were not over, in
        the order of their beginning, ``"closures"`` how many had ended, ``"versions"`` those of
        psnb, Python and packages. See `psnb.resume`.
    restored : tuple of str
        The parameters that were restored.
    missing : mapping of str to str
        The parameters that the checkpoint lacks, and what each was expected to be.
    unexpected : mapping of str to str
        What only the checkpoint has, by its names there, and what each is.
    different : mapping of str to str
        The parameters that have another shape, dtype or optimizer state there: expected and found.
    """

    path: Place
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
                f"  metadata: {excerpt(repr(dict(self.metadata)))}",
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


def listed(names: Sequence[str]) -> str:
    """Return names in a line; of many, the first ones and a count."""
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return (", ".join(map(_quoted, names[:_MOST])) or "none") + more


def _lines(fault: str, told: Mapping[str, str]) -> Iterator[str]:
    for name, text in islice(told.items(), _MOST):
        yield f"  {fault}: {_quoted(name)}: {text}"
    if len(told) > _MOST:
        yield f"  {fault}: {len(told) - _MOST:,} more"


def _quoted(name: str) -> str:
    return excerpt(repr(name), NAME)
