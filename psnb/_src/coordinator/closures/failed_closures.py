"""FailedClosures: the errors so far, until the first of them is raised. Pure, no locks."""

from __future__ import annotations

from typing import NoReturn

from psnb._src.coordinator.closures.remote_value import RemoteValue


class FailedClosures:
    """Failed closures, the first one first; true if there are any."""

    def __init__(self) -> None:
        self._failed: list[RemoteValue] = []

    def __bool__(self) -> bool:
        return bool(self._failed)

    def add(self, remote: RemoteValue) -> None:
        """Add a closure that failed."""
        self._failed.append(remote)

    def throw(self) -> NoReturn:
        """Raise the first error with the others attached, and forget all of them."""
        failed, self._failed = self._failed, []
        first, *others = [remote.error() for remote in failed]
        if others:
            names = ", ".join(sorted({type(error).__name__ for error in others}))
            first.add_note(
                f"{len(others)} more closures failed before this was raised ({names}): "
                "they are in the attribute other_errors"
            )
        if raised := failed[0].raised():
            # It was looked at already, and whoever made a harmless call takes it for a new one.
            new = sum(not remote.raised() for remote in failed)
            since = f"{new} of the other errors are new" if new else "nothing new has failed"
            again = (
                f"this is the error that fetch() raised {raised}; {since}, and it is cleared now"
            )
            first.__notes__ = [again, *getattr(first, "__notes__", ())]
        first.other_errors = tuple(others)  # type: ignore[attr-defined]
        raise first
