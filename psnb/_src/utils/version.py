"""Whether processes have the same version of psnb: its messages are compatible with no other.

The version is in `psnb`, which imports everything: so it is imported when it is needed.
"""

from __future__ import annotations

from importlib import import_module


class OtherVersionError(ConnectionRefusedError):
    """A process has another version of psnb than the one that calls it."""


def own_version() -> str:
    """Return the version of psnb in this process."""
    return str(import_module("psnb").__version__)


def check_version(reply: object) -> None:
    """Raise OtherVersionError if what answers has another version, as its first answer says."""
    theirs, own = reply.get("psnb") if isinstance(reply, dict) else None, own_version()
    if theirs is not None and theirs != own:
        raise OtherVersionError(
            f"it has psnb {theirs}, and this process psnb {own}: install the same version in both, "
            "and start it again"
        )
