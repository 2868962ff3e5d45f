"""LoopErrors: what one round of a loop raises is logged, and the loop goes on. Pure.

For all loops that nobody waits for: what ends one of them would be read by nobody, and what it
looks after would be looked after no more.
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
