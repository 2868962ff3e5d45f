"""not_exportable: why a model cannot be exported, by the user's own lines. Pure."""

from __future__ import annotations

from psnb._src.runtime.remote_traceback import RemoteTraceback
from psnb.errors import ConfigurationError


def not_exportable(what: str, error: Exception, hint: str = "") -> ConfigurationError:
    """Return what to raise, ``from None``, where a framework cannot trace a model.

    The user's lines are a note. The framework's own traceback, of up to 250 lines, is the error's
    ``__context__``, which is not shown.
    """
    said = str(error).partition("\n\n")[0]  # then come frameworks' advice and addresses
    found = ConfigurationError(
        f"psnb.export: {what} cannot be exported for batches of any size: "
        f"{type(error).__name__}: {said[:600].rstrip('. ')}{hint}"
    )
    if lines := RemoteTraceback.of(error).text():
        found.add_note(lines)
    return found
