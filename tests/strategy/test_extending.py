"""A cluster's processes load what psnb needs there."""

from __future__ import annotations

from typing import Any

import pytest
from distributed import SchedulerPlugin, WorkerPlugin

from psnb._src.strategy.servers import extend
from psnb.errors import ClusterError


@pytest.mark.parametrize(
    ("kind", "where"), [(WorkerPlugin, "a Dask worker"), (SchedulerPlugin, "the Dask scheduler")]
)
def test_a_process_without_psnb_is_named(kind: type, where: str) -> None:
    class NotEverywhere:
        def register_plugin(self, plugin: Any) -> None:
            if isinstance(plugin, kind):
                raise ModuleNotFoundError("No module named 'psnb'")

    with pytest.raises(ClusterError, match=f"{where} cannot import psnb.*install it there"):
        extend(NotEverywhere())  # type: ignore[arg-type]
