"""HostedShard: a shard on a server, as the shard itself or as a replica, and its replicas.

Pure. The server's one thread is its only user.
"""

from __future__ import annotations

from psnb._src.placement.layout import ShardPlacement
from psnb._src.placement.status import ROLES, ReplicaState, Role, ShardStatus
from psnb._src.server.messages import PendingReply
from psnb._src.server.replication import Connect, ShardReplica
from psnb._src.server.shard import ParameterShard
from psnb._src.server.tables.operations import ShardOperation
from psnb.errors import InternalError


class HostedShard:
    """A shard, and this server's role for it.

    Attributes
    ----------
    position : int
        The number of changes so far.
    replicas : dict
        By the key of its server, each replica that this server must keep equal.
    """

    def __init__(
        self, index: int, shard: ParameterShard, role: Role, term: int, version: int
    ) -> None:
        self.index, self.shard, self.role = index, shard, role
        self.term, self.version = term, version
        self.position = 0
        self.replicas: dict[str, ShardReplica] = {}

    def enter(self, role: Role) -> None:
        """Change the role, or raise InternalError if that cannot be."""
        if role is not self.role and (self.role, role) not in ROLES:
            raise InternalError(f"shard {self.index} cannot become {role} when it is {self.role}")
        self.role = role

    def deposed(self) -> None:
        """Stop being the primary: another server is now."""
        if self.role is Role.PRIMARY:
            self.enter(Role.RETIRED)
        for replica in self.replicas.values():
            replica.move_on()
        self.replicas.clear()

    def fail(self, error: Exception) -> None:
        """Note that a change may have been made in part: the replicas must be filled again."""
        for replica in self.replicas.values():
            replica.broken(ConnectionError(f"a change failed: {error!r}"))

    def changed(self, operation: ShardOperation, reply: PendingReply) -> None:
        """Send a change on to the replicas."""
        self.position += 1
        for replica in self.replicas.values():
            replica.forward(operation, reply, len(reply.answers))

    def status(self) -> ShardStatus:
        """Return what is reported to the strategy."""
        idle = self.role is Role.RETIRED and all(replica.idle for replica in self.replicas.values())
        replicas = {key: replica.state for key, replica in self.replicas.items()}
        return ShardStatus(self.role, self.version, idle, replicas)

    def apply_role(self, placement: ShardPlacement, own_key: str, connect: Connect) -> None:
        """Take on the role that a newer placement says for the server with this key."""
        self.version = placement.version
        if placement.primary is None or placement.primary.key != own_key:
            self.deposed()
            return
        self.term = placement.term
        self.enter(Role.RETIRED if placement.successor is not None else Role.PRIMARY)
        wanted = {server.key: server for server in placement.followers}
        for key, replica in list(self.replicas.items()):
            syncs = wanted.get(key, placement.primary) == placement.syncing
            again = syncs and replica.state is ReplicaState.BROKEN
            if again or key not in wanted:
                del self.replicas[key]
                replica.let_go()
        for key in wanted.keys() - self.replicas.keys():
            replica = self.replicas[key] = ShardReplica(self, wanted[key])
            begin = replica.fill if wanted[key] == placement.syncing else replica.attach
            begin(connect)
