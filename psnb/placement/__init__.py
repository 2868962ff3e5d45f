"""Where the shards of a strategy are: the layout, and how every process comes to know it."""

from psnb.placement.balance import moves
from psnb.placement.book import LayoutBook
from psnb.placement.directory import Directory
from psnb.placement.holding import COPY_STATES, ROLES, CopyState, Holding, Role
from psnb.placement.layout import Layout, Place, ServerAddress, ShardId, unpacked
from psnb.placement.mending import Health, Sight, Wish, mended

__all__ = [
    "COPY_STATES",
    "ROLES",
    "CopyState",
    "Directory",
    "Health",
    "Holding",
    "Layout",
    "LayoutBook",
    "Place",
    "Role",
    "ServerAddress",
    "ShardId",
    "Sight",
    "Wish",
    "mended",
    "moves",
    "unpacked",
]
