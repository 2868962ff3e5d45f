"""Where the shards of a strategy are: the layout, and how every process gets to know it."""

from psnb._src.placement.balance import moves
from psnb._src.placement.filling_pauses import FillingPauses
from psnb._src.placement.kept_strategy import PUBLISH_AGAIN, Deed, Owner
from psnb._src.placement.layout import Layout, ServerAddress, ShardId, ShardPlace, unpacked
from psnb._src.placement.layout_cache import LayoutCache
from psnb._src.placement.layout_registry import (
    CLAIM,
    DESCRIBE,
    LAYOUT,
    LEAVE,
    MOVE,
    NOTE_MODEL,
    PUBLISH,
    REGISTER,
    STRATEGIES,
    UNKNOWN,
    LayoutRegistry,
)
from psnb._src.placement.mending import DesiredLayout, Health, ObservedServer, mended
from psnb._src.placement.server_status import ServerStatus
from psnb._src.placement.shard_status import COPY_STATES, ROLES, CopyState, Role, ShardStatus

__all__ = [
    "CLAIM",
    "COPY_STATES",
    "DESCRIBE",
    "LAYOUT",
    "LEAVE",
    "MOVE",
    "NOTE_MODEL",
    "PUBLISH",
    "PUBLISH_AGAIN",
    "REGISTER",
    "ROLES",
    "STRATEGIES",
    "UNKNOWN",
    "CopyState",
    "Deed",
    "DesiredLayout",
    "FillingPauses",
    "Health",
    "Layout",
    "LayoutCache",
    "LayoutRegistry",
    "ObservedServer",
    "Owner",
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
