"""What holds for every format."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import os
import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import fsspec
import pytest

from psnb._src.data.formats.csv import Csv
from psnb._src.data.formats.parquet import Parquet
from psnb._src.data.formats.records import CHUNK_BYTES
from psnb._src.data.formats.text import TextLines
from psnb._src.data.formats.tfrecord import TFRecords
from psnb.errors import DatasetError
from tests.data.formats import samples
from tests.data.formats.samples import Sample, open_files, records, write


@pytest.fixture(params=samples.ALL, ids=lambda make: make.__name__)
def sample(request: pytest.FixtureRequest) -> Sample:
    return _made(request.param)


@cache
def _made(make: Callable[[], Sample]) -> Sample:
    return make()


def test_all_records_are_read(sample: Sample, tmp_path: Path) -> None:
    # All chunks before any is looked at: each keeps its own columns.
    chunks = list(sample.format.read(write(tmp_path, sample.content)))
    assert records(chunks) == sample.expected


def test_chunks_follow_each_other(sample: Sample, tmp_path: Path) -> None:
    chunks = list(sample.format.read(write(tmp_path, sample.content)))
    assert len(chunks) > 2
    first = 0
    for chunk in chunks:
        assert chunk.first == first
        first += chunk.count


def test_reading_resumes_after_each_chunk(sample: Sample, tmp_path: Path) -> None:
    path = write(tmp_path, sample.content)
    for chunk in sample.format.read(path):
        first = chunk.first + chunk.count
        rest = list(sample.format.read(path, chunk.next_offset, first))
        assert records(rest) == sample.expected[first:]
        assert not rest or rest[0].first == first


def test_reading_again_from_where_a_chunk_began_gives_the_same_chunk(
    sample: Sample, tmp_path: Path
) -> None:
    path = write(tmp_path, sample.content)
    chunks = list(sample.format.read(path))
    for before, chunk in itertools.pairwise(chunks):
        again = next(sample.format.read(path, before.next_offset, chunk.first))
        assert (again.first, again.count) == (chunk.first, chunk.count)
        assert again.next_offset == chunk.next_offset


@pytest.mark.parametrize("off", [-17, -16, -1, 0, 1, 17])
def test_records_may_be_as_long_as_what_is_read_at_a_time(off: int, tmp_path: Path) -> None:
    long = "x" * (CHUNK_BYTES + off)
    text = write(tmp_path, f"{long}\nb\n{long}".encode(), "text")
    assert records(TextLines().read(text)) == [long, "b", long]
    csv = write(tmp_path, f"{long}\nb\n{long}".encode(), "csv")
    assert records(Csv(header=False).read(csv)) == [{"f0": row} for row in (long, "b", long)]
    content = samples.tfrecord_bytes([long.encode(), b"b", long.encode()])
    chunks = TFRecords().read(write(tmp_path, content, "tfrecords"))
    assert [bytes(row).decode() for chunk in chunks for row in chunk.columns] == [long, "b", long]


@pytest.mark.parametrize(
    "make",
    [each for each in samples.ALL if each is not samples.parquet],  # compressed within
    ids=lambda make: make.__name__,
)
def test_reading_resumes_in_a_compressed_file(make: Callable[[], Sample], tmp_path: Path) -> None:
    sample = _made(make)
    path = write(tmp_path, gzip.compress(sample.content, 1), "part.gz")
    chunk = next(sample.format.read(path))
    assert records(sample.format.read(path, chunk.next_offset)) == sample.expected[chunk.count :]


def test_splits_hold_each_record_once(sample: Sample, tmp_path: Path) -> None:
    path = write(tmp_path, sample.content)
    for size in (len(sample.content) // 5, 10**9):
        parts = sample.format.splits(path, size)
        found = [records(sample.format.read(path, begin, end=end)) for begin, end in parts]
        assert [row for part in found for row in part] == sample.expected
    assert len(parts) == 1


def test_formats_that_can_be_cut_are_cut_to_size(tmp_path: Path) -> None:
    for make in (samples.text, samples.csv, samples.fixed, samples.criteo, samples.multi_slot):
        sample = _made(make)
        parts = sample.format.splits(write(tmp_path, sample.content), len(sample.content) // 4)
        assert len(parts) in (4, 5)


def test_reading_up_to_an_end_reads_what_begins_before_it(sample: Sample, tmp_path: Path) -> None:
    path = write(tmp_path, sample.content)
    chunk = next(sample.format.read(path))
    found = records(sample.format.read(path, end=chunk.next_offset))
    assert found == sample.expected[: chunk.count]


def test_formats_pickle(sample: Sample, tmp_path: Path) -> None:
    copy = pickle.loads(pickle.dumps(sample.format))
    assert copy == sample.format
    assert records(copy.read(write(tmp_path, sample.content))) == sample.expected


def test_a_reader_that_is_closed_early_closes_its_file(sample: Sample, tmp_path: Path) -> None:
    path = write(tmp_path, sample.content)
    reader = sample.format.read(path)
    next(reader)
    assert path in open_files()
    reader.close()
    assert path not in open_files()


def test_a_missing_file_is_named(sample: Sample, tmp_path: Path) -> None:
    path = str(tmp_path / "absent")
    with pytest.raises(DatasetError, match=f"{path}: no such file"):
        next(sample.format.read(path))


def test_an_empty_file_has_no_record(sample: Sample, tmp_path: Path) -> None:
    assert records(sample.format.read(write(tmp_path, b""))) == []
    if isinstance(sample.format, Parquet):
        return  # compressed within
    for how, pack in PACKED.items():
        packed = replace(sample.format, compression=how)
        assert records(packed.read(write(tmp_path, pack(b"")))) == []
        assert records(packed.read(write(tmp_path, b""))) == []  # not even a header


def test_a_folder_is_named(sample: Sample, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=str(tmp_path)):
        next(sample.format.read(str(tmp_path)))


@contextmanager
def as_nobody() -> Iterator[None]:
    """Do without the rights of root, who may read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_file_that_must_not_be_read_is_named(sample: Sample, tmp_path: Path) -> None:
    path = write(tmp_path, sample.content)
    next(sample.format.read(path))  # what must be compiled is, while files may be written
    os.chmod(path, 0)
    with as_nobody(), pytest.raises(DatasetError, match=f"{path}: no permission"):
        next(sample.format.read(path))


def test_a_file_that_became_shorter_cannot_be_resumed(sample: Sample, tmp_path: Path) -> None:
    path = write(tmp_path, sample.content)
    with pytest.raises(DatasetError, match=path):
        next(sample.format.read(path, len(sample.content) + 1))


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


def test_files_in_memory_are_read(sample: Sample, memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe_file("/part", sample.content)
    assert records(sample.format.read("memory://part")) == sample.expected
    with pytest.raises(DatasetError, match="memory://absent: no such file"):
        next(sample.format.read("memory://absent"))


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".zz", zlib.compress)], ids=["gzip", "zlib"]
)
def test_compressed_files_are_known_by_their_suffix(
    suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    sample = _made(samples.tfrecords)
    path = write(tmp_path, compress(sample.content), f"part{suffix}")
    assert records(TFRecords().read(path)) == sample.expected


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        archive.writestr("part", content)
    return file.getvalue()


PACKED = {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zip": zipped}


@pytest.mark.parametrize("how", PACKED)
def test_a_file_whose_name_does_not_say_how_it_is_packed_is_refused(
    how: str, tmp_path: Path, sample: Sample
) -> None:
    if isinstance(sample.format, Parquet):
        return  # compressed within; what is no Parquet, its footer says
    path = write(tmp_path, PACKED[how](sample.content), "part")
    said = f"part is packed with {how}, .*: give compression='{how}', or let its name end with"
    with pytest.raises(DatasetError, match=said):
        next(sample.format.read(path))
    plain = replace(sample.format, compression=None)
    if len(plain.splits(path, 1 << 10)) > 1:
        with pytest.raises(DatasetError, match=said):
            sample.format.splits(path, 1 << 10)
    with suppress(DatasetError):
        assert next(plain.read(path)).count  # it is read as it is
    assert records(replace(sample.format, compression=how).read(path)) == sample.expected


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_compressed_file_that_is_cut_short_is_named(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    name = {gzip.compress: "gzip", zlib.compress: "zlib"}[compress]
    path = write(tmp_path, compress(b"abc\n" * 9000)[:-9])
    with pytest.raises(DatasetError, match=f"{path}: the data are cut short"):
        list(TextLines(compression=name).read(path))


def test_several_compressed_streams_are_one_file(tmp_path: Path) -> None:
    path = write(tmp_path, zlib.compress(b"a\nb") + zlib.compress(b"c\n"))
    assert records(TextLines(compression="zlib").read(path)) == ["a", "bc"]
