"""Clusters: a local one with roles, a running one, the roles of workers, and scaling."""

from psnb._src.cluster.cluster import (
    CLIENT_ENDED,
    choose_servers,
    closure_workers,
    connect,
    dashboard_link,
    identity,
    roles,
)
from psnb._src.cluster.demand import Demand
from psnb._src.cluster.protection import ServerProtection
from psnb._src.cluster.resizing import add_worker, cannot_add, retire_worker
from psnb._src.cluster.scaling import DEMAND, ClosureScaling
from psnb._src.cluster.start_local import local_cluster
from psnb._src.cluster.worker_names import WorkerNames

__all__ = [
    "CLIENT_ENDED",
    "DEMAND",
    "ClosureScaling",
    "Demand",
    "ServerProtection",
    "WorkerNames",
    "add_worker",
    "cannot_add",
    "choose_servers",
    "closure_workers",
    "connect",
    "dashboard_link",
    "identity",
    "local_cluster",
    "retire_worker",
    "roles",
]
