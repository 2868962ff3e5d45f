"""What is fuzzed: each parser of `data.formats`, and checkpoints, with files to begin from."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import fsspec
import numpy as np

from psnb._src.data.formats import csv, multi_slot, records, text, tfrecord
from psnb._src.data.formats.criteo import Criteo
from psnb._src.data.formats.csv import Csv
from psnb._src.data.formats.fixed_length import FixedLengthRecords
from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb._src.data.formats.text import TextLines
from psnb._src.data.formats.tf_example import FixedLen, VarLen, encode_example
from psnb._src.data.formats.tfrecord import TFRecords, TFRecordWriter, masked_crc
from psnb._src.data.ragged import Ragged
from psnb.errors import DatasetError
from tests.data.formats.samples import parse_examples
from tests.data.formats.samples import records as read_records
from tests.fuzz import checkpoints

NAME = "fuzzed"
PATH = f"memory://{NAME}"

FEATURES = {
    "id": FixedLen(2, "int64"),
    "x": FixedLen((), "float32", default=0.5),
    "s": FixedLen((1,), "bytes", default=b""),
    "ids": VarLen("int64"),
    "xs": VarLen("float32"),
    "texts": VarLen("bytes"),
}


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes
    ----------
    seeds : list of bytes
        Files that it reads to the end.
    check : callable
        Reads a file, or raises what it must not: anything but what refuses such a file.
    """

    seeds: list[bytes]
    check: Callable[[bytes], None]


@contextmanager
def _short_chunks() -> Iterator[None]:
    """Let what is read at a time be so little that even short files are several chunks."""
    size, count = 64, 3
    with ExitStack() as stack:
        for module in (csv, text, multi_slot, tfrecord, records):
            for name, value in (("CHUNK_BYTES", size), ("CHUNK_RECORDS", count)):
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, value))
        stack.enter_context(patch.object(records.ByteWindow.fill, "__defaults__", (size,)))
        stack.enter_context(patch.object(csv._records, "__defaults__", (count,)))
        yield


def _outcome(form: Any, parts: list[tuple[int, int | None]]) -> str:
    """Return what is read, or where it is refused; as text, in which NaN equals NaN."""
    try:
        return str([row for at, end in parts for row in read_records(form.read(PATH, at, end=end))])
    except DatasetError as error:
        # Of a character that is cut off, decoders say it in other words at the end of a chunk.
        place = re.match(r".*? byte \d+", str(error), re.DOTALL)
        return f"refused: {place[0] if place else error}"


def _same_however_it_is_read(form: Any, *, guesses: bool = False) -> Callable[[bytes], None]:
    """Check that a file is read or refused, the same as a whole, in parts, and in short chunks.

    Unless the format ``guesses`` dtypes by what it sees first.
    """

    def check(content: bytes) -> None:
        fsspec.filesystem("memory").pipe_file(f"/{NAME}", content)
        whole = _outcome(form, [(0, None)])
        with suppress(DatasetError):
            in_parts = _outcome(form, form.splits(PATH, max(9, len(content) // 4)))
            # Where it is refused it says where in a part that is.
            assert in_parts == whole or in_parts[:7] == whole[:7] == "refused"
        with _short_chunks():
            in_chunks = _outcome(form, [(0, None)])
        assert guesses or in_chunks == whole

    return check


def _mended(content: bytes) -> bytes:
    """Return TFRecords with the right sums, so that not all that is changed is refused for them."""
    data = np.frombuffer(content, np.uint8).copy()
    at = 0
    while at + 16 <= data.size:
        length = int.from_bytes(data[at : at + 8].tobytes(), "little")
        if length < 2**32:  # else it stays: more than there is
            length = min(length, data.size - at - 16)
            data[at : at + 8] = np.frombuffer(length.to_bytes(8, "little"), np.uint8)
        end = min(at + 12 + length, data.size - 4)
        for begin, stop in ((at, at + 8), (at + 12, end)):
            crc = int(masked_crc(data, begin, stop)).to_bytes(4, "little")
            data[stop : stop + 4] = np.frombuffer(crc, np.uint8)
        at = end + 4
    return data.tobytes()


def _tfrecords(content: bytes) -> None:
    for form in (TFRecords(), TFRecords(FEATURES)):
        check = _same_however_it_is_read(form)
        check(content)
        check(_mended(content))


def _example(content: bytes) -> None:
    # Several messages, as they are parsed together: some cut somewhere.
    data = np.frombuffer(content, np.uint8)
    for cuts in ((), (data.size // 2,), (data.size, data.size)):
        offsets = np.array([0, *cuts, data.size], np.int64)
        with suppress(DatasetError):
            parse_examples(Ragged(data, offsets), FEATURES)


def _zlib(content: bytes) -> None:
    _same_however_it_is_read(TextLines(None, "zlib"))(content)
    packed = zlib.compress(content)
    _same_however_it_is_read(TextLines(None, "zlib"))(packed + content)


def _csv(content: bytes) -> None:
    for form in (Csv(), Csv(header=False, dtypes={"f0": "float32", "f1": str}, delimiter="\t")):
        _same_however_it_is_read(form, guesses=True)(content)


def _multi_slot(content: bytes) -> None:
    sparse = [Slot("a"), Slot("b", "float32")]
    dense = [Slot("a", "uint64", ()), Slot("b", "float32", (2,)), Slot("c")]
    for slots in (sparse, dense):
        _same_however_it_is_read(MultiSlot(slots))(content)


def _fixed(content: bytes) -> None:
    for form in (FixedLengthRecords(3), FixedLengthRecords(2, 1, 1)):
        _same_however_it_is_read(form)(content)


def _text(content: bytes) -> None:
    for encoding in ("utf-8", None, "latin-1"):
        _same_however_it_is_read(TextLines(encoding))(content)


def _messages() -> list[bytes]:
    return [
        encode_example(
            {"id": [i, -i], "x": i / 3, "s": b"abc", "ids": np.arange(i), "texts": ["é"] * i}
        )
        for i in range(4)
    ] + [encode_example({"xs": [0.5] * 40, "id": [1, 2], "other": b"x" * 130})]


def _record_file(messages: list[bytes]) -> bytes:
    with TFRecordWriter("memory://seed.tfrecord") as writer:
        for message in messages:
            writer.write(message)
    content: bytes = fsspec.filesystem("memory").cat_file("/seed.tfrecord")
    return content


_CLICKS = "\t".join(["1", *map(str, range(-1, 12)), *(f"{i:x}" for i in range(26))])

TARGETS = {
    "tfrecords": Target([_record_file(_messages()), _record_file([b"", b"abc"])], _tfrecords),
    "example": Target(_messages(), _example),
    "multi_slot": Target([b"2 7 8 1 0.5\n0 2 1e3 -.2\n", b"1 5 2 1 2.5e-3 0\n" * 3], _multi_slot),
    "csv": Target([b'a,b,c\n1,"x,\n""",0.5\n2,,nan\n', b"1.5\tx\n\ty\r\n"], _csv),
    "criteo": Target(
        [(_CLICKS + "\n").encode() * 2, b"0" + b"\t" * 39],
        _same_however_it_is_read(Criteo()),
    ),
    "text_lines": Target(["a\nlonger é\r\n\n".encode(), b"x"], _text),
    "fixed_length_records": Target([b"a12345678b", b"123456789"], _fixed),
    "zlib": Target([zlib.compress(b"a\nb\n"), zlib.compress(b"x" * 99) * 2], _zlib),
    "checkpoint": Target(checkpoints.seeds(), checkpoints.check),
}
