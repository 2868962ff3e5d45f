"""Keys of slices and groups: a rank of 64 bits for each example, the same on every machine. Pure.

The rank of an integer is a mix of its bits, which no other integer has (SplitMix64: Steele, Lea,
Flood, *Fast Splittable Pseudorandom Number Generators*, OOPSLA 2014); that of a text is XXH64 of
its UTF-8 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xxhash import xxh64_intdigest

from psnb._src.utils.arrays import integers_of, untracked
from psnb._src.utils.text import ARGUMENT, shown, truncate
from psnb.errors import ConfigurationError

LONGEST = 200
"""Bytes of a text that names a slice."""

_FEW = "of numbers make few, as np.digitize(column, edges) does; ids are read as integers"

Key = int | bool | str

_BOOL = np.uint64(0xB001_C0DE_5A1D_7E57)
"""True and 1 are two keys: so bools have the ranks of two integers that nothing else has."""


class KeyColumn:
    """One key for each example.

    Parameters
    ----------
    what : str
        What the column is, for errors.
    values : array_like
        Integers, bools or texts, of shape ``(examples,)``: a list, an array of numpy, Arrow or
        polars, a tensor, or a column of pandas, also of categories.
    size : int
        How many examples there are.

    Attributes
    ----------
    ranks : numpy.ndarray
        uint64, one for each example.

    Raises
    ------
    ConfigurationError
        If one is missing, they are of other or of several types, or not one for each example.
    """

    def __init__(self, what: str, values: Any, size: int) -> None:
        self._what = what
        self._texts: np.ndarray | None = None  # as bytes
        categories = getattr(getattr(values, "dtype", None), "categories", None)
        codes = getattr(getattr(values, "cat", values), "codes", None)  # pandas alone has both
        if categories is None or codes is None:
            self._values, self._codes = self._array(values), None
            shape = self._values.shape
        else:
            self._values, self._codes = self._array(categories), np.asarray(codes)
            shape = self._codes.shape
            if (self._codes < 0).any():
                raise self._missing(int((self._codes < 0).argmax()))
        if shape != (size,):
            raise ConfigurationError(
                f"{what} must have the shape ({size},), one key for each example; found {shape}"
            )
        ranks = self._ranks()
        self.ranks = ranks if self._codes is None else ranks[self._codes]

    def key(self, example: int) -> Key:
        """Return an example's key."""
        place = example if self._codes is None else self._codes[example]
        key = self._values[place]
        if isinstance(key, bytes):
            try:
                return key.decode()
            except UnicodeDecodeError as error:
                raise ConfigurationError(
                    f"{self._what}: {shown(key)} at position {example} is not UTF-8"
                ) from error
        found: Key = key.item() if isinstance(key, np.generic) else key
        return found

    def require_distinct(self, places: np.ndarray, first: np.ndarray, numbers: np.ndarray) -> None:
        """Raise if two texts have one rank.

        Parameters
        ----------
        places, first, numbers : numpy.ndarray
            Of some examples: which they are; the first of each rank among them; and the number of
            each one's rank.
        """
        if self._texts is None:
            return
        texts = self._texts if self._codes is None else self._texts[self._codes]
        one, other = texts[places], texts[places[first]][numbers]
        if (one != other).any():
            at = int(np.flatnonzero(one != other)[0])
            raise ConfigurationError(
                f"{self._what}: {shown(one[at])} and {shown(other[at])} have the same hash of 64 "
                "bits: rename one of them"
            )

    def _array(self, values: Any) -> np.ndarray:
        """Return integers, bools, or objects that are texts."""
        if np.ma.is_masked(values):
            raise self._missing(int(np.ma.getmaskarray(values).argmax()))
        try:
            plain = untracked(values)
            array = np.asarray(plain) if hasattr(plain, "dtype") else np.asarray(plain, object)
            if array.dtype.kind in "biu":
                return array
            if array.dtype.kind == "f" and np.isnan(array).any():
                raise self._missing(int(np.isnan(array).argmax()))
            if array.dtype.kind in "fcmM":
                raise ConfigurationError(
                    f"{self._what} must be integers, bools or texts, found {array.dtype}: {_FEW}"
                )
            # NumPy's own texts would cut zeros at their ends.
            return self._of_objects(np.asarray(plain, object))
        except ConfigurationError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(
                f"{self._what} is not an array: {truncate(str(error), ARGUMENT)}"
            ) from error

    def _of_objects(self, array: np.ndarray) -> np.ndarray:
        listed = array.reshape(-1).tolist()
        kinds = set(map(type, listed))
        if all(issubclass(each, (str, bytes)) for each in kinds):
            return array
        if all(issubclass(each, (bool, np.bool_)) for each in kinds):
            return array.astype(bool)
        if all(issubclass(each, (int, np.integer)) and each is not bool for each in kinds):
            return integers_of(array, self._what)
        for at, each in enumerate(listed):
            nothing = each is None or type(each).__name__ in ("NAType", "NaTType")
            if nothing or (isinstance(each, float) and each != each):  # NaN
                raise self._missing(at)
        names = sorted(each.__name__ for each in kinds)
        raise ConfigurationError(
            f"{self._what} must be integers, bools or texts, all of one type; found "
            f"{truncate(', '.join(names), ARGUMENT)}{f': {_FEW}' * (float in kinds)}"
        )

    def _ranks(self) -> np.ndarray:
        if self._values.dtype.kind != "O":
            bits = self._values.astype(np.uint64)  # of what is below 0, the same bits
            return mixed(bits if self._values.dtype != bool else bits ^ _BOOL)
        try:
            texts = [
                e.encode() if isinstance(e, str) else e for e in self._values.reshape(-1).tolist()
            ]
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"{self._what}: {shown(error.object)} has no UTF-8 bytes: it has half of a "
                "surrogate pair"
            ) from error
        self._texts = np.array(texts, object)
        return np.fromiter(map(xxh64_intdigest, texts), np.uint64, len(texts))

    def _missing(self, at: int) -> ConfigurationError:
        return ConfigurationError(
            f"{self._what}: the key at position {at} is missing: fill it, for example with a text "
            "of its own"
        )


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Return well-mixed uint64 for uint64: another one for each."""
    found = numbers + np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


def key_to_bytes(what: str, key: Key) -> bytes:
    """Return a key as bytes that end with a letter for its type: NumPy cuts zeros at an end.

    Raises
    ------
    ConfigurationError
        If it is a text that is too long to name a slice.
    """
    if isinstance(key, bool):
        return b"1b" if key else b"0b"
    if isinstance(key, int):
        return b"%di" % key
    text = key.encode()
    if len(text) > LONGEST:
        raise ConfigurationError(
            f"{what}: {shown(key)} has {len(text)} bytes, and {LONGEST} at most name a slice: "
            "shorten it, or take psnb.hash_ids of the column"
        )
    return text + b"s"


def key_of_bytes(data: bytes) -> Key:
    """Return the key; raises ValueError if it is none."""
    text, kind = data[:-1], data[-1:]
    if kind == b"b" and text in (b"0", b"1"):
        return text == b"1"
    if kind == b"i":
        return int(text)
    if kind == b"s":
        return text.decode()
    raise ValueError(f"{data!r:.80} is no key of a slice")
