"""Loops that numba has compiled once and keeps in files."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def load_compiled() -> None:
    """Load what is kept of the loops of psnb's modules that are imported; compile nothing.

    The first call of each would load it, and the first of all what numba needs for that: a third
    of a second.

    Relies on numba: how a dispatcher finds what is kept, and under which keys.
    """
    with suppress(ImportError, AttributeError):
        _skip_scipy()
    for name, module in list(sys.modules.items()):
        if name.startswith("psnb."):
            for each in list(vars(module).values()):
                if getattr(each, "__module__", None) == name and hasattr(
                    getattr(each, "_cache", None), "_cache_file"
                ):
                    with suppress(Exception):  # the first call raises it
                        _load(each)


def _skip_scipy() -> None:
    """Have numba not import scipy.linalg, a tenth of a second, only to see that it is there.

    It looks again when it compiles what uses BLAS. Relies on ``numba.np.linalg.ensure_blas``, which
    ``numba.np.arraymath`` calls when it is imported.
    """
    linalg: Any = import_module("numba.np.linalg")
    if find_spec("scipy"):
        ensure, linalg.ensure_blas = linalg.ensure_blas, lambda: None
        try:
            math: Any = import_module("numba.np.arraymath")
            math.ensure_blas = ensure
        finally:
            linalg.ensure_blas = ensure


def _load(dispatcher: Any) -> None:
    cache = dispatcher._cache
    codegen = dispatcher.targetctx.codegen()
    for signature, *rest in list(cache._cache_file._load_index()):
        if (signature, *rest) == cache._index_key(signature, codegen):
            dispatcher.compile(signature)
