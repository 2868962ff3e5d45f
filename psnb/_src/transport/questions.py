"""Questions: all that a notebook asks Dask's scheduler again and again, in one message a second.

Who wants to know something awaits `SchedulerQuestions.ask`, again and again: that is its pace. What
was asked until a message may go is in it, whichever strategy of the client asks. A plugin on the
scheduler (`Answers`) calls the handlers of psnb's other plugins, and sends what they return back.
What must be known at once, and what is asked once, goes by itself (`ask_scheduler`).

`next_beat` has other timers of the process strike together with it: a loop that wakes up costs more
than what it does then.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from distributed import Client, Scheduler, SchedulerPlugin

from psnb._src.dask_compat.plugins import add_handler, call_handler, workers_of
from psnb._src.dask_compat.reach import ask_scheduler
from psnb._src.utils.threads import start_task

INTERVAL = 1.0
"""Seconds between two messages."""

ANSWER_TIMEOUT = 10.0
"""Seconds within which the scheduler must answer: it may be busy with others' tasks."""

QUESTIONS, WORKERS = "psnb_questions", "psnb_workers"
"""The names of the handlers on the scheduler."""


def until_beat(now: float, seconds: float) -> float:
    """Return the seconds until the next of the moments that all timers of an interval share."""
    return seconds * (math.floor(now / seconds) + 1) - now


async def next_beat(seconds: float) -> None:
    """Sleep until the next of the moments that all who sleep for an interval share."""
    await asyncio.sleep(until_beat(asyncio.get_running_loop().time(), seconds))


class _Question(NamedTuple):
    handler: str
    arguments: Callable[[], Mapping[str, Any] | None]
    answer: asyncio.Future[Any]


class SchedulerQuestions:
    """Asks a client's scheduler; for the client's event loop only. Made by `questions_of`.

    Parameters
    ----------
    client : distributed.Client
        The client; only a weak reference is kept.
    """

    def __init__(self, client: Client) -> None:
        self._client = weakref.ref(client)
        self._asked: list[_Question] = []
        self._sent = 0.0  # when the last message was
        self._timer: asyncio.TimerHandle | None = None  # the next
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(
        self,
        handler: str,
        arguments: Callable[[], Mapping[str, Any] | None] = dict,
        *,
        at_once: bool = False,
    ) -> Any:
        """Call a handler of psnb's plugins with the next message, and return what it returns.

        Parameters
        ----------
        handler : str
            Its name.
        arguments : callable
            Called when the message is made. Returns the arguments; None if nothing is to be asked,
            and the answer is None.
        at_once : bool
            Whether the message goes now, with all that was asked: someone begins, and waits.

        Raises
        ------
        OSError
            If the scheduler does not answer in time, or the client is closed.
        RuntimeError
            What the handler raised, as a text.
        """
        loop = asyncio.get_running_loop()
        question = _Question(handler, arguments, loop.create_future())
        self._asked.append(question)
        if self._timer is None or at_once:
            now = loop.time()
            due = now if at_once else self._sent + until_beat(self._sent, INTERVAL)
            self._set_timer(loop.call_at(max(now, due), self._send))
        return await question.answer

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _send(self) -> None:
        asked, self._asked = self._asked, []
        self._set_timer(None)
        self._sent = asyncio.get_running_loop().time()
        start_task(self._exchange(asked), self._tasks, "psnb questions")

    async def _exchange(self, asked: Sequence[_Question]) -> None:
        pending, texts = [], []
        for each in asked:
            try:
                # Who has given up is not asked for.
                arguments = None if each.answer.done() else each.arguments()
            except Exception as error:  # of the asker's own: it must not cost the others theirs
                _set(each.answer, None, error)
                continue
            if arguments is None:
                _set(each.answer, None)
            else:
                pending.append(each)
                texts.append([each.handler, dict(arguments)])
        try:
            for each, answer in zip(pending, await self._answers(texts), strict=True):
                _set(each.answer, *answer)
        except BaseException as error:  # a cancellation, too, as the client is closed
            for each in pending:
                _set(each.answer, None, error)
            if not isinstance(error, Exception):
                raise

    async def _answers(self, questions: Sequence[Any]) -> Sequence[Any]:
        if not questions:
            return ()
        client = self._client()
        if client is None:
            raise ConnectionError("the Dask client is closed")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                answers = await ask_scheduler(client, QUESTIONS, questions=questions)
        except TimeoutError as error:  # it has no text
            raise TimeoutError(f"not within {ANSWER_TIMEOUT:g} s") from error
        if answers is None:  # Dask's, where there is no such handler
            raise ConnectionError("another Dask scheduler is there, without psnb")
        return [(value, RuntimeError(error) if error else None) for value, error in answers]


def _set(answer: asyncio.Future[Any], value: Any, error: BaseException | None = None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    elif isinstance(error, asyncio.CancelledError):
        answer.cancel()
    else:
        answer.set_exception(error)


_known: weakref.WeakKeyDictionary[Client, SchedulerQuestions] = weakref.WeakKeyDictionary()


def questions_of(client: Client) -> SchedulerQuestions:
    """Return what asks a client's scheduler: one for all that this process does there."""
    return _known.setdefault(client, SchedulerQuestions(client))


class Answers(SchedulerPlugin):
    """Answers what comes in one message; all on the scheduler's event loop."""

    name = "psnb-answers"
    idempotent = True

    async def start(self, scheduler: Scheduler) -> None:
        """Register the handlers; Dask calls this once."""
        self._scheduler = scheduler
        self._workers: dict[str, dict[str, Any]] = {}
        self._version = 0
        add_handler(scheduler, QUESTIONS, self.answer)
        add_handler(scheduler, WORKERS, self.workers)

    def answer(self, questions: Sequence[tuple[str, dict[str, Any]]]) -> list[list[Any]]:
        """Call handlers; return what each returns, and a text if it has raised."""
        found: list[list[Any]] = []
        for handler, arguments in questions:
            try:
                found.append([call_handler(self._scheduler, handler, arguments), ""])
            except Exception as error:  # one must not cost the others their answers
                found.append([None, f"{handler} on the Dask scheduler: {error!r}"])
        return found

    def workers(self, known: Sequence[Any] | None) -> list[Any]:
        """Return the workers' description by address, and its version.

        Parameters
        ----------
        known : sequence or None
            The version that the caller has: there is no description if nothing has changed since.
        """
        now = workers_of(self._scheduler)
        if now != self._workers:
            self._workers, self._version = now, self._version + 1
        version = [self._scheduler.id, self._version]
        # A list becomes a tuple on its way.
        return [version, None if known is not None and [*known] == version else now]
