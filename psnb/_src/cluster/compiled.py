"""Loops that numba has compiled once and keeps in files."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any


def load_compiled() -> None:
    """Load what is kept of the loops of psnb's modules that are imported; compile nothing.

    The first call of each would load it, and the first of all what numba needs for that: a third
    of a second.

    Relies on numba: how a dispatcher finds what is kept, and under which keys.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("psnb."):
            for each in list(vars(module).values()):
                if getattr(each, "__module__", None) == name and hasattr(
                    getattr(each, "_cache", None), "_cache_file"
                ):
                    with suppress(Exception):  # the first call raises it
                        _load(each)


def _load(dispatcher: Any) -> None:
    cache = dispatcher._cache
    codegen = dispatcher.targetctx.codegen()
    for signature, *rest in list(cache._cache_file._load_index()):
        if (signature, *rest) == cache._index_key(signature, codegen):
            dispatcher.compile(signature)
