"""Call: the pickled arguments of a closure, and what they refer to. Pure, without Dask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from psnb._src.coordinator.closures.remote_value import ClosureStatus, RemoteValue
from psnb._src.protocol.dask_futures import GivenFutures
from psnb._src.protocol.packing import InputReference, PerWorkerReference, dumps
from psnb._src.utils.inbox import Inbox
from psnb._src.utils.text import shown, truncate
from psnb.errors import ConfigurationError


@dataclass(slots=True, eq=False)
class Call:
    """The arguments of one closure.

    Attributes
    ----------
    payload : bytes
        Pickled ``(args, kwargs)``; empty for no arguments.
    references : tuple of PerWorkerReference
        Per-worker values among the arguments, kept alive until the closure has ended.
    inputs : list
        Remote values among the arguments, each replaced by its pickled value as soon as there is
        one; the event loop's alone once the closure was put.
    held : sequence
        What must stay alive like ``references``: the futures among the arguments.
    """

    payload: bytes
    references: tuple[PerWorkerReference, ...] = ()
    inputs: list[RemoteValue | bytes] = field(default_factory=list)
    held: Sequence[object] = ()

    def missing(self) -> list[tuple[int, RemoteValue]]:
        """Return the inputs whose values are not here yet, each with its index."""
        if not self.inputs:
            return []  # nearly always
        return [(i, each) for i, each in enumerate(self.inputs) if isinstance(each, RemoteValue)]

    def take_inputs(self) -> None:
        """Replace inputs that have completed by their values.

        Raises
        ------
        SerializationError
            If a value was fetched, and cannot be pickled any more.
        """
        for place, remote in self.missing():
            if remote.status is ClosureStatus.COMPLETED:
                packed = remote.packed()
                self.inputs[place] = remote.pack_again() if packed is None else packed


def positional(args: object) -> tuple[Any, ...]:
    """Return a call's positional arguments; None are none.

    Raises
    ------
    ConfigurationError
        If this is a single argument that is not in a tuple.
    """
    if type(args) is tuple:  # nearly always
        return args
    if args is None:
        return ()
    single = isinstance(args, str | bytes | Mapping | Set | PerWorkerReference)
    if single or hasattr(args, "__array__") or not isinstance(args, Iterable):
        hint = "keyword arguments go to kwargs=" if isinstance(args, Mapping) else "mind the comma"
        raise ConfigurationError(
            f"args must be a tuple or list of arguments, found {shown(args)}: write "
            f"args=(value,) for a single one ({hint})"
        )
    return tuple(args)


def keyword(kwargs: object) -> Mapping[str, Any]:
    """Return a call's keyword arguments; ConfigurationError if they are none."""
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise ConfigurationError(
            f"kwargs must be a mapping of names to arguments, found {truncate(repr(kwargs))}"
        )
    return kwargs


NO_ARGUMENTS = Call(b"")
"""Shared by all closures without arguments."""


def pack_call(
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    inbox: Inbox,
    futures: GivenFutures | None = None,
) -> Call:
    """Pickle the arguments of a call.

    Raises
    ------
    SerializationError
        If they cannot be pickled; the message names the part that cannot.
    ConfigurationError
        If a remote value among them belongs to another coordinator (it does not share
        ``inbox``), or a future to another cluster.
    """
    references: list[PerWorkerReference] = []
    inputs: list[InputReference] = []
    reduced = None if futures is None else futures.reduced
    payload = dumps(
        (args, dict(kwargs)), f"a call of {name}", references, ("args", "kwargs"), inputs, reduced
    )
    if futures is not None:
        futures.require_own(name)
    remotes: list[RemoteValue | bytes] = []
    for remote in inputs:
        if not isinstance(remote, RemoteValue) or not remote.shares(inbox):
            raise ConfigurationError(
                f"a remote value among the arguments of {name} belongs to another coordinator: "
                "fetch() it and pass the value"
            )
        remotes.append(remote)
    return Call(payload, tuple(references), remotes, futures.found if futures else ())
