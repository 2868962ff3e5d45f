"""Where the shards of a strategy are: the layout, and how every process comes to know it."""

from psnb.placement.book import LayoutBook
from psnb.placement.directory import Directory
from psnb.placement.layout import Layout, Place, ServerAddress, ShardId
from psnb.placement.plan import Failover, copies_to_make, fail_over, moves

__all__ = [
    "Directory",
    "Failover",
    "Layout",
    "LayoutBook",
    "Place",
    "ServerAddress",
    "ShardId",
    "copies_to_make",
    "fail_over",
    "moves",
]
