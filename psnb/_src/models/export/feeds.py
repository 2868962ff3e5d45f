"""The arrays that a model needs of a batch (ModelFeed) and returns (Fetch). Pure."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from psnb._src.data.ragged import Ragged
from psnb._src.utils.arrays import array_of, integers_of
from psnb._src.utils.mapped_arrays import DTYPES
from psnb._src.utils.sealed_json import one_of, require
from psnb.errors import ConfigurationError

WIDE = ("int64", "uint64")


_FEED_DTYPES = ("bool", *(each.name for each in DTYPES.values()))


_FeedDtype = Annotated[str, one_of(*_FEED_DTYPES)]


Size = Annotated[int, Meta(ge=0, le=1 << 48)]
"""No size is larger."""


Shape = Annotated[tuple[Size | None, ...], Meta(max_length=32)]


class ModelFeed(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the arrays that a model needs of a batch.

    Attributes
    ----------
    name : str
        By which a batch has it.
    dtype : str
        Of its numbers.
    shape : tuple of int or None
        None stands for a number that depends on the batch. Of `Ragged`, that of its values.
    holds : {"examples", "ragged", "any"}
        What its first axis is: the examples; those of `Ragged`; or something else, of any length.
    """

    name: str
    dtype: _FeedDtype
    shape: Shape
    holds: Annotated[str, one_of("examples", "ragged", "any")] = "examples"

    def __post_init__(self) -> None:
        require(not self.ragged or bool(self.shape), f"feed {self.name!r:.80} has no axis")

    @property
    def ragged(self) -> bool:
        """Whether it is `Ragged`."""
        return self.holds == "ragged"

    def taken(self, given: Any) -> np.ndarray | Ragged:
        """Return what a batch gives, in this form.

        Raises
        ------
        ConfigurationError
            If it has another shape, or numbers that this dtype does not hold.
        """
        if self.ragged:
            if not isinstance(given, Ragged):
                raise self._wrong("psnb.data.Ragged", type(given).__name__)
            values = self.cast(given.values)
            if values.shape[1:] != self.shape[1:]:
                raise self._wrong(f"values of shape {self._shown()}", str(values.shape))
            return given if values is given.values else Ragged(values, given.offsets)
        array = self.cast(self.array(given))
        if array.ndim != len(self.shape) or any(
            expected is not None and size != expected
            for size, expected in zip(array.shape, self.shape, strict=True)
        ):
            raise self._wrong(f"shape {self._shown()}", str(array.shape))
        return array

    def array(self, given: Any) -> np.ndarray:
        """Return what a batch gives as an array, whose integers are not rounded.

        Raises
        ------
        InvalidArrayError
            If integers are needed, and it has none.
        """
        whole = np.dtype(self.dtype).kind in "iu"
        return integers_of(given, f"feed {self.name!r}") if whole else array_of(given)

    def cast(self, array: np.ndarray) -> np.ndarray:
        """Return numbers in the dtype of this feed.

        Raises
        ------
        ConfigurationError
            If it does not hold them.
        """
        wanted = np.dtype(self.dtype)
        if array.dtype == wanted:
            return array
        kinds = array.dtype.kind + wanted.kind
        if kinds in ("ii", "uu", "iu", "ui"):
            if array.dtype.name in WIDE and wanted.name in WIDE:
                return array.view(wanted)  # as ids, these are the same bits
            limits = np.iinfo(wanted)
            if array.size and not np.can_cast(array.dtype, wanted, "safe"):
                low, high = int(array.min()), int(array.max())
                if low < limits.min or high > limits.max:
                    raise self._wrong(f"numbers that fit {wanted}", f"{low} to {high}")
        elif kinds[1] != "f" or kinds[0] not in "iufb":
            raise self._wrong(f"numbers of {wanted}", str(array.dtype))
        return array.astype(wanted)

    def _shown(self) -> str:
        sizes = ", ".join("batch" if size is None else str(size) for size in self.shape)
        return f"({sizes}{',' if len(self.shape) == 1 else ''})"

    def _wrong(self, expected: str, found: str) -> ConfigurationError:
        return ConfigurationError(f"feed {self.name!r}: expected {expected}, found {found}")


class Fetch(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the arrays that a model returns; None stands for a size that depends on the batch."""

    name: str
    dtype: Annotated[str, one_of(*_FEED_DTYPES, "bfloat16")]
    shape: Shape
