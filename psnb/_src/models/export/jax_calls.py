"""The calls that an exported JAX program may make besides XLA's operations. Pure.

XLA turns some of the calls that `jax.export` guarantees into operations of its own, and checks
these. The routines of LAPACK and cuSOLVER get addresses, and take the sizes of their results from
the program: one with results that are too small writes outside of them. So their sizes are checked
here, and must be known: sizes that depend on the batch are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

_NAMED = re.compile(
    r"custom_call\s*@(?:\"([^\"]*)\"|([\w.$-]+))|call_target_name\s*=\s*\"([^\"]*)\""
)
_OF_XLA = re.compile(
    r"(mhlo|chlo)\.\w+|stablehlo\.dynamic_\w+|ApproxTopK|shape_assertion"
    r"|Sharding|SPMD\w+Shape|annotate_device_placement",
    re.ASCII,
)
"""Targets that XLA checks. Others are refused: they call addresses in the process that a program
comes from (callbacks), give uninitialized memory (``AllocateBuffer``), or take sizes from their
arguments."""

_ROUTINE = re.compile(r"lapack_([sdcz])(\w+)_ffi|cusolver_(\w+)_ffi|cu_(\w+)", re.ASCII)
_CALL = re.compile(
    r"custom_call @(\w+)\([^()\n]*\) \{([^\n]*)\} : \(([^()\n]*)\) -> \(?(tensor<[^()\n]*>)",
    re.ASCII,
)
_CONFIG = re.compile(r"backend_config = \{([^{}]*)\}")
_ARRAY = re.compile(r"tensor<((?:\d+x)*)(\w+|complex<\w+>)>", re.ASCII)
_KINDS = {"s": "f32", "d": "f64", "c": "complex<f32>", "z": "complex<f64>"}
_ALL, _SOME, _NONE, _LEFT, _RIGHT = map(ord, "ASNLR")


class _Array(NamedTuple):
    shape: tuple[int, ...]
    kind: str


def foreign_calls(text: str) -> list[str]:
    """Return what a program in StableHLO calls that no exported model may call."""
    named = Counter("".join(found) for found in _NAMED.findall(text))
    checked = Counter(_routines(re.sub(r'"[^"]*"', '""', text)))
    return [
        name
        for name, count in named.items()
        if not _OF_XLA.fullmatch(name) and checked[name] != count
    ]


def _routines(text: str) -> Iterator[str]:
    """Yield the names of the calls of routines whose arguments and results fit each other."""
    for name, options, given, made in _CALL.findall(text):
        try:
            takes, gives = _arrays(given), _arrays(made)
            if (takes, gives) == _expected(name, takes, gives, _numbers(options)):
                yield name
        except (ValueError, IndexError, KeyError):  # of other numbers of arrays or axes
            continue


def _arrays(text: str) -> list[_Array]:
    found = [_ARRAY.fullmatch(each.strip()) for each in text.split(",")]
    if None in found:
        raise ValueError
    return [_Array(tuple(map(int, each[1].split("x")[:-1])), each[2]) for each in found if each]


def _numbers(options: str) -> dict[str, int]:
    """Return the options of a routine that are numbers."""
    (config,) = _CONFIG.findall(options)
    pairs = (each.partition(" = ")[::2] for each in config.split(", ") if each)
    numbers = ((name, value.partition(" : ")[0]) for name, value in pairs)
    return {name: int(value) for name, value in numbers if value.isdecimal()}


def _expected(
    name: str, takes: list[_Array], gives: list[_Array], options: dict[str, int]
) -> tuple[list[_Array], list[_Array]] | None:
    """Return what a routine must take and give, if it is known and its first array is good."""
    match = _ROUTINE.fullmatch(name)
    if match is None:
        return None
    if match[4] == "threefry2x32_ffi":
        return [takes[0]._replace(kind="ui32")] * 4, [takes[0]._replace(kind="ui32")] * 2
    if match[4] == "lu_pivots_to_permutation":
        (*batch, count), (*_, size) = takes[0].shape, gives[0].shape
        good = count <= size
        return ([_Array((*batch, count), "i32")], [_Array((*batch, size), "i32")]) if good else None
    kind = _KINDS[match[1]] if match[1] else takes[0].kind
    *batch, m, n = takes[0].shape
    k = min(m, n)

    def of(*shape: int, kind: str = kind) -> _Array:
        return _Array((*batch, *shape), kind)

    whole, info = of(m, n), of(kind="i32")
    real = kind.removeprefix("complex<").removesuffix(">")
    match match[2] or match[3]:
        case "getrf":
            return [whole], [whole, of(k, kind="i32"), info]
        case "geqrf":
            return [whole], [whole, of(k)]
        case "orgqr" | "ungqr" if (count := takes[1].shape[-1]) <= n <= m:
            return [whole, of(count)], [whole]
        case "potrf" if m == n:
            return [whole], [whole, info]
        case "syevd" | "heevd" if m == n:
            return [whole], [whole, of(n, kind=real), info]
        case "trsm" if m == n and options["side"] in (_LEFT, _RIGHT):
            *_, p, q = takes[1].shape
            good = m == (p if options["side"] == _LEFT else q)
            return ([whole, of(p, q)], [of(p, q)]) if good else None
        case "gesdd" if options["mode"] in (_ALL, _NONE):
            return [whole], [whole, of(k, kind=real), of(m, m), of(n, n), info]
        case "gesdd" if options["mode"] == _SOME:
            return [whole], [whole, of(k, kind=real), of(m, k), of(k, n), info]
        case "gesvdj":
            return [whole], [whole, of(k, kind=real), of(m, m), of(n, n), info]
    return None
