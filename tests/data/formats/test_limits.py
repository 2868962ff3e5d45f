"""Memory of readers is bounded, whatever files claim or unpack to."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from psnb._src.data.formats.criteo import Criteo
from psnb._src.data.formats.csv import Csv
from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb._src.data.formats.parquet import Parquet
from psnb._src.data.formats.parquet_footer import ColumnChunk
from psnb._src.data.formats.parquet_pages import CheckedFile
from psnb._src.data.formats.text import TextLines
from psnb._src.data.formats.tf_example import FixedLen, VarLen, encode_example
from psnb._src.data.formats.tfrecord import TFRecords, masked_crc
from psnb.data import InMemoryDataset, QueueDataset
from psnb.errors import ConfigurationError, DatasetError
from tests.data.formats import samples
from tests.data.formats.growth import MB, growth
from tests.data.formats.samples import records, tfrecord_bytes, write

LIMIT = 67  # MB: what a record may take by default

FORMS = {
    "text": TextLines(),
    "criteo": Criteo(),
    "csv": Csv(header=False),
    "multi_slot": MultiSlot([Slot("ids"), Slot("dense", "float32")]),
    "tfrecords": TFRecords(),
}

GOOD = {
    "text": b"x\n",
    "criteo": samples.criteo().content.split(b"\n")[0] + b"\n",
    "csv": b"1\n",
    "multi_slot": b"2 7 8 1 0.5\n",
    "tfrecords": tfrecord_bytes([b"x"]),
}


def repeated(begin: bytes, piece: bytes, times: int) -> bytes:
    """Return gzip's form of something that nobody reads to its end: its checksum is wrong.

    What is repeated is compressed once only.
    """
    packer = zlib.compressobj(9, wbits=31)
    packed = [packer.compress(each) + packer.flush(zlib.Z_FULL_FLUSH) for each in (begin, piece)]
    return packed[0] + times * packed[1] + packer.flush()


@pytest.fixture(scope="module")
def one_line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A line of 0.5 GB, in 0.5 MB."""
    path = tmp_path_factory.mktemp("limits") / "line.gz"
    path.write_bytes(repeated(b"", b"7" * 10**7, 50))
    assert path.stat().st_size < 600_000
    return path


@pytest.mark.second_tier("it packs half a gigabyte; a line that is too long is in the first tier")
@pytest.mark.parametrize("name", ["text", "criteo", "csv", "multi_slot"])
def test_a_line_of_half_a_gigabyte_in_a_small_file_is_refused(name: str, one_line: Path) -> None:
    grown, said, counts = growth(FORMS[name], str(one_line), gzip.compress(GOOD[name]))
    assert not counts
    assert f"{one_line}, " in said
    assert " 1, byte 0: it is longer than max_record_bytes=67108864" in said
    assert grown < 2.5 * LIMIT


@pytest.mark.parametrize(
    "values",
    ["ids", pytest.param("dense", marks=pytest.mark.second_tier("another slot of such a line"))],
)
def test_a_line_of_multi_slot_of_all_that_is_allowed_takes_a_stated_multiple(
    values: str, tmp_path: Path
) -> None:
    # The most values that a line can have, in some of the ways that they are held.
    line = b"33000000" + b" 7" * 33_000_000
    line = line + b" 0\n" if values == "ids" else b"0 " + line + b"\n"
    path = write(tmp_path, gzip.compress(line, 6), "part.gz")
    assert Path(path).stat().st_size < 500_000
    grown, said, counts = growth(FORMS["multi_slot"], path, gzip.compress(GOOD["multi_slot"]))
    assert (said, counts) == ("", [1])
    assert grown < 12 * LIMIT


@pytest.mark.second_tier("it reads a hundred megabytes")
def test_floats_that_are_looked_at_one_by_one_take_little_more(tmp_path: Path) -> None:
    line = b"0 500000" + b" nan" * 500_000 + b"\n"
    path = write(tmp_path, line)
    grown, said, counts = growth(FORMS["multi_slot"], path, GOOD["multi_slot"])
    assert (said, counts) == ("", [1])
    assert grown < 20 * len(line) / MB


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "bz2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE, preset=0),
    "zz": zlib.compress,
    "zip": lambda data: zipped(data, zipfile.ZIP_DEFLATED),
}


def zipped(data: bytes, method: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("part", data)
    return out.getvalue()


ANOTHER_FORM = pytest.mark.second_tier("another form of the same library")


@pytest.mark.parametrize(
    "suffix",
    [pytest.param(each, marks=[ANOTHER_FORM] if each != "xz" else []) for each in COMPRESSED],
)
def test_a_line_is_refused_however_it_is_compressed(suffix: str, tmp_path: Path) -> None:
    compress = COMPRESSED[suffix]
    path = write(tmp_path, compress(b"7" * 2 * 10**8), f"part.{suffix}")
    grown, said, _ = growth(TextLines(), path, compress(b"x\n"))
    assert "line 1, byte 0: it is longer than max_record_bytes" in said
    assert grown < 2.5 * LIMIT


def test_what_takes_much_memory_to_decompress_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, with_dictionary_of_a_gigabyte(lzma.compress(b"x\n" * 9)), "part.xz")
    with pytest.raises(DatasetError, match=f"{path} cannot be read: .*emory usage limit"):
        list(TextLines().read(path))
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path = write(tmp_path, zipped(b"x\n" * 9, method), "part.zip")
        with pytest.raises(DatasetError, match=f"{path}: its first file is not deflated"):
            list(TextLines().read(path))


def with_dictionary_of_a_gigabyte(stream: bytes) -> bytes:
    """Change what an xz stream says of its dictionary, as making one would take so much itself."""
    begin, size = 12, 4 * (stream[12] + 1)
    header = bytearray(stream[begin : begin + size - 4])
    at = header.index(b"\x21\x01") + 2  # LZMA2, with one byte of properties
    header[at] = 36
    rest = stream[begin + size :]
    return stream[:begin] + header + struct.pack("<I", zlib.crc32(header)) + rest


def test_several_xz_streams_and_what_is_between_them_are_one_file(tmp_path: Path) -> None:
    content = lzma.compress(b"a\nb") + bytes(8) + lzma.compress(b"c\n") + bytes(4)
    assert records(TextLines().read(write(tmp_path, content, "part.xz"))) == ["a", "bc"]
    path = write(tmp_path, lzma.compress(b"a\n" * 99)[:-20], "cut.xz")
    with pytest.raises(DatasetError, match=f"{path}: the data are cut short"):
        list(TextLines().read(path))


def claimed(length: int) -> bytes:
    """Return the head of a record of TFRecords."""
    head = struct.pack("<Q", length)
    return head + struct.pack("<I", masked_crc(np.frombuffer(head, np.uint8), 0, 8))


@pytest.mark.parametrize("length", [1 << 27, 1 << 40, 1 << 63])
def test_the_length_of_a_record_is_looked_at_before_it_is_read(length: int, tmp_path: Path) -> None:
    content = repeated(GOOD["tfrecords"] + claimed(length), bytes(1 << 20), 1 << 7)
    path = write(tmp_path, content, "part.gz")
    grown, said, counts = growth(TFRecords(), path, gzip.compress(GOOD["tfrecords"]))
    assert counts == [1]
    assert f"{path}, record 2, byte 17: it is longer than max_record_bytes=67108864" in said
    assert grown < 0.5 * LIMIT


def test_an_example_of_many_strings_takes_a_stated_multiple(tmp_path: Path) -> None:
    record = encode_example({"tags": [b"ab"] * 500_000})
    features = {"tags": VarLen("bytes")}
    path = write(tmp_path, tfrecord_bytes([record]))
    warm = tfrecord_bytes([encode_example({"tags": [b"ab"]})])
    grown, said, counts = growth(TFRecords(features), path, warm)
    assert (said, counts) == ("", [1])
    assert grown < 25 * len(record) / MB


def test_what_is_made_some_at_a_time_is_all_there(tmp_path: Path) -> None:
    tags = [str(i).encode() for i in range(9000)]
    path = write(tmp_path, tfrecord_bytes([encode_example({"tags": tags})]))
    (chunk,) = TFRecords({"tags": VarLen("bytes")}).read(path)
    assert chunk.columns["tags"][0].tolist() == tags
    path = write(tmp_path, b"0 9000" + b"".join(b" 1e%d" % (-i % 9 - 40) for i in range(9000)))
    (chunk,) = FORMS["multi_slot"].read(path)
    expected = np.array([float(f"1e{-i % 9 - 40}") for i in range(9000)], np.float32)
    assert np.array_equal(chunk.columns["dense"][0], expected)


def test_records_without_a_large_feature_come_fewer_at_a_time(tmp_path: Path) -> None:
    features = {"x": FixedLen(1_000_000, "float32", 0.0)}
    path = write(tmp_path, tfrecord_bytes([encode_example({})] * 300))
    grown, said, counts = growth(TFRecords(features), path, tfrecord_bytes([encode_example({})]))
    assert (said, sum(counts)) == ("", 300)
    assert grown < 3 * LIMIT


def test_columns_of_csv_are_counted_before_they_are_parsed(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(b"," * ((1 << 19) - 1) + b"\n1\n"), "part.gz")
    assert Path(path).stat().st_size < 1100
    grown, said, _ = growth(Csv(), path, gzip.compress(b"a,b\n1,2\n"))
    assert (
        said == f"{path}, record 1, byte 0: there are 524288 columns, more than max_columns=16384"
    )
    assert grown < 0.5 * LIMIT


def test_fields_beyond_the_columns_of_csv_take_little(tmp_path: Path) -> None:
    path = write(tmp_path, gzip.compress(b"a,b\n1,2\n" + b"," * (1 << 25) + b"\n"), "part.gz")
    grown, said, counts = growth(Csv(), path, gzip.compress(b"a,b\n1,2\n"))
    assert "record 2" in said
    assert len(said) < 1000
    assert counts == [1]
    assert grown < 12 * LIMIT


def test_delimiters_in_quotes_make_no_columns(tmp_path: Path) -> None:
    path = write(tmp_path, b'a,"' + b"," * 20_000 + b'"\n1,2\n')
    assert records(Csv(["a"], max_columns=2).read(path)) == [{"a": 1}]
    with pytest.raises(DatasetError, match="there are 2 columns, more than max_columns=1"):
        next(Csv(max_columns=1).read(path))


# -- Parquet ---------------------------------------------------------------------------------------


def parquet(column: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    options = {"compression": "zstd", "compression_level": 3} | options
    pq.write_table(pa.table({"c": column}), out, **options)
    return out.getvalue()


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_parquet_value_far_beyond_the_limit_in_a_small_file_is_refused(
    dictionary: bool, tmp_path: Path
) -> None:
    content = parquet(["x" * 100_000_000], use_dictionary=dictionary, write_statistics=False)
    assert len(content) < 100_000
    path = write(tmp_path, content)
    grown, said, _ = growth(Parquet(), path, parquet(["x", "y"]))
    assert said.startswith(f"{path}, row group 0: column 'c' unpacks to 1000000")
    assert "max_record_bytes=67108864" in said
    assert grown < 0.5 * LIMIT


@pytest.mark.parametrize(
    "encoding",
    [
        None,
        pytest.param("DELTA_BYTE_ARRAY", marks=pytest.mark.second_tier("another form of pages")),
    ],
)
def test_rows_of_long_values_come_fewer_at_a_time(encoding: str | None, tmp_path: Path) -> None:
    options = {"use_dictionary": False, "column_encoding": {"c": encoding}} if encoding else {}
    path = write(tmp_path, parquet(["x" * 1_000_000] * 600, **options))
    assert Path(path).stat().st_size < 10_000
    grown, said, counts = growth(Parquet(), path, parquet(["x", "y"]))
    assert (said, sum(counts), max(counts)) == ("", 600, 67)
    assert grown < 8 * LIMIT


@pytest.mark.parametrize("value", [7, "x" * 10_000], ids=["numbers", "texts"])
def test_a_list_far_beyond_the_limit_in_a_small_file_is_refused(
    value: int | str, tmp_path: Path
) -> None:
    made = pa.repeat(value, 20_000_000 if value == 7 else 20_000)
    one_list = pa.ListArray.from_arrays([0, len(made)], made)
    content = parquet(one_list, max_rows_per_page=1 << 30)
    assert len(content) < 100_000
    path = write(tmp_path, content)
    grown, said, _ = growth(Parquet(), path, parquet([["x"], ["y"]]))
    assert f"{path}, row group 0: column 'c.list.element' unpacks to" in said
    assert grown < 0.5 * LIMIT


def test_a_dictionary_of_long_values_that_no_row_repeats_is_read_at_once(tmp_path: Path) -> None:
    column = [f"{i:0100d}" for i in range(9000)]
    assert [c.count for c in Parquet().read(write(tmp_path, parquet(column)))] == [4096, 4096, 808]


CODECS = ["none", "snappy", "gzip", "brotli", "lz4", "zstd"]
OTHER_PAIR = pytest.mark.second_tier("both are read with another of the other's kind")


@pytest.mark.parametrize(
    ("version", "codec"),
    [
        pytest.param(version, codec, marks=[OTHER_PAIR] if (number + at) % 2 else [])
        for number, version in enumerate(["1.0", "2.0"])
        for at, codec in enumerate(CODECS)
    ],
)
def test_pages_are_read_however_they_are_written(codec: str, version: str, tmp_path: Path) -> None:
    table = pa.table(
        {
            "i": range(9000),
            "s": [f"value {i % 9}" * 50 for i in range(9000)],
            "l": [[str(j) for j in range(i % 4)] for i in range(9000)],
            "f": pa.array([i.to_bytes(2) for i in range(9000)], pa.binary(2)),
            "d": pa.array([i / 2 if i % 3 else None for i in range(9000)]),
        }
    )
    out = io.BytesIO()
    pq.write_table(table, out, compression=codec, data_page_version=version, data_page_size=999)
    path = write(tmp_path, out.getvalue())
    expected = table.drop_columns("d").to_pylist()
    found = records(Parquet(["i", "s", "l", "f"]).read(path))
    assert found == expected
    assert records(Parquet(["i", "s", "l", "f"], 5000).read(path)) == expected


# -- The limit itself ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_lines_may_be_as_long_as_the_limit_and_no_longer(size: int, tmp_path: Path) -> None:
    long = "x" * size
    for end in ("\n", "\r\n", ""):
        path = write(tmp_path, f"a\n{long}{end}".encode())
        assert records(TextLines(max_record_bytes=size).read(path)) == ["a", long]
        reader = TextLines(max_record_bytes=size - 1).read(path)
        assert next(reader).columns.tolist() == ["a"]
        with pytest.raises(DatasetError, match=f"{path}, line 2, byte 2: .*max_record_bytes="):
            next(reader)


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_records_may_be_as_long_as_the_limit_and_no_longer(size: int, tmp_path: Path) -> None:
    path = write(tmp_path, tfrecord_bytes([b"a", b"x" * size]))
    assert sum(chunk.count for chunk in TFRecords(max_record_bytes=size).read(path)) == 2
    reader = TFRecords(max_record_bytes=size - 1).read(path)
    assert next(reader).count == 1
    with pytest.raises(DatasetError, match=f"{path}, record 2, byte 17: .*max_record_bytes="):
        next(reader)
    path = write(tmp_path, b"a\n1\n" + b"2" * size + b"\n")
    form = {"dtypes": {"a": str}}
    assert sum(chunk.count for chunk in Csv(**form, max_record_bytes=size + 1).read(path)) == 2
    reader = Csv(**form, max_record_bytes=size - 1).read(path)
    assert next(reader).count == 1
    with pytest.raises(DatasetError, match=f"{path}, record 2, byte 4: .*max_record_bytes="):
        next(reader)


@pytest.mark.parametrize("limit", [0, -1, 2**30 + 1, 1.5, None])
def test_a_limit_that_cannot_be_is_refused(limit: Any) -> None:
    slots = {"slots": [Slot("x")]}
    for kind, options in (
        (TextLines, {}),
        (Criteo, {}),
        (Csv, {}),
        (TFRecords, {}),
        (MultiSlot, slots),
        (Parquet, {}),
    ):
        with pytest.raises(ConfigurationError, match="max_record_bytes"):
            kind(**options, max_record_bytes=limit)


def test_a_wide_column_without_any_page_is_refused() -> None:
    schema = SimpleNamespace(
        path="x", length=10**9, max_repetition_level=0, physical_type="FIXED_LEN_BYTE_ARRAY"
    )
    checked = CheckedFile(io.BytesIO(), 67 * MB)
    checked.expect([ColumnChunk(0, 5, 0, 0)], [schema], 100, "x.parquet")
    with pytest.raises(DatasetError, match="unpacks to 1000000000 bytes"):
        checked.read(0)


def read(dataset: QueueDataset | InMemoryDataset) -> list[Any]:
    if isinstance(dataset, InMemoryDataset):
        dataset.load_into_memory()
    return list(dataset)


@pytest.mark.parametrize("batches", [QueueDataset, InMemoryDataset])
def test_datasets_of_files_pass_the_limit_on(
    batches: type[QueueDataset | InMemoryDataset], tmp_path: Path
) -> None:
    path = write(tmp_path, b"1 7\n3 7 8 9\n")
    slots = [Slot("ids")]
    made = [batches(path, slots, 1, max_record_bytes=size) for size in (7, 6)]
    long, short = made
    assert len(read(long)) == 2
    with pytest.raises(DatasetError, match=f"{path}, .*, byte 4: .*max_record_bytes=6"):
        read(short)
