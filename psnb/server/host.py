"""Host: the shards that a server holds, as the shard itself or as a copy of it.

It runs the operations on them, and sees to it that what changes a shard reaches its copies. All of
it runs on the server's event loop, one operation after the other, so that each is atomic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from distributed.protocol.pickle import loads

from psnb.errors import InternalError, PsnbError, SerializationError
from psnb.server.commits import CommitLog
from psnb.server.copy import DEPOSED, DONE, ITSELF, Connect, Copy, CopyState
from psnb.server.reply import Answer, Reply
from psnb.server.shard import Content, Shard
from psnb.server.tables import TABLES
from psnb.server.traffic import Traffic

Operation = tuple[int, str, str, Any]
"""The number of a shard, a table there or "", an operation and its arguments."""


class Role(StrEnum):
    """What a server is for a shard."""

    PRIMARY = "primary"
    """It answers, and sends changes on."""
    COPY = "copy"
    """It does what the primary has done."""
    RETIRED = "retired"
    """It was the primary and says that the shard is elsewhere."""


_TRANSITIONS = {
    (Role.COPY, Role.PRIMARY),
    (Role.PRIMARY, Role.RETIRED),
    (Role.RETIRED, Role.PRIMARY),
}


class _Held:
    """A shard, and what this server is for it."""

    def __init__(self, index: int, shard: Shard, role: Role) -> None:
        self.index, self.shard, self.role = index, shard, role
        self.copies: dict[str, Copy] = {}

    def enter(self, role: Role) -> None:
        if role is not self.role and (self.role, role) not in _TRANSITIONS:
            raise InternalError(f"shard {self.index} cannot become {role} when it is {self.role}")
        self.role = role

    def deposed(self) -> None:
        if self.role is Role.PRIMARY:
            self.enter(Role.RETIRED)
        for copy in self.copies.values():
            copy.move_on()
        self.copies.clear()


class Host:
    """Runs operations on the shards of a server.

    Parameters
    ----------
    name : str
        The server's, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: dict[int, _Held] = {}
        self._filling: set[asyncio.Task[None]] = set()
        self._traffic = Traffic()

    def run(self, operations: Sequence[Operation], reply: Reply, connect: Connect) -> None:
        """Run the operations of a message, without others in between."""
        for operation in operations:
            reply.answers.append(self._answer(operation, reply, connect))
        reply.ran()

    def close(self) -> None:
        """Forget all shards, and hang up on the servers of their copies."""
        for task in self._filling:
            task.cancel()
        for held in self._held.values():
            held.deposed()
        self._held.clear()

    def _answer(self, operation: Operation, reply: Reply, connect: Connect) -> Answer:
        index, table, name, packed = operation
        try:
            arguments = plain(packed)
        except Exception as error:  # whatever a class may raise while it is made again
            of = f"{name} of {table!r}" if table else name
            text = (
                f"the arguments of {of} cannot be unpickled on {self._name}: {error!r}. Install "
                "there the modules that they need, or define them in the notebook"
            )
            return "error", SerializationError(text)
        try:
            if index == ITSELF:
                return "OK", self._manage(name, arguments, reply, connect)
            held = self._held.get(index)
            if held is None or held.role is not Role.PRIMARY:
                return ("moved",)
            result = held.shard.call(table, name, arguments)
            self._traffic.count(table, name, arguments, result)
            if held.copies and held.shard.changes(table, name):
                for copy in held.copies.values():
                    copy.forward(table, name, arguments, reply, len(reply.answers))
            return "OK", result, held.shard.version
        except PsnbError as error:
            return "error", error
        except Exception as error:  # a bug of ours must reach its caller, not only the log
            return "error", InternalError(f"{name} of {table!r} on {self._name}: {error!r}")

    def _manage(
        self, operation: str, arguments: Mapping[str, Any], reply: Reply, connect: Connect
    ) -> Any:
        match operation:
            case "follow":
                return self._follow(**arguments)
            case "adopt":
                return self._adopt(**arguments)
            case "install":
                return self._install(**arguments)
            case "warm" | "sync":
                return DONE  # it was compiled before; all that came before has been done
            case "host":
                return self._host(**arguments)
            case "describe":
                return self._describe()
            case "statistics":
                return self._statistics()
            case "load":
                return self._load()
            case "copy":
                return self._copy(connect=connect, **arguments)
            case "let_go":
                return self._let_go(**arguments)
            case "promote":
                return self._promote(**arguments)
            case "retire":
                return self._retire(reply, **arguments)
            case "drop":
                return self._drop(**arguments)
        raise InternalError(f"{self._name} has no operation {operation!r}")

    # What the strategy asks for.

    def _host(self, shards: Sequence[int]) -> None:
        """Hold new shards, without anything in them."""
        for index in shards:
            self._held[index] = _Held(index, self._shard(index), Role.PRIMARY)

    def _describe(self) -> dict[int, tuple[str, dict[str, str]]]:
        """Return the role for each shard, and how far its copies are."""
        return {
            index: (held.role.value, {key: copy.state.value for key, copy in held.copies.items()})
            for index, held in self._held.items()
        }

    def _statistics(self) -> dict[int, dict[str, int]]:
        """Return the bytes of all tables of each shard, copies too."""
        return {index: held.shard.call("", "statistics", {}) for index, held in self._held.items()}

    def _load(self) -> dict[str, int]:
        """Return how much it holds, and was asked to do since it was started."""
        traffic = self._traffic
        return {
            "shards": len(self._held),
            "bytes": sum(sum(tables.values()) for tables in self._statistics().values()),
            "pulls": traffic.pulls,
            "pushes": traffic.pushes,
            "updates": traffic.updates,
            "staleness": traffic.staleness,
        }

    def _copy(self, index: int, address: str, key: str, connect: Connect) -> None:
        """Begin to fill a copy on another server."""
        held = self._primary(index)
        if key in held.copies:
            return
        copy = Copy(index, held.shard, address, key, held.deposed)
        held.copies[key] = copy
        task = asyncio.create_task(copy.fill(connect), name="psnb copy")
        self._filling.add(task)
        task.add_done_callback(self._filling.discard)

    def _let_go(self, index: int, key: str) -> None:
        """Do without a copy."""
        copy = self._primary(index).copies.pop(key, None)
        if copy is not None:
            copy.let_go()

    def _promote(self, shards: Sequence[int]) -> None:
        """Be the primary of shards from now on."""
        for index in shards:
            if index not in self._held:
                raise InternalError(f"{self._name} has no copy of shard {index}")
            self._held[index].enter(Role.PRIMARY)

    def _retire(self, reply: Reply, index: int, key: str) -> None:
        """Change the shard no more; answered when a copy has everything."""
        held = self._primary(index)
        copy = held.copies.get(key)
        if copy is None or copy.state is not CopyState.FILLED:
            raise InternalError(f"{self._name} has no complete copy of shard {index} at {key}")
        held.enter(Role.RETIRED)
        copy.when_idle(reply)

    def _drop(self, shards: Sequence[int]) -> None:
        """Forget shards."""
        for index in shards:
            held = self._held.pop(index, None)
            if held is not None:
                held.deposed()

    # What the primaries of copies ask for.

    def _adopt(self, index: int, log: CommitLog) -> str:
        if index in self._held and self._held[index].role is Role.PRIMARY:
            return DEPOSED
        held = self._held[index] = _Held(index, self._shard(index), Role.COPY)
        held.shard.take_log(log)
        return DONE

    def _install(self, index: int, content: Content) -> str:
        held = self._held.get(index)
        if held is None or held.role is not Role.COPY:
            return _refusal(held)
        held.shard.install(content)
        return DONE

    def _follow(self, index: int, table: str, operation: str, arguments: Any) -> str:
        held = self._held.get(index)
        if held is None or held.role is not Role.COPY:
            return _refusal(held)
        held.shard.call(table, operation, arguments)
        return DONE

    def _primary(self, index: int) -> _Held:
        held = self._held.get(index)
        if held is None or held.role is not Role.PRIMARY:
            raise InternalError(f"{self._name} is not the primary of shard {index}")
        return held

    def _shard(self, index: int) -> Shard:
        return Shard(f"shard {index} on {self._name}")


def _refusal(held: _Held | None) -> str:
    return DEPOSED if held is not None and held.role is Role.PRIMARY else "not a copy"


def plain(arguments: Any) -> Mapping[str, Any]:
    """Return the arguments of a request, pickled once more if it may hold users' classes."""
    unpacked: Mapping[str, Any] = loads(arguments) if isinstance(arguments, bytes) else arguments
    return unpacked


def may_compile(operation: Operation) -> bool:
    """Return whether `to_compile` is worth asking; unlike it, unpickles nothing."""
    return operation[2] in TABLES or operation[2] == "warm"


def to_compile(operation: Operation) -> tuple[str, Mapping[str, Any]] | None:
    """Return what table an operation is going to make, if it is; it may need to be compiled."""
    _, _, name, arguments = operation
    if name in TABLES:
        return name, plain(arguments)
    if name == "warm":
        creation: tuple[str, Mapping[str, Any]] = plain(arguments)["creation"]
        return creation
    return None
