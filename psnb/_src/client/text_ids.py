"""Text ids: a 64-bit id for each text, the same on every machine. Pure."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
from xxhash import xxh64_intdigest

from psnb._src.utils.arrays import untracked
from psnb._src.utils.checks import integer
from psnb._src.utils.text import ARGUMENT, shown, truncate
from psnb.errors import InvalidArrayError


def hash_ids(texts: Any, seed: int = 0) -> np.ndarray:
    """Return an id for each text, so that texts need no vocabulary.

    An id is XXH64 of the text's UTF-8 bytes: it depends on neither the machine, the process, nor
    the form in which the texts come. Of ``n`` different texts, about ``n**2 / 2**65`` pairs share
    an id: 3 in a million for 10 million texts.

    Parameters
    ----------
    texts : array_like of str or bytes
        A list, an array of numpy (strings, bytes or objects), Arrow or polars, or a column of
        pandas, of any shape. Of categories each is hashed once.
    seed : int
        From 0 to ``2**64 - 1``. Another seed gives other ids: columns that share one table take
        one each, if equal texts are to have rows of their own; so do the hashes of an embedding
        with several.

    Returns
    -------
    numpy.ndarray
        uint64, with the shape of the texts.

    Raises
    ------
    InvalidArrayError
        If a text is missing, or is not one.
    ConfigurationError
        If the seed is not such an integer.

    Notes
    -----
    Thread-safe. XXH64 is specified by Y. Collet, "xxHash fast digest algorithm".

    Examples
    --------
    >>> import psnb
    >>> psnb.hash_ids(["DE", "FR", "DE"])
    array([16121337706626847239,  3077101241662407109, 16121337706626847239],
          dtype=uint64)
    """
    seed = integer("seed", seed, 0, 2**64 - 1)
    categories = getattr(getattr(texts, "dtype", None), "categories", None)
    codes = getattr(getattr(texts, "cat", texts), "codes", None)  # pandas alone has both
    if categories is None or codes is None:
        return _hashed(_objects(texts), seed)
    codes = np.asarray(codes)
    if (codes < 0).any():
        raise _missing(int((codes < 0).argmax()))
    return _hashed(_objects(categories), seed)[codes]


def _objects(texts: Any) -> np.ndarray:
    if np.ma.is_masked(texts):
        raise _missing(int(np.ma.getmaskarray(texts).argmax()))
    # NumPy's own strings would cut zeros at the end of texts, and take the memory of the longest
    # one for each.
    try:
        return np.asarray(untracked(texts), object)
    except (TypeError, ValueError) as error:
        raise InvalidArrayError(f"texts: not an array: {truncate(str(error), ARGUMENT)}") from error


def _hashed(texts: np.ndarray, seed: int) -> np.ndarray:
    values = texts.reshape(-1).tolist()
    found = set(map(type, values))
    # By type: XXH64 would take the bytes of numbers and arrays, too.
    if not all(issubclass(each, (str, bytes)) for each in found):
        raise _refused(values)
    try:
        encoded = map(str.encode if found == {str} else _encoded, values)
        ids = np.fromiter(map(xxh64_intdigest, encoded, repeat(seed)), np.uint64, len(values))
    except UnicodeEncodeError as error:
        raise InvalidArrayError(
            f"texts: {shown(error.object)} has no UTF-8 bytes: it has half of a surrogate pair"
        ) from error
    return ids.reshape(texts.shape)


def _encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _refused(values: list[Any]) -> InvalidArrayError:
    at = next(i for i, each in enumerate(values) if not isinstance(each, (str, bytes)))
    value = values[at]
    # NaN is not equal to itself; pandas' NA has no truth.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return _missing(at)
    if isinstance(value, float) and value != value:
        return _missing(at)
    advice = ""
    if isinstance(value, (int, np.integer)):
        advice = ": integers are ids as they are"
    elif isinstance(value, (list, tuple, np.ndarray)):
        advice = ": of bags hash the values of all, one after another"
    return InvalidArrayError(
        f"texts: expected str or bytes, found {shown(value)} at position {at}{advice}"
    )


def _missing(at: int) -> InvalidArrayError:
    return InvalidArrayError(
        f"texts: the one at position {at} is missing: fill it where the column is read, with '' or "
        "a text of its own"
    )
