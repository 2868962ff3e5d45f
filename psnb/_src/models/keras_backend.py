"""Keras's backend in a process: the one of the notebook whose models come here.

Imports no Keras: it is called before that may be done. Threads: closures of several may arrive at
a time; one at a time imports Keras.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import weakref
from typing import Any

from psnb.errors import ConfigurationError

_importing = threading.Lock()
"""Held while a model is unpickled, so that no thread sees a partly imported Keras."""

_known: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""Programs that were unpickled here and live: each is compiled once for all closures with it."""


def unpickled(backend: str, name: str, payload: bytes) -> Any:
    """Return an unpickled object from a process whose Keras has this backend.

    Once for a name; the pickle has a class and its arguments.

    Raises
    ------
    ConfigurationError
        If Keras was imported here with another one, which it keeps.
    """
    with _importing:
        keras = sys.modules.get("keras")
        if keras is None:
            os.environ["KERAS_BACKEND"] = backend
        elif (other := keras.backend.backend()) != backend:
            raise ConfigurationError(
                f"the model was made in a process whose Keras has the backend {backend!r}, and "
                f"process {os.getpid()} has imported Keras with {other!r}, which it keeps. Start "
                f"workers and notebook with the same environment variable KERAS_BACKEND={backend}"
            )
        found = _known.get(name)
        if found is None:
            kind, *parts = pickle.loads(payload)
            found = _known[name] = kind(*parts)
        return found
