"""What exports of all frameworks share: the tracing, and the form of results. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from psnb._src.models.export.feeds import Fetch
from psnb._src.models.export.nested import check_nested, leaves_of
from psnb._src.protocol.remote_traceback import RemoteTraceback
from psnb.errors import ConfigurationError


@contextmanager
def tracing(what: str, hint: Callable[[Exception], str] = lambda error: "") -> Iterator[None]:
    """Raise ConfigurationError where a framework cannot trace a model, by the user's own lines.

    These are a note. The framework's own traceback, of up to 250 lines, is the error's
    ``__context__``, which is not shown.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:  # whatever the user's code raises when it is traced
        message = str(error).partition("\n\n")[0]  # then come frameworks' advice and addresses
        found = ConfigurationError(
            f"psnb.export: {what} cannot be exported for batches of any size: "
            f"{type(error).__name__}: {message[:600].rstrip('. ')}{hint(error)}"
        )
        if lines := RemoteTraceback.of(error).text():
            found.add_note(lines)
        raise found from None


def returned(outputs: Any, forms: Iterable[tuple[str, Iterable[Any]]]) -> tuple[Any, list[Fetch]]:
    """Return the form of what a model returns, and its arrays.

    Parameters
    ----------
    outputs : object
        The structure, with numbers in place of its arrays.
    forms : iterable of (str, iterable)
        For each number dtype and shape; what is not an int in a shape depends on the batch.
    """
    form = check_nested(outputs)
    names = [name for _, name in sorted(leaves_of(form))]
    return form, [
        Fetch(name, dtype, tuple(size if isinstance(size, int) else None for size in shape))
        for name, (dtype, shape) in zip(names, forms, strict=True)
    ]
