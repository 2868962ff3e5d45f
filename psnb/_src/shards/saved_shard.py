"""SavedShard: a shard of a parameter in a file, and the checks before it is loaded or read. Pure.

Most checks need the forms of arrays only, so large arrays of a file need not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from psnb._src.shards.array_checks import Form
from psnb._src.shards.division import row_ranges, shard_of_ids
from psnb._src.shards.expecting import Expected, ExpectedRows
from psnb.errors import GradientError

_NO_IDS = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class SavedShard:
    """A shard of a parameter, as it was saved.

    Attributes
    ----------
    number, shards : int
        Its number, and how many shards there are.
    forms : mapping of str to Form
        The arrays that it has.
    read : callable
        Returns one of these arrays, by its name. The checks ask for the first one when all forms
        have turned out to be right.
    part : bool
        Whether it is only some rows of the shard.
    """

    number: int
    shards: int
    forms: Mapping[str, Form]
    read: Callable[[str], np.ndarray]
    part: bool = False


def check_saved_slice(expected: Expected, shape: tuple[int, ...], saved: SavedShard) -> None:
    """Raise ConfigurationError unless this is a shard of a variable of this shape."""
    if saved.part:
        raise GradientError(f"{expected.name!r} must be in one file a shard")
    expected.check_names(saved.forms)
    if saved.shards > max((1, *shape[:1])):
        raise GradientError(f"{expected.name!r} cannot be in {saved.shards} shards")
    if saved.shards > 1:
        start, stop = row_ranges(shape[0], saved.shards)[saved.number]
        shape = (stop - start, *shape[1:])
    expected.check_numbers(saved.forms, shape)
    expected.check_tail_forms(saved.forms)
    expected.check_tail(saved.forms, {"step": saved.read("step")})


def check_saved_rows(expected: ExpectedRows, saved: SavedShard) -> None:
    """Raise ConfigurationError unless this is a shard of a table.

    Each id must be in the shard that it is assigned to. So no id is in two shards, and each shard
    can be checked alone.
    """
    expected.check_names(saved.forms)
    count = expected.check_row_forms(saved.forms)
    expected.check_tail_forms(saved.forms)
    if expected.fixed is not None and not saved.part:
        rows = len(range(saved.number, expected.fixed[0], saved.shards))
        if count != rows:
            raise GradientError(f"expected {rows} rows, found {count}")
    arrays = {name: saved.read(name) for name in expected.read}
    expected.check_state(saved.forms, arrays)
    if expected.fixed is not None:
        return
    for name in ("ids", "waiting.ids"):
        ids = arrays.get(name, _NO_IDS)
        foreign = shard_of_ids(ids, saved.shards, growing=True) != saved.number
        if foreign.any():
            raise GradientError(
                f"{name} of {expected.name!r}: {ids[foreign][0]} is none of shard {saved.number} "
                f"of {saved.shards}"
            )
