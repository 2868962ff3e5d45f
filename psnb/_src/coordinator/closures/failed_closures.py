"""FailedClosures: the errors that came before one of them was raised. Pure, no locks."""

from __future__ import annotations

from typing import NoReturn

from psnb._src.coordinator.closures.remote_value import RemoteValue


class FailedClosures:
    """Failed closures, the first one first; true if there is any."""

    def __init__(self) -> None:
        self._failed: list[RemoteValue] = []

    def __bool__(self) -> bool:
        return bool(self._failed)

    def add(self, remote: RemoteValue) -> None:
        """Count a closure that raised."""
        self._failed.append(remote)

    def throw(self) -> NoReturn:
        """Raise the first error, the others attached, and begin the next generation."""
        failed, self._failed = self._failed, []
        first, *others = [remote.error() for remote in failed]
        if others:
            names = ", ".join(sorted({type(error).__name__ for error in others}))
            first.add_note(
                f"{len(others)} more closures failed before this was raised ({names}): "
                "they are in the attribute other_errors"
            )
        first.other_errors = tuple(others)  # type: ignore[attr-defined]
        raise first
