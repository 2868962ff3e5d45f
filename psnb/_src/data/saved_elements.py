"""The folder that `Dataset.save` writes: parts, and ``dataset.json`` that lists them.

It is written beside its place and renamed into it when it is complete.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from psnb._src.addresses import is_local
from psnb._src.checks import path_text
from psnb._src.data.block import BLOCK, Block, concatenate
from psnb._src.data.formats import part_arrays
from psnb._src.data.iteration_context import Context
from psnb._src.data.node import Node
from psnb._src.data.reader import Reader
from psnb._src.excerpt import shown
from psnb.errors import ConfigurationError, DatasetError

_PART_BYTES = 1 << 24
_VERSION = 1
_LIST = "dataset.json"


def write_elements(node: Node, path: str | os.PathLike[str]) -> None:
    """Write all elements of a node into a folder; see `Dataset.save`."""
    folder = os.path.realpath(_folder("save", path))  # of a link, what it names is replaced
    _check_replaceable(folder)
    place = f"{folder}.{secrets.token_hex(4)}"
    try:
        with _writing(folder):
            os.makedirs(place)
        counts = [_write(place, number, each) for number, each in enumerate(_parts(node))]
        with _writing(folder):
            with open(os.path.join(place, _LIST), "w", encoding="utf-8") as file:
                json.dump({"version": _VERSION, "counts": counts}, file)
            _swap(place, folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def saved_parts(path: str | os.PathLike[str]) -> list[str]:
    """Return the files of the parts in a folder, in order.

    Raises
    ------
    DatasetError
        If there is no saved dataset, or its list is damaged.
    """
    folder = _folder("load", path)
    try:
        with open(os.path.join(folder, _LIST), encoding="utf-8") as file:
            listed: Any = json.load(file)
        if listed["version"] != _VERSION:
            raise ValueError(f"it is of version {listed['version']}, this psnb reads {_VERSION}")
        if type(listed["counts"]) is not list:
            raise ValueError("its counts are no list")
        return [os.path.join(folder, _name(number)) for number in range(len(listed["counts"]))]
    except FileNotFoundError as error:
        raise DatasetError(f"load: {folder} is no folder that Dataset.save has written") from error
    except Exception as error:
        # JSON that is damaged raises errors of many classes.
        raise DatasetError(
            f"load: {folder}/{_LIST} cannot be read: {type(error).__name__}: {error}; save the "
            "dataset again"
        ) from error


def _check_replaceable(folder: str) -> None:
    """Raise if a folder, all of which would be removed, holds what `write_elements` did not write.

    Its ``dataset.json`` alone is no proof: other programs have a file of that name, too.
    """
    if not os.path.lexists(folder):
        return
    try:
        parts = saved_parts(folder)
    except DatasetError as error:
        raise DatasetError(
            f"save: {folder} exists, and is no saved dataset: name another folder, or remove it"
        ) from error
    others = sorted(set(os.listdir(folder)) - {_LIST, *map(os.path.basename, parts)})
    if others:
        raise DatasetError(
            f"save: {folder} holds {shown(others[0])}, which is no part of a saved dataset: name "
            "another folder, or move it"
        )


def _folder(method: str, path: Any) -> str:
    found = path_text(f"{method}: path", path)
    if not is_local(found):
        raise ConfigurationError(f"{method}: {found} is no local folder: name one all workers see")
    return os.path.abspath(found)


def _parts(node: Node) -> Iterator[Block]:
    """Yield the elements of a node, some megabytes at a time."""
    reader = Reader(node, Context(secrets.randbits(63)))
    held: list[Block] = []
    size = 0
    try:
        while (block := reader.take(BLOCK)) is not None:
            held.append(block)
            size += sum(column.nbytes for column in block.columns)
            if size >= _PART_BYTES:
                yield concatenate(held)
                held, size = [], 0
        if held:
            yield concatenate(held)
    finally:
        reader.close()


def _write(place: str, number: int, block: Block) -> int:
    try:
        arrays = part_arrays(block)
    except DatasetError as error:
        raise DatasetError(f"save: {error}") from error
    with _writing(place):
        np.savez(os.path.join(place, _name(number)), **arrays)  # type: ignore[arg-type]
    return block.count


def _name(number: int) -> str:
    return f"{number:05}.npz"


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
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _writing(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DatasetError(f"save: {folder} cannot be written: {error}") from error
