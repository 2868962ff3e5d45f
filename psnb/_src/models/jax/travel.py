"""Steps that came to this process: equal ones are one, with the programs that it has compiled.

So a step that is an argument of a closure, and arrives with each, is compiled once a worker.
Steps are equal if their pickles are: functions by their code and what they refer to.

Threads: any may load a step.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax

from psnb._src.protocol.packing import dumps
from psnb._src.utils.text import with_article
from psnb._src.worker.context import current_context
from psnb.errors import SerializationError

KEPT = 16
"""How many steps a process keeps; one that comes when there are more pushes out the one that was
not used for longest, which is compiled again if it returns."""

_lock = threading.Lock()  # guards the kept objects, for a moment each

_kept: OrderedDict[bytes, Any] = OrderedDict()


def travelling(kind: Callable[..., Any], *made_of: Any) -> tuple[Any, ...]:
    """Return what the ``__reduce__`` of a step returns that is ``kind(*made_of)``."""
    try:
        packed = dumps(made_of, with_article(kind.__qualname__))
    except SerializationError as error:
        # Unchanged: the pickler of the step names the culprit, and where it is in the closure.
        raise error.__cause__ or error from None
    return _arrived, (hashlib.blake2b(packed, digest_size=16).digest(), kind, *made_of)


def _arrived(digest: bytes, kind: Callable[..., Any], *made_of: Any) -> Any:
    if current_context() is not None:
        # A closure waits for its step: another thread would only cost the way there and back.
        # It has no effect, and does no harm, if JAX has computed before.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    with _lock:
        if digest not in _kept:
            _kept[digest] = kind(*made_of)
        _kept.move_to_end(digest)
        found = _kept[digest]
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return found
