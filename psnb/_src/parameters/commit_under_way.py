"""CommitUnderWay: a commit that its thread does not wait for.

The thread sends it and goes on with something else; the event loop takes the answer. So a worker
computes while its last commit travels. Nearly always there is one answer: all shards are on one
server. Only where it says that they are not any more, a thread ``psnb-commit`` makes the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from psnb._src.parameters.commit import Outcome, Steps, drive
from psnb._src.parameters.request_batch import Request
from psnb._src.server import CommitParts

Ended = Callable[[Any], None]
"""Takes what came of a commit: how stale it was, or None; or an exception."""


class CommitUnderWay:
    """Goes through the steps of a commit, and tells what came of it, once.

    Parameters
    ----------
    steps : generator
        From `committing`.
    attempt : callable
        `ServerClient.attempt`, for a thread that waits.
    ended : callable
        Takes the outcome, in whichever thread has it.

    Attributes
    ----------
    requests : sequence of Request
        Those that are to be made next.
    """

    def __init__(
        self,
        steps: Steps[int | None],
        attempt: Callable[[Sequence[Request]], Sequence[Outcome]],
        ended: Ended,
    ) -> None:
        self._steps, self._attempt, self._ended = steps, attempt, ended
        self.requests = next(steps)

    @property
    def whole(self) -> bool:
        """Whether one message is to make all of it."""
        return isinstance(self.requests[0].operation, CommitParts)

    def answered(self, outcomes: Sequence[Outcome]) -> None:
        """Take the answers to `requests`."""
        try:
            self.requests = self._steps.send(outcomes)
        except StopIteration as ended:
            self._ended(ended.value)
        except Exception as error:  # the commit's outcome
            self._ended(error)
        else:
            threading.Thread(target=self.finish, name="psnb-commit", daemon=True).start()

    def finish(self) -> None:
        """Make all requests that are left, in this thread."""
        try:
            staleness = drive(self._steps, self._attempt, self.requests)
        except Exception as error:  # the commit's outcome
            self._ended(error)
        else:
            self._ended(staleness)
