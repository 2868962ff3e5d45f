"""replaced_files: the same chain over other files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from psnb._src.data import nodes
from psnb._src.data.block import Block
from psnb._src.data.node import Node
from psnb.errors import ConfigurationError


def replaced_files(node: Node, files: Sequence[str]) -> Node:
    """Return a chain that reads other files, in place of all that it reads.

    Raises
    ------
    ConfigurationError
        If it reads no files, or has several sources of files.
    """
    sources = _sources(node)
    if len(sources) != 1:
        found = "has no source that is files" if not sources else "has several sources of files"
        raise ConfigurationError(
            f"with_files replaces the files of a dataset that has one source, and this one {found}"
            ":\n" + "\n".join(node.lines())
        )
    return _replaced(node, files)


def _sources(node: Node) -> list[Node]:
    if isinstance(node, nodes.Files | nodes.FileNames):
        return [node]
    return [source for each in node.inputs for source in _sources(each)]


def _replaced(node: Node, files: Sequence[str]) -> Node:
    if isinstance(node, nodes.Files):
        return dataclasses.replace(node, files=nodes.file_ranges(files))
    if isinstance(node, nodes.FileNames):
        names = np.empty(len(files), object)
        names[:] = files
        return nodes.FileNames(Block(None, (names,), len(names)))

    def of(value: Any) -> Any:
        if isinstance(value, Node):
            return _replaced(value, files)
        if isinstance(value, tuple) and any(isinstance(each, Node) for each in value):
            return tuple(map(of, value))
        return value

    assert dataclasses.is_dataclass(node)
    own = {each.name: getattr(node, each.name) for each in dataclasses.fields(node) if each.init}
    return dataclasses.replace(node, **{name: of(value) for name, value in own.items()})
