"""The folder that `Dataset.save` writes: parts, and ``dataset.json`` that lists them.

It is written next to its place and renamed into it when it is complete.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from psnb._src.data.block import BLOCK
from psnb._src.data.formats.files import size_of, stored, translated
from psnb._src.data.formats.records import CHUNK_RECORDS, Chunk
from psnb._src.data.node import Context, Node
from psnb._src.data.nodes.parts import VERSION, PartReader, PartsWriter, part_name
from psnb._src.data.reader import Reader
from psnb._src.utils.checks import path_text
from psnb._src.utils.paths import is_local
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError, DatasetError

logger = logging.getLogger("psnb")

_LIST = "dataset.json"


@dataclass(frozen=True)
class SavedPart:
    """Reads a part; offsets are numbers of elements in it."""

    def read(
        self, path: str, offset: int = 0, first: int = 0, end: int | None = None
    ) -> Iterator[Chunk]:
        with _opened(path) as saved:
            block = saved.block()
        stop = block.count if end is None else min(end, block.count)
        for begin in range(offset, stop, CHUNK_RECORDS):
            part = block.part(begin, min(begin + CHUNK_RECORDS, stop))
            number = first + begin - offset
            yield Chunk(part.whole(), part.count, number, begin + part.count, block.loose)

    def cardinality(self, path: str, offset: int = 0, end: int | None = None) -> int:
        """Return how many elements a range of the file has."""
        with _opened(path) as saved:
            count = saved.count
        return max(0, (count if end is None else min(end, count)) - offset)

    def splits(self, path: str, size: int) -> list[tuple[int, int | None]]:
        count = self.cardinality(path)
        step = max(1, count * size // max(1, size_of(path)))
        cuts = list(range(0, count, step))
        return list(zip(cuts, [*cuts[1:], None], strict=True))


@contextmanager
def _opened(path: str) -> Iterator[PartReader]:
    problem = f"{path} is not part of a saved dataset, or damaged"
    with translated(path, problem, "; save the dataset again"), stored(path) as file:
        yield PartReader(file)


def write_elements(node: Node, path: str | os.PathLike[str]) -> None:
    """Write all elements of a node into a folder; see `Dataset.save`."""
    folder = os.path.realpath(_folder("save", path))  # of a link, what it names is replaced
    _check_replaceable(folder)
    parts, context = PartsWriter("save", folder), Context(secrets.randbits(63))
    try:
        with closing(Reader(node, context)) as reader:
            while (block := reader.take(BLOCK)) is not None:
                parts.append(block)
        if not reader.position and not node.partial:
            context.counters.check_files()
        parts.finish(_LIST, {"version": VERSION})
        with parts.errors():
            _swap(parts.place, folder)
    finally:
        parts.remove()


def saved_parts(path: str | os.PathLike[str]) -> list[str]:
    """Return the files of the parts in a folder, in order.

    Raises
    ------
    DatasetError
        If there is no saved dataset, or its list is damaged.
    """
    folder = _folder("load", path)
    file = os.path.join(folder, _LIST)
    if not os.path.exists(file):
        raise DatasetError(f"load: {folder} is not a folder that Dataset.save wrote")
    with translated(file, f"load: {file} cannot be read", "; save the dataset again"):
        with open(file, encoding="utf-8") as opened:
            listed: Any = json.load(opened)
        if listed["version"] != VERSION:
            raise ValueError(f"it is of version {listed['version']}, this psnb reads {VERSION}")
        if type(listed["counts"]) is not list:
            raise ValueError("its counts are not a list")
        return [os.path.join(folder, part_name(number)) for number in range(len(listed["counts"]))]


def _check_replaceable(folder: str) -> None:
    """Raise if a folder, all of which would be removed, holds what `write_elements` did not write.

    Its ``dataset.json`` alone is not proof: other programs have a file of that name, too.
    """
    if not os.path.lexists(folder):
        return
    try:
        parts = saved_parts(folder)
    except DatasetError as error:
        raise DatasetError(
            f"save: {folder} exists, and is not a saved dataset: name another folder, or remove it"
        ) from error
    others = sorted(set(os.listdir(folder)) - {_LIST, *map(os.path.basename, parts)})
    if others:
        raise DatasetError(
            f"save: {folder} holds {shown(others[0])}, which is not part of a saved dataset: name "
            "another folder, or move it"
        )


def _folder(method: str, path: Any) -> str:
    found = path_text(f"{method}: path", path)
    if not is_local(found):
        raise ConfigurationError(
            f"{method}: {found} is not a local folder: all workers must see it"
        )
    return os.path.abspath(found)


def _swap(place: str, folder: str) -> None:
    """Rename a folder to its final name; one of that name goes."""
    old = f"{place}.old"
    try:
        with suppress(FileNotFoundError):
            os.rename(folder, old)
        os.rename(place, folder)
    except BaseException:  # also an interrupt between the two
        with suppress(OSError):  # none was there, or the new one is
            os.rename(old, folder)
        raise
    try:
        _check_replaceable(old)  # others may have put more there while this was written
    except DatasetError as error:
        logger.warning("save: what was in %s before is kept: %s", folder, error)
    else:
        shutil.rmtree(old, ignore_errors=True)
