"""Calls of users' functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psnb._src.data.block import Block
from psnb._src.data.node import Node
from psnb._src.excerpt import error_text
from psnb.errors import DatasetError


def call(function: Callable[..., Any], element: Any) -> Any:
    """Call a function with an element: with a tuple's items as arguments, as tf.data does."""
    return function(*element) if type(element) is tuple else function(element)


def failure(node: Node, position: int, error: Exception, block: Block, index: int) -> DatasetError:
    """Return the error that a function failed on an element of a block."""
    problem = str(error) if isinstance(error, DatasetError) else error_text(error)
    if isinstance(error, StopIteration):
        # In TensorFlow 2, likewise, an OutOfRangeError in `map` is an InvalidArgumentError.
        problem = (
            "it raised StopIteration, which does not end a dataset: use take or from_generator"
        )
    made = node.error(position, problem, block.place(index))
    made.__cause__ = error
    return made
