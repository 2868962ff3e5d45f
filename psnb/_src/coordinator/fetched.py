"""What `ClusterCoordinator.fetch` does: results in the place of closures, in a nested structure."""

from __future__ import annotations

from typing import Any

from psnb._src.coordinator.closures import RemoteValue, raise_together
from psnb._src.coordinator.datasets import PerWorkerValues
from psnb._src.coordinator.structure import map_structure


def fetched(structure: Any) -> Any:
    """Replace remote and per-worker values; if one raises, the others' errors so far go with it."""
    remotes: list[RemoteValue] = []

    def found(leaf: Any) -> None:
        if isinstance(leaf, RemoteValue):
            remotes.append(leaf)

    def value(leaf: Any) -> Any:
        return leaf.fetch() if isinstance(leaf, RemoteValue | PerWorkerValues) else leaf

    try:
        return map_structure(value, structure)
    except Exception as error:  # the closure's own, of any class
        map_structure(found, structure)
        raise_together(error, remotes)
        raise
