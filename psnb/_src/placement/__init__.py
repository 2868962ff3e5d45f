"""Where the shards of a strategy are: the layout, and how every process gets to know it."""

from psnb._src.placement.balance import moves
from psnb._src.placement.layout import Layout, ServerAddress, ShardId, ShardPlace, unpacked
from psnb._src.placement.layout_cache import LayoutCache
from psnb._src.placement.layout_registry import LAYOUT, PUBLISH, LayoutRegistry
from psnb._src.placement.mending import DesiredLayout, Health, ObservedServer, mended
from psnb._src.placement.server_status import ServerStatus
from psnb._src.placement.shard_status import COPY_STATES, ROLES, CopyState, Role, ShardStatus

__all__ = [
    "COPY_STATES",
    "LAYOUT",
    "PUBLISH",
    "ROLES",
    "CopyState",
    "DesiredLayout",
    "Health",
    "Layout",
    "LayoutCache",
    "LayoutRegistry",
    "ObservedServer",
    "Role",
    "ServerAddress",
    "ServerStatus",
    "ShardId",
    "ShardPlace",
    "ShardStatus",
    "mended",
    "moves",
    "unpacked",
]
