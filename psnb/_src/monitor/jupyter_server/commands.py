"""Pending commands, from panels to coordinators, until the reply. Pure; used from one thread."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from psnb._src.monitor import protocol
from psnb._src.monitor.jupyter_server.coordinators import CoordinatorEntry

TIME_LIMIT = 30.0
"""Seconds within which a coordinator must reply."""

MOST_WAITING = 100
"""Limit of commands that wait for one coordinator's next post."""


@dataclass(eq=False)
class _Given:
    reply_to: Callable[[protocol.CommandReply], None]
    id: str
    known: CoordinatorEntry
    command: protocol.Command
    until: float


class Commands:
    """Commands without a reply so far.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._given: dict[str, _Given] = {}
        self._number = itertools.count()

    def give(
        self,
        known: CoordinatorEntry,
        command: protocol.Command,
        reply_to: Callable[[protocol.CommandReply], None],
    ) -> None:
        """Queue a command for the coordinator's next post.

        Parameters
        ----------
        known : CoordinatorEntry
            The coordinator.
        command : protocol.Command
            As the panel sent it.
        reply_to : callable
            Called with the reply, once, whatever happens.
        """
        if known.kind == "scheduler":
            error = "attached schedulers are for watching: give commands where the coordinator runs"
        elif known.gone:
            error = f"the coordinator cannot be reached: {known.gone}"
        elif len(known.waiting) >= MOST_WAITING:
            error = "too many commands wait for this coordinator already"
        else:
            # Each panel numbers its own commands, so the numbers are not unique.
            unique = f"{next(self._number)}"
            sent = protocol.Command(**{**command, "id": unique})
            known.waiting.append(sent)
            until = self._clock() + TIME_LIMIT
            self._given[unique] = _Given(reply_to, command["id"], known, sent, until)
            return
        reply_to(reply(command["id"], known.coordinator, error))

    def answer(self, answer: protocol.CommandReply) -> None:
        """Pass a coordinator's reply to the panel; a late one is dropped."""
        given = self._given.get(answer["id"])
        if given is not None and given.known.coordinator == answer["coordinator"]:
            del self._given[answer["id"]]
            given.reply_to(protocol.CommandReply(**{**answer, "id": given.id}))

    def expire(self) -> None:
        """Reply with an error to commands that are too old, or whose coordinator is gone."""
        now = self._clock()
        for unique, given in list(self._given.items()):
            if given.known.gone:
                error = f"the coordinator went before it replied: {given.known.gone}"
            elif now < given.until:
                continue
            elif given.command in given.known.waiting:
                given.known.waiting.remove(given.command)
                error = f"the kernel did not fetch it in {TIME_LIMIT:.0f} s, so it was withdrawn"
            else:
                error = f"no reply within {TIME_LIMIT:.0f} s; it may still be under way"
            del self._given[unique]
            given.reply_to(reply(given.id, given.known.coordinator, error))


def reply(identity: str, coordinator: str, error: str, result: str = "") -> protocol.CommandReply:
    """Return a reply from the hub itself."""
    return protocol.CommandReply(
        type="reply",
        version=protocol.VERSION,
        id=identity,
        coordinator=coordinator,
        error=error,
        result=result,
    )
