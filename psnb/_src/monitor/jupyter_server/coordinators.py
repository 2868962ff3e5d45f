"""The coordinators that the hub knows, live and gone, with limits. Pure; used from one thread."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import msgspec

from psnb._src.monitor import protocol
from psnb._src.monitor.feed import Backlog, Extracts
from psnb._src.utils.text import truncate

# Decodes bytes from the network into messages of the wire contract. Pure.
#
# Compiled code (msgspec) reads and checks in one pass, by the contract's own types, so a large body
# blocks the event loop for milliseconds only. Unknown fields are left out. The callers limit the
# size before they call this.


class MalformedError(ValueError):
    """It is not a valid message; says why, in plain words, with short quotes."""


class VersionError(MalformedError):
    """It is a message of another version of the contract."""


class _Head(TypedDict):
    version: object


class _Asked(TypedDict):
    id: str


class _Message(TypedDict):
    type: Literal["hello", "command", "attach", "detach"]


_HEAD = msgspec.json.Decoder(_Head)
_BATCH = msgspec.json.Decoder(protocol.HubPost)
_EXTRACTS = msgspec.json.Decoder(Extracts)
_ASKED = msgspec.json.Decoder(_Asked)
_MESSAGE = msgspec.json.Decoder(_Message)
_MESSAGE_BY_TYPE: dict[str, msgspec.json.Decoder[Any]] = {
    "hello": msgspec.json.Decoder(protocol.Hello),
    "command": msgspec.json.Decoder(protocol.Command),
    "attach": msgspec.json.Decoder(protocol.Attach),
    "detach": msgspec.json.Decoder(protocol.Attach),
}


def batch(body: bytes) -> protocol.HubPost:
    """Return the body of a kernel's post.

    Raises
    ------
    VersionError
        If it has another version.
    MalformedError
        If it is not a `protocol.HubPost`.
    """
    found: protocol.HubPost = _read(body, _BATCH)
    return found


def extracts(body: bytes) -> Extracts:
    """Return the answer of a scheduler's route; raises as `batch` does."""
    found: Extracts = _read(body, _EXTRACTS)
    return found


def decode(text: str | bytes) -> protocol.Hello | protocol.Command | protocol.Attach:
    """Return a panel's message; raises as `batch` does."""
    kind = _decoded(text, _MESSAGE)["type"]
    found: protocol.Hello | protocol.Command | protocol.Attach = _read(text, _MESSAGE_BY_TYPE[kind])
    return found


def asked(text: str | bytes) -> str:
    """Return the id of a message that `decode` refuses; empty if it has no id that is a text."""
    try:
        return truncate(_decoded(text, _ASKED)["id"])
    except MalformedError:
        return ""


def _read(text: str | bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        found = _decoded(text, decoder)
    except MalformedError:
        # First the version: another version may have other fields, which would explain the error.
        _require_version(_decoded(text, _HEAD))
        raise
    _require_version(found)
    return found


def _require_version(found: Any) -> None:
    if found["version"] != protocol.VERSION:
        version = truncate(repr(found["version"]), 100)
        raise VersionError(f"version {version} of psnb's protocol instead of {protocol.VERSION}")


def _decoded(text: str | bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise MalformedError(truncate(str(error))) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise MalformedError(f"it is not JSON: {truncate(str(error))}") from None
    except RecursionError:
        raise MalformedError("it is nested too deeply") from None


# Rate limit: a number of uses per second on average, and twice that at once.


class Allowance:
    """A token bucket: it fills steadily, and each use takes one token. Used from one thread.

    Parameters
    ----------
    per_second : float
        Uses per second in the long run; the bucket starts full, and holds two seconds' worth.
    clock : callable
        Returns seconds.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._left = 2 * per_second
        self._seen = clock()

    def allows(self) -> bool:
        """Take a token, and return whether there was one."""
        now = self._clock()
        gained = (now - self._seen) * self._per_second
        self._left, self._seen = min(self._left + gained, 2 * self._per_second), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


MOST_SOURCES = 200
"""Limit of known coordinators."""

MOST_GONE = 50
"""Limit of those that are gone; the first to go are forgotten first."""

POSTS_PER_SECOND = 20.0
"""Posts that one coordinator may send; it sends four, and one for each reply."""


class TooManyError(Exception):
    """The hub has as many live coordinators, or connected pages, as it allows."""


@dataclass(eq=False)
class CoordinatorEntry:
    """One coordinator."""

    coordinator: str
    kind: Literal["kernel", "scheduler"]
    address: str  # of the scheduler that was attached
    heard: float  # when its last message came, by the hub's clock
    allowance: Allowance
    backlog: Backlog = field(default_factory=Backlog)
    kernel: str = ""
    process: int | None = None  # of the kernel, as the server sees it; None until checked
    notebook: str = ""
    gone: str = ""
    waiting: list[protocol.Command] = field(default_factory=list)  # for its next post

    def add(self, update: protocol.Update) -> bool:
        """Add an update; return whether a full one is needed."""
        if "identity" in update and self.kind == "kernel":
            self.kernel = update["identity"]["kernel"]
        return self.backlog.add(update)

    def listed(self) -> protocol.Source:
        """Return the row that panels get for it."""
        return protocol.Source(
            coordinator=self.coordinator,
            kind=self.kind,
            notebook=self.notebook,
            kernel=self.kernel,
            address=self.address,
            gone=self.gone,
        )


class CoordinatorRegistry:
    """All of them, in the order in which they came.

    Parameters
    ----------
    clock : callable
        Returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[str, CoordinatorEntry] = {}
        self._dismissed: dict[str, None] = {}  # the last of them

    def __iter__(self) -> Iterator[CoordinatorEntry]:
        return iter(list(self._known.values()))

    def get(self, coordinator: str) -> CoordinatorEntry | None:
        """Return one; None if it is not known."""
        return self._known.get(coordinator)

    def add(
        self, coordinator: str, kind: Literal["kernel", "scheduler"], address: str
    ) -> CoordinatorEntry:
        """Add one.

        Raises
        ------
        TooManyError
            If the limit is reached, and none of them is gone.
        """
        if len(self._known) >= MOST_SOURCES and not self._forget_first_gone():
            raise TooManyError(f"{MOST_SOURCES} coordinators live on this Jupyter server already")
        now = self._clock()
        known = CoordinatorEntry(
            coordinator, kind, address, now, Allowance(POSTS_PER_SECOND, self._clock)
        )
        self._known[coordinator] = known
        return known

    def end(self, known: CoordinatorEntry, reason: str) -> None:
        """Note that a coordinator is gone; its history stays."""
        known.gone = reason
        known.waiting.clear()
        # The last to go comes last, even if it was added first.
        self._known[known.coordinator] = self._known.pop(known.coordinator)
        if self._gone() > MOST_GONE:
            self._forget_first_gone()

    def full_of_gone(self) -> bool:
        """Return whether one more that is gone would push out the first."""
        return self._gone() >= MOST_GONE

    def _gone(self) -> int:
        return sum(bool(each.gone) for each in self)

    def forget(self, coordinator: str) -> None:
        """Remove one with its history; harmless if it is not known."""
        self._known.pop(coordinator, None)

    def dismiss(self, coordinator: str) -> None:
        """Remove one that is gone for good: its scheduler may go on reporting it."""
        self.forget(coordinator)
        self._dismissed[coordinator] = None
        if len(self._dismissed) > MOST_SOURCES:
            del self._dismissed[next(iter(self._dismissed))]

    def was_dismissed(self, coordinator: str) -> bool:
        """Return whether it was dismissed."""
        return coordinator in self._dismissed

    def _forget_first_gone(self) -> bool:
        first = next((each for each in self if each.gone), None)
        if first is not None:
            self.forget(first.coordinator)
        return first is not None


# Pending commands, from panels to coordinators, until the reply. Pure; used from one thread.

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
        known : Known
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
