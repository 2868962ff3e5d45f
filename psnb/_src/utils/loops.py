"""LoopErrors: an error in one round of a loop is logged, and the loop continues. Pure.

For all loops whose end nobody awaits: an error that ended one would go unnoticed, and its work
would stop.
"""

from __future__ import annotations

import logging
from types import TracebackType

logger = logging.getLogger("psnb")


class LoopErrors:
    """Logs what a block raises, unless that was logged the last time; one thread's, or one task's.

    Parameters
    ----------
    what : str
        What the block does, for the message.
    *passing : type
        Errors that the block raises all the same; so it does what is no `Exception`.
    """

    def __init__(self, what: str, *passing: type[Exception]) -> None:
        self._what, self._passing = what, passing
        self._said = ""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, self._passing):
            self._said = ""
            return False
        said, self._said = self._said, repr(error)
        if self._said != said:
            logger.error("%s failed; trying again and again", self._what, exc_info=error)
        return True
