from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.data.formats.tf_example import FixedLen, encode_example
from psnb._src.data.formats.tfrecord import TFRecords, TFRecordWriter, masked_crc
from psnb.errors import DatasetError
from tests.data.formats.samples import records, tfrecord_bytes, write


def crc32c(data: bytes) -> int:
    """Return CRC-32C, a bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def test_the_check_value_of_crc_32c_is_right() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=100))
def test_the_crc_is_that_of_the_definition(data: bytes) -> None:
    padded = np.frombuffer(b"-" + data + b"-", np.uint8)
    assert int(masked_crc(padded, 1, 1 + len(data))) == masked(data)


def test_the_bytes_of_a_record_are_these() -> None:
    # As in TensorFlow: one record, "abc".
    golden = record(b"abc")
    assert golden[:8] == b"\x03" + bytes(7)
    assert tfrecord_bytes([b"abc"]) == golden


def test_records_of_any_length_are_read(tmp_path: Path) -> None:
    rows = [b"", b"x" * 3_000_000, b"a", b"y" * 1_100_000]
    path = write(tmp_path, b"".join([record(b""), *(tfrecord_bytes([row]) for row in rows[1:])]))
    found = [bytes(row) for chunk in TFRecords().read(path) for row in chunk.columns]
    assert found == rows


@pytest.mark.parametrize(
    ("suffix", "inflate"), [(".gz", gzip.decompress), (".zz", zlib.decompress)]
)
def test_the_writer_compresses_as_the_suffix_says(
    suffix: str, inflate: object, tmp_path: Path
) -> None:
    path = str(tmp_path / f"part{suffix}")
    with TFRecordWriter(path) as writer:
        writer.write(b"abc")
        writer.write(np.frombuffer(b"de", np.uint8))
    assert inflate(Path(path).read_bytes()) == record(b"abc") + record(b"de")  # type: ignore[operator]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write(tmp_path, b"", "file")
    with pytest.raises(DatasetError, match=f"{tmp_path}/file/part cannot be written"):
        TFRecordWriter(str(tmp_path / "file" / "part"))


GOOD = record(b"good")  # 20 bytes


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"abcde", "cut short: 5 bytes are left of a header"),
        (record(b"bad")[:11], "cut short: 11 bytes are left of 19 bytes"),
        (record(b"bad")[:12], "cut short: 12 bytes are left of 19 bytes"),
        (record(b"bad")[:-1], "cut short: 18 bytes are left of 19 bytes"),
        (b"\x04" + record(b"bad")[1:], "corrupt: the CRC of its length is wrong"),
        (record(b"bad")[:12] + b"BAD" + bytes(4), "corrupt: the CRC of its data is wrong"),
        (record(b"bad")[:-4] + bytes(4), "corrupt: the CRC of its data is wrong"),
        (
            struct.pack("<QI", 2**63, masked(struct.pack("<Q", 2**63))) + bytes(100),
            "it is longer than max_record_bytes=67108864",
        ),
    ],
)
def test_an_error_in_a_record_is_raised_after_those_before_it(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    path = write(tmp_path, GOOD * 2 + content)
    reader = TFRecords().read(path)
    assert next(reader).count == 2
    with pytest.raises(DatasetError, match=f"{path}, record 3, byte 40: {problem}"):
        next(reader)


def test_a_bad_example_is_named_after_those_before_it(tmp_path: Path) -> None:
    rows = [encode_example({"x": 1}), encode_example({"x": 2}), encode_example({"y": 3})]
    path = write(tmp_path, b"".join(map(record, rows)))
    reader = TFRecords({"x": FixedLen((), "int64")}).read(path)
    assert next(reader).columns["x"].tolist() == [1, 2]
    with pytest.raises(DatasetError, match=f"{path}, record 3, byte 60: feature 'x' is missing"):
        next(reader)


@given(st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=3)), max_size=3))
def test_mutated_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]]
) -> None:
    content = GOOD * 3
    for at, new in edits:
        content = content[:at] + new + content[at + len(new) :]
    try:
        found = records(TFRecords().read(write(tmp_path_factory.getbasetemp(), content, "records")))
    except DatasetError:
        pass
    else:
        assert found == [b"good"] * (len(content) // 20)
