"""FailedClosures: the errors so far, until the first of them is raised. Pure, no locks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue
from psnb._src.utils.text import counted


class FailedClosures:
    """Failed closures, the first one first; true if there are any.

    Attributes
    ----------
    cancelled : int
        How many closures were cancelled because of them.
    """

    def __init__(self) -> None:
        self._failed: list[RemoteValue] = []
        self.cancelled = 0

    def __bool__(self) -> bool:
        return bool(self._failed)

    def add(self, remote: RemoteValue) -> None:
        """Add a closure that failed."""
        self._failed.append(remote)

    def fetched(self) -> bool:
        """Return whether `RemoteValue.fetch` has raised each of the errors."""
        return all(remote.raised() for remote in self._failed)

    def clear(self) -> str:
        """Forget errors that were fetched; return what was cancelled with them, if anything."""
        failed, cancelled = self._failed, self.cancelled
        self._failed, self.cancelled = [], 0
        if not cancelled:
            return ""
        return (
            f"fetch() has raised {failed[0].raised()} why {counted(len(failed), 'closure')} "
            f"failed; {cancelled} queued ones were cancelled with it: schedule them again. From "
            "here on closures run as before"
        )

    def take(self) -> list[RemoteValue]:
        """Return the failed closures, for `raise_failed`, and forget them."""
        failed, self._failed, self.cancelled = self._failed, [], 0
        return failed

    def restore(self, failed: list[RemoteValue]) -> None:
        """Undo `take`: they were not raised."""
        self._failed[:0] = failed


def raise_failed(failed: Sequence[RemoteValue]) -> NoReturn:
    """Raise the error of the first of some failed closures with the others attached."""
    first, *others = [remote.error() for remote in failed]
    _attach(first, others)
    if raised := failed[0].raised():
        # It was looked at already, and the maker of a harmless call takes it for a new one.
        new = sum(not remote.raised() for remote in failed)
        since = f"{new} of the other errors are new" if new else "nothing new has failed"
        again = f"this is the error that fetch() raised {raised}; {since}, and it is cleared now"
        first.__notes__ = [again, *getattr(first, "__notes__", ())]
    raise first


def raise_together(first: BaseException, remotes: Iterable[RemoteValue]) -> None:
    """Attach to an error that `fetch` raises those of the others that it was to fetch, so far."""
    failed = [each for each in remotes if each.status is ClosureStatus.FAILED]
    new = [each for each in failed if not each.raised()]
    _attach(first, [each.note_raised() for each in new])


def _attach(first: BaseException, others: Sequence[BaseException]) -> None:
    if others:
        names = ", ".join(sorted({type(error).__name__ for error in others}))
        first.add_note(
            f"{counted(len(others), 'more closure')} failed before this was raised ({names}): "
            "they are in the attribute other_errors"
        )
    first.other_errors = tuple(others)  # type: ignore[attr-defined]
