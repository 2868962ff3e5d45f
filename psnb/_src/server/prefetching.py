"""Prefetch hints to the processor, in loops over rows of a table.

Random rows are not in the processor's caches, and without hints each waits for memory in turn. With
hints some rows ahead, many are loaded at the same time: a lookup takes a third of the time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

AHEAD = 16
"""How many rows ahead: 8 are too few, more gain nothing."""

_LINE = 64
_MOST_LINES = 8  # of a row; the processor prefetches the rest of a longer one by itself


def _ask_for(typing_context: Any, array: Any, row: Any, line: Any) -> Any:
    """Ask for one of the cache lines of a row of an array (``lines`` says how many to ask for).

    It is a hint, and affects speed only.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = arrayobj.make_array(signature.args[0])(context, builder, arguments[0])
        stride = cgutils.unpack_tuple(builder, made.strides)[0]
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        start = builder.bitcast(made.data, pointer)
        offset = builder.mul(arguments[2], ir.IntType(64)(_LINE))
        address = builder.gep(start, [builder.add(builder.mul(arguments[1], stride), offset)])
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        # For reading, kept in all caches, data.
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


ask_for: Any = intrinsic(_ask_for)
"""The function above for compiled code: ``ask_for(array, row, line)``."""


@njit
def lines(array):  # type: ignore[no-untyped-def]
    """Return how many cache lines of a row of a matrix to ask for."""
    return min((array.shape[1] * array.itemsize + _LINE - 1) // _LINE, _MOST_LINES)
