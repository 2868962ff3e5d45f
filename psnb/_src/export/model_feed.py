"""ModelFeed: one of the arrays that a model needs of a batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from psnb._src.data import Ragged
from psnb._src.exact_integers import array_of
from psnb.errors import ConfigurationError

_WIDE = ("int64", "uint64")


class ModelFeed(NamedTuple):
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
    dtype: str
    shape: tuple[int | None, ...]
    holds: str = "examples"

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
        array = self.cast(array_of(given))
        if array.ndim != len(self.shape) or any(
            expected is not None and size != expected
            for size, expected in zip(array.shape, self.shape, strict=True)
        ):
            raise self._wrong(f"shape {self._shown()}", str(array.shape))
        return array

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
            if array.dtype.name in _WIDE and wanted.name in _WIDE:
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
