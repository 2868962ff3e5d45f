from __future__ import annotations

import gzip
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from psnb._src.data.formats.files import list_files
from psnb._src.data.formats.parquet import Parquet
from psnb._src.data.formats.text import TextLines
from psnb._src.data.formats.tfrecord import TFRecords, TFRecordWriter
from psnb.data import Dataset
from psnb.errors import ConfigurationError, DatasetError
from tests.data.formats import samples
from tests.data.formats.samples import records, write

CONTENT = "".join(f"line {i}\n" for i in range(300_000)).encode()
FILES = {"/part": CONTENT, "/part.gz": gzip.compress(CONTENT, 1), "/empty": b"", "/a::b": b"x\n"}


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `FILES`; parts of them if asked and the server is one that can."""

    def do_GET(self) -> None:
        """Send a file or a part of it."""
        content = FILES.get(self.path)
        if content is None:
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        if wanted and self.server.ranges:  # type: ignore[attr-defined]
            begin, end = wanted.removeprefix("bytes=").split("-")
            part = content[int(begin) : int(end or len(content)) + 1]
            self.send_response(206)
            whole = f"bytes {begin}-{int(begin) + len(part) - 1}/{len(content)}"
            self.send_header("Content-Range", whole)
        else:
            part = content
            self.send_response(200)
        if self.server.ranges:  # type: ignore[attr-defined]
            self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(params=[True, False], ids=["ranges", "no ranges"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run an HTTP server on loopback."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.ranges = request.param  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, name="http-server")
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_files_are_read_over_http(address: str) -> None:
    lines = CONTENT.decode().splitlines()
    for name in ("part", "part.gz"):
        reader = TextLines().read(f"{address}/{name}")
        chunk = next(reader)
        reader.close()
        rest = records(TextLines().read(f"{address}/{name}", chunk.next_offset))
        assert chunk.columns.tolist() + rest == lines


def test_paths_are_absolute_as_workers_have_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert list_files(["*.txt", "b.txt"]) == [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    assert list_files("memory://a/b") == ["memory://a/b"]


def test_a_relative_path_that_is_missing_says_in_which_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError, match=f"absent: no such file in {tmp_path} on "):
        next(TextLines().read("absent"))


def test_what_is_wrong_over_http_is_reported(address: str) -> None:
    with pytest.raises(DatasetError, match=f"{address}/absent: no such file"):
        next(TextLines().read(f"{address}/absent"))
    with pytest.raises(DatasetError, match=f"{address}/empty is empty"):
        next(iter(Dataset.text_lines(f"{address}/empty")))


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(DatasetError, match=r"http://127\.0\.0\.1:9/part"):
        next(TextLines().read("http://127.0.0.1:9/part"))


def test_patterns_are_files_in_order(tmp_path: Path) -> None:
    for name in ("b-2", "b-1", "a-1", "c"):
        write(tmp_path, b"x\n", name)
    (tmp_path / "b-folder").mkdir()
    found = list_files([f"{tmp_path}/b-*", tmp_path / "c"])
    assert found == [f"{tmp_path}/{name}" for name in ("b-1", "b-2", "c")]
    assert list_files(f"{tmp_path}/**/a-?") == [f"{tmp_path}/a-1"]


@pytest.mark.parametrize("name", ["day[1]", "what?", "a*b", "[2026]-part"])
def test_a_file_is_found_by_its_name_whatever_is_in_it(name: str, tmp_path: Path) -> None:
    for each in (name, "day1", "whats", "aab", "2-part"):
        write(tmp_path, b"x\n", each)
        fsspec.filesystem("memory").pipe_file(f"/names/{each}", b"x\n")
    for path in (f"{tmp_path}/{name}", f"memory://names/{name}"):
        assert list_files(path) == [path]


def test_patterns_are_looked_up_in_other_filesystems() -> None:
    system = fsspec.filesystem("memory")
    for name in ("x-2", "x-1", "y"):
        system.pipe_file(f"/patterns/{name}", b"x\n")
    expected = ["memory:///patterns/x-1", "memory:///patterns/x-2"]
    assert list_files("memory://patterns/x-*") == expected
    assert records(TextLines().read(expected[0])) == ["x"]


def test_a_path_without_a_pattern_is_itself_even_if_it_is_an_address_with_a_query() -> None:
    paths = ["/no-such-file", "https://host/file?key=1"]
    assert list_files(paths) == paths


@pytest.mark.parametrize("pattern", ["/no-such-folder/*", "memory://no-such-folder/*"])
def test_a_pattern_that_nothing_matches_is_an_error(pattern: str) -> None:
    with pytest.raises(DatasetError, match="no file matches"):
        list_files(pattern)


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(DatasetError, match="nosuch://file cannot be read"):
        next(TextLines().read("nosuch://file"))


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="compression is 'rar'"):
        TextLines(compression="rar")


def test_a_file_that_is_not_compressed_as_declared_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, b"not gzip", "part.gz")
    with pytest.raises(DatasetError, match=path):
        next(TextLines().read(path))
    assert records(TextLines(compression=None).read(path)) == ["not gzip"]


@pytest.mark.parametrize("reader", [TextLines, TFRecords, Parquet])
def test_a_named_pipe_is_refused_without_waiting(reader: Callable[[], Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DatasetError, match="pipe is not a file but a pipe or a device"):
        next(reader().read(str(tmp_path / "pipe")))


NAMES = ["a::b", "a::memory:", "memory::x", "zip::a.gz", "file::a"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_with_colons_in_its_name_is_a_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = gzip.compress(b"x\n") if name.endswith(".gz") else b"x\n"
    Path(name).write_bytes(content)
    form = TextLines()
    for path in [name, str(tmp_path / name), *list_files("*"), *list_files(f"{tmp_path}/*::*")]:
        assert records(form.read(path)) == ["x"]
        assert form.splits(path, 10) == [(0, None)]


def test_a_parquet_or_tfrecord_file_with_colons_in_its_name_is_a_file(tmp_path: Path) -> None:
    with TFRecordWriter(str(tmp_path / "new" / "a::memory:")) as writer:
        writer.write(b"x")
    (path,) = list_files(f"{tmp_path}/new/*")
    assert path == f"{tmp_path}/new/a::memory:"
    assert records(TFRecords().read(path)) == [b"x"]
    path = write(tmp_path, samples.parquet().content, "b::memory:")
    assert sum(chunk.count for chunk in Parquet().read(path)) == samples.ROWS
    with pytest.raises(DatasetError, match="simplecache::memory://c: no such file"):
        next(TextLines().read("simplecache::memory://c"))


def test_colons_in_an_address_lead_to_no_other() -> None:
    system = fsspec.filesystem("memory")
    name = "/colons/a::file"
    system.pipe_file(name, b"x\n")
    (path,) = list_files("memory://colons/*")
    assert records(TextLines().read(path)) == ["x"]
    assert TextLines().splits(path, 1) == [(0, None)]
    system.pipe_file(name, samples.parquet().content)
    assert sum(chunk.count for chunk in Parquet().read(path)) == samples.ROWS


def test_colons_in_an_address_of_a_web_page_are_its_own(address: str) -> None:
    assert records(TextLines().read(f"{address}/a::b")) == ["x"]
