"""``tf.train.Example`` messages to columns and back, without TensorFlow or protobuf.

A whole chunk of messages is parsed together: one pass finds where each feature's list is in each
message, then each feature's lists are read into its column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from psnb._src.data.formats import protobuf as kernels
from psnb._src.data.formats.protobuf import BYTES, FLOATS, INTEGERS, MALFORMED
from psnb._src.data.formats.records import byte_strings
from psnb._src.data.formats.words import WORD
from psnb._src.data.nesting import as_array, is_text
from psnb._src.data.ragged import Ragged, offsets_of
from psnb._src.utils.arrays import bits_of, integers_of
from psnb._src.utils.ownership import read_only
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, DatasetError

_DTYPES = {BYTES: np.dtype(object), FLOATS: np.dtype(np.float32), INTEGERS: np.dtype(np.int64)}

NAMES = {0: "nothing", BYTES: "bytes", FLOATS: "float32", INTEGERS: "int64"}
"""The kinds of lists, for people."""


def _kind_of(dtype: Any) -> int:
    try:
        if dtype in (bytes, "bytes"):
            return BYTES
        kinds = [kind for kind in (FLOATS, INTEGERS) if np.dtype(dtype) == _DTYPES[kind]]
    except (TypeError, ValueError):  # of an array, for example
        kinds = []
    if not kinds:
        raise ConfigurationError(
            f"a feature's dtype is {shown(dtype)}: an Example holds int64, float32 or bytes"
        )
    return kinds[0]


@dataclass(frozen=True)
class FixedLen:
    """A feature with the same number of values in each example.

    Its column is an array of shape ``(examples, *shape)``, of int64, float32 or bytes objects.

    Parameters
    ----------
    shape : tuple of int, or int
        The shape of one example's values.
    dtype : dtype
        int64, float32 or bytes.
    default : array-like, optional
        The values of an example without the feature, which is an error by default. Broadcasts to
        the shape.

    Raises
    ------
    ConfigurationError
        If the dtype, the shape or the default is not possible.
    """

    shape: tuple[int, ...]
    dtype: Any
    default: Any = None

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        object.__setattr__(self, "shape", shape)
        if any(not isinstance(size, (int, np.integer)) or size < 0 for size in shape):
            raise ConfigurationError(f"a feature's shape is {shape}: not sizes of at least 0")
        if _kind_of(self.dtype) and self.default is not None:
            try:
                self.rows(1)
            except (TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"a feature's default is {shown(self.default)}: not {self.dtype} of "
                    f"shape {shape}"
                ) from error

    @cached_property
    def kind(self) -> int:
        """The kind of list that holds it."""
        return _kind_of(self.dtype)

    @cached_property
    def size(self) -> int:
        """The number of values of an example."""
        return prod(self.shape)

    def rows(self, count: int) -> np.ndarray:
        """Return the column of examples without the feature."""
        column = np.empty((count, *self.shape), _DTYPES[self.kind])
        if self.default is not None:
            column[...] = np.asarray(self.default, column.dtype)
        return column


@dataclass(frozen=True)
class VarLen:
    """A feature with any number of values in an example, none where it is missing.

    Its column is a `Ragged` of int64, float32 or bytes objects.

    Parameters
    ----------
    dtype : dtype
        int64, float32 or bytes.

    Raises
    ------
    ConfigurationError
        If the dtype is not possible.
    """

    dtype: Any

    def __post_init__(self) -> None:
        _kind_of(self.dtype)

    @cached_property
    def kind(self) -> int:
        """The kind of list that holds it."""
        return _kind_of(self.dtype)


Feature = FixedLen | VarLen


def check_features(features: Mapping[str, Feature]) -> None:
    """Raise `ConfigurationError` if these are not features."""
    if not features:
        raise ConfigurationError("features is empty: name at least one")
    for name, feature in features.items():
        if not isinstance(name, str) or not isinstance(feature, (FixedLen, VarLen)):
            raise ConfigurationError(
                f"features has {name!r}: {feature!r}; give names with FixedLen or VarLen"
            )


Columns = dict[str, np.ndarray | Ragged]


def parse_parts(
    data: np.ndarray, starts: np.ndarray, ends: np.ndarray, features: Mapping[str, Feature]
) -> tuple[Columns, int, DatasetError | None]:
    """Parse the messages in parts of a buffer, up to the first bad one.

    Returns the columns of those before it, their number, and what is wrong with it; None if all
    are well.
    """
    layout = ColumnLayout(features)
    count = len(starts)
    # As read-only arrays in any case, so that numba compiles for one kind of arguments.
    data, starts, ends = (read_only(array) for array in (data, starts, ends))
    outputs = _outputs(*(count * layout.widths[kind] for kind in (INTEGERS, FLOATS, BYTES)))
    missing = np.zeros((layout.optionals, count), np.uint8)
    spots = np.empty((layout.varying, count, 2), np.int64)
    places = layout.places.copy()
    fixed = layout.sizes >= 0
    places[fixed] *= count
    good, bad, found = kernels.parse_messages(
        *(data, starts, ends, layout.names, layout.offsets, layout.kinds, layout.sizes, places),
        *(layout.optional, outputs, missing, spots),
    )
    problem = _problem(features, bad, found) if good < count else None
    columns: Columns = {}
    for i, (name, feature) in enumerate(features.items()):
        if isinstance(feature, VarLen):
            columns[name], fine = _varying(data, spots[places[i], :good], feature.kind)
            if fine < good:
                good, problem = fine, _problem(features, i, MALFORMED)
        else:
            place, row = int(places[i]), layout.optional[i]
            values = _values(data, outputs, feature.kind, place, place + good * feature.size)
            columns[name] = column = values.reshape(good, *feature.shape)
            if row >= 0 and (absent := missing[row, :good].view(bool)).any():
                column[absent] = feature.rows(int(absent.sum()))
    if problem is not None:
        columns = {name: column[:good] for name, column in columns.items()}
    return columns, good, problem


class ColumnLayout:
    """Features as arrays, as the kernels want them.

    ``widths`` says how many values one message has in the output of each kind, ``places`` where
    among them a feature's are; the rest is as in `parse_messages`.
    """

    def __init__(self, features: Mapping[str, Feature]):
        names = [name.encode() for name in features]
        self.names = np.frombuffer(b"".join(names) + bytes(WORD), np.uint8)
        self.offsets = offsets_of([len(name) for name in names])
        self.kinds, self.sizes, self.places, self.optional = np.empty((4, len(names)), np.int64)
        self.widths = {INTEGERS: 0, FLOATS: 0, BYTES: 0}
        self.varying = self.optionals = 0
        for i, feature in enumerate(features.values()):
            self.kinds[i], self.sizes[i], self.optional[i] = feature.kind, -1, -1
            if isinstance(feature, VarLen):
                self.places[i] = self.varying
                self.varying += 1
                continue
            self.sizes[i], self.places[i] = feature.size, self.widths[feature.kind]
            self.widths[feature.kind] += feature.size
            if feature.default is not None:
                self.optional[i] = self.optionals
                self.optionals += 1


Outputs = tuple[np.ndarray, np.ndarray, np.ndarray]


def _outputs(integers: int, floats: int, strings: int) -> Outputs:
    return (
        np.empty(integers, np.int64),
        np.empty(floats, np.uint32),
        # Zeros, as nothing is written for a string that is missing.
        np.zeros((strings, 2), np.int64),
    )


def _values(data: np.ndarray, outputs: Outputs, kind: int, begin: int, end: int) -> np.ndarray:
    """Return some values of one of the outputs as what they are."""
    numbers, bits, spans = outputs
    if kind == INTEGERS:
        return numbers[begin:end]
    if kind == FLOATS:
        return bits[begin:end].view(np.float32)
    return byte_strings(data, *spans[begin:end].T)


def _problem(features: Mapping[str, Feature], bad: int, found: int) -> DatasetError:
    if bad < 0:
        return DatasetError("this is not a tf.train.Example")
    name, feature = list(features.items())[bad]
    if found == MALFORMED:
        wrong = "is malformed"
    elif found == kernels.MISSING:
        wrong = "is missing, and has no default"
    elif found < 0:
        wrong = f"holds {NAMES[kernels.OTHER_KIND - found]}, not {NAMES[feature.kind]}"
    else:
        assert isinstance(feature, FixedLen)
        wrong = f"has {found} values, not {feature.size}"
    return DatasetError(f"feature {name!r} {wrong}")


_LEAST = {BYTES: 2, FLOATS: 4, INTEGERS: 1}
"""How many bytes a value takes at least."""


def _varying(data: np.ndarray, spots: np.ndarray, kind: int) -> tuple[Ragged, int]:
    """Return the column of a feature of any size, and how many of its rows are in order."""
    offsets = np.zeros(len(spots) + 1, np.int64)
    room = int((spots[:, 1] - spots[:, 0]).sum()) // _LEAST[kind]
    outputs = _outputs(*(room if kind == each else 0 for each in (INTEGERS, FLOATS, BYTES)))
    good = kernels.varying_values(data, spots, kind, room, offsets, outputs)
    offsets = offsets[: good + 1]
    values = _values(data, outputs, kind, 0, int(offsets[-1]))
    # What was not written of the room is not kept.
    return Ragged(values.copy() if values.base is not None else values, offsets), good


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Return a serialized ``tf.train.Example``.

    Parameters
    ----------
    features : dict of str to array-like
        The values of each feature, of any shape, flattened: integers and booleans become an
        ``Int64List``, floats a ``FloatList``, and bytes or str (in UTF-8) a ``BytesList``. An
        empty list is a feature without values.

    Raises
    ------
    ConfigurationError
        If values are of none of these kinds.
    """
    entries = [
        _part(1, _part(1, name.encode()) + _part(2, _feature(name, values)))
        for name, values in features.items()
    ]
    return _part(1, b"".join(entries))


def _feature(name: str, values: Any) -> bytes:
    if isinstance(values, (bytes, str)):
        values = [values]
    if isinstance(values, (list, tuple)) and not values:
        return b""
    try:
        array = values if isinstance(values, np.ndarray) else as_array(values)
        if array.dtype.kind == "O" and not array.size:
            return b""
        if array.dtype.kind == "O" and not is_text(next(array.flat, None)):
            array = integers_of(array, "its values")  # as columns of data frames have them
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"feature {name!r}: {error}") from error
    if array.dtype.kind in "SUO":
        texts = [text.encode() if isinstance(text, str) else text for text in array.reshape(-1)]
        if all(isinstance(text, bytes) for text in texts):
            return _part(BYTES, b"".join(_part(1, text) for text in texts))
    elif array.dtype.kind == "f":
        packed = array.astype("<f4").tobytes()
        return _part(FLOATS, _part(1, packed) if packed else b"")
    elif array.dtype.kind in "iub":
        numbers = array.astype(np.int64) if array.dtype.kind == "b" else array
        out = np.empty(10 * numbers.size, np.uint8)
        count = kernels.varints(np.ascontiguousarray(bits_of(numbers).reshape(-1)), out)
        packed = out[:count].tobytes()
        return _part(INTEGERS, _part(1, packed) if packed else b"")
    raise ConfigurationError(
        f"feature {name!r} is of {array.dtype}: an Example holds integers, floats or bytes"
    )


def _part(number: int, content: bytes) -> bytes:
    """Return a field that holds bytes."""
    length = len(content)
    encoded = [number << 3 | 2]
    while length > 127:
        encoded.append(length & 127 | 128)
        length >>= 7
    return bytes([*encoded, length]) + content
