"""Files of HDFS: by fsspec, against a filesystem that stands for it, and by Hadoop's command."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from fsspec.utils import infer_storage_options

from psnb.data import Dataset, InMemoryDataset, QueueDataset, Slot
from psnb.errors import DatasetError

SLOTS = [Slot("a")]


class Namenodes(MemoryFileSystem):
    """As fsspec's `HadoopFileSystem` takes addresses: user, host and port are not in the path."""

    protocol = "hdfs"
    cachable = False
    stores: ClassVar[dict[tuple[Any, Any, Any], dict[str, Any]]] = {}

    def __init__(self, host: Any = "default", port: Any = 0, user: Any = None, **more: Any) -> None:
        super().__init__(**more)
        self.store = self.stores.setdefault((host, port, user), {})  # type: ignore[misc]
        self.pseudo_dirs = [""]  # type: ignore[misc]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        inner: str = infer_storage_options(path)["path"]
        return inner.rstrip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        found = infer_storage_options(path)
        names = {"host": "host", "port": "port", "username": "user"}
        return {name: found[key] for key, name in names.items() if found.get(key)}


@pytest.fixture
def hdfs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_registry, "hdfs", Namenodes)
    Namenodes.stores.clear()
    for host, first in (("one", 1), ("two", 3)):
        system = Namenodes(host=host, port=9000, user="me")
        for number in (first, first + 1):
            system.pipe_file(f"/clicks/part-{number}", f"1 {number}\n".encode())
        packed = gzip.compress(f"1 {first}00\n".encode())
        system.pipe_file(f"/packed/part-{first}.gz", packed)


def ids(dataset: Any) -> list[int]:
    return [int(each) for batch in dataset for each in batch["a"].values]


@pytest.mark.usefixtures("hdfs")
def test_files_and_patterns_are_those_of_the_namenode_that_is_named() -> None:
    assert ids(QueueDataset("hdfs://me@two:9000/clicks/part-4", SLOTS, 2)) == [4]
    assert ids(QueueDataset("hdfs://me@one:9000/clicks/part-*", SLOTS, 2)) == [1, 2]
    assert sorted(ids(QueueDataset("hdfs://me@two:9000/*/*", SLOTS, 2, threads=2))) == [3, 4, 300]
    assert list(Dataset.text_lines("hdfs://me@one:9000/packed/*.gz")) == ["1 100"]


@pytest.mark.usefixtures("hdfs")
def test_they_are_loaded_into_memory_and_piped() -> None:
    files = ["hdfs://me@one:9000/clicks/*", "hdfs://me@two:9000/clicks/*"]
    dataset = InMemoryDataset(files, SLOTS, 2, pipe_command="awk '{print $1, $2 * 10}'")
    dataset.load_into_memory()
    assert sorted(ids(dataset)) == [10, 20, 30, 40]


@pytest.mark.usefixtures("hdfs")
def test_a_file_that_is_not_there_is_named_with_its_namenode() -> None:
    with pytest.raises(DatasetError, match="hdfs://me@one:9000/clicks/part-7: no such file"):
        ids(QueueDataset("hdfs://me@one:9000/clicks/part-7", SLOTS, 2))
    with pytest.raises(DatasetError, match=r"no file matches hdfs://me@one:9000/clicks/x"):
        QueueDataset("hdfs://me@one:9000/clicks/x*", SLOTS, 2)


def test_a_pattern_keeps_what_an_address_begins_with() -> None:
    fsspec.filesystem("memory").pipe_file("/folder/part-1", b"line\n")
    assert list(Dataset.text_lines("memory://folder/part-*")) == ["line"]
    assert list(Dataset.text_lines("memory:///folder/*")) == ["line"]


def test_hadoops_own_command_reads_the_files_that_are_named_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "hdfs"
    command.write_text('#!/bin/sh\n[ "$1 $2" = "dfs -cat" ] && echo 1 "${3##*-}"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    names = tmp_path / "names"
    names.write_text("hdfs://one/part-5\nhdfs://one/part-6\n")
    assert ids(QueueDataset(names, SLOTS, 2, pipe_command="xargs -n 1 hdfs dfs -cat")) == [5, 6]
