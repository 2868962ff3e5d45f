"""HostedShard: a shard on a server, as the shard itself or as a copy, and its copies elsewhere.

Pure. The server's one thread is its only user.
"""

from __future__ import annotations

from psnb._src.placement import ROLES, CopyState, Role, ShardPlace, ShardStatus
from psnb._src.server.parameter_shard import ParameterShard
from psnb._src.server.reply import PendingReply
from psnb._src.server.shard_copy import Connect, ShardCopy
from psnb._src.server.table_operations import ShardOperation
from psnb.errors import InternalError


class HostedShard:
    """A shard, and this server's role for it.

    Attributes
    ----------
    position : int
        The number of changes so far.
    copies : dict
        By the key of its server, each copy that this server must keep equal.
    """

    def __init__(
        self, index: int, shard: ParameterShard, role: Role, term: int, version: int
    ) -> None:
        self.index, self.shard, self.role = index, shard, role
        self.term, self.version = term, version
        self.position = 0
        self.copies: dict[str, ShardCopy] = {}

    def enter(self, role: Role) -> None:
        """Change the role, or raise InternalError if that cannot be."""
        if role is not self.role and (self.role, role) not in ROLES:
            raise InternalError(f"shard {self.index} cannot become {role} when it is {self.role}")
        self.role = role

    def deposed(self) -> None:
        """Stop being the primary: another server is now."""
        if self.role is Role.PRIMARY:
            self.enter(Role.RETIRED)
        for copy in self.copies.values():
            copy.move_on()
        self.copies.clear()

    def fail(self, error: Exception) -> None:
        """Note that a change may have been made in part: the copies must be filled again."""
        for copy in self.copies.values():
            copy.broken(ConnectionError(f"a change failed: {error!r}"))

    def changed(self, operation: ShardOperation, reply: PendingReply) -> None:
        """Send a change on to the copies."""
        self.position += 1
        for copy in self.copies.values():
            copy.forward(operation, reply, len(reply.answers))

    def status(self) -> ShardStatus:
        """Return what the strategy is told."""
        idle = self.role is Role.RETIRED and all(copy.idle for copy in self.copies.values())
        copies = {key: copy.state for key, copy in self.copies.items()}
        return ShardStatus(self.role, self.version, idle, copies)

    def obey(self, place: ShardPlace, own_key: str, connect: Connect) -> None:
        """Take on the role that a newer place says for the server with this key."""
        self.version = place.version
        if place.primary is None or place.primary.key != own_key:
            self.deposed()
            return
        self.term = place.term
        self.enter(Role.RETIRED if place.heir is not None else Role.PRIMARY)
        wanted = {server.key: server for server in place.followers}
        for key, copy in list(self.copies.items()):
            again = key == (place.filling and place.filling.key) and copy.state is CopyState.BROKEN
            if again or key not in wanted:
                del self.copies[key]
                copy.let_go()
        for key in wanted.keys() - self.copies.keys():
            copy = self.copies[key] = ShardCopy(self, wanted[key])
            begin = copy.fill if wanted[key] == place.filling else copy.attach
            begin(connect)
