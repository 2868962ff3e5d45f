"""A notebook that trains a model which others follow, and stops in the middle of a checkpoint.

``python -m tests.integration.checkpoint.followed_notebook DIRECTORY MODEL`` exports the model,
saves two checkpoints, prints "writes" when all files of the third one are there, and waits to be
killed.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

import psnb
import psnb.jax
from psnb._src.checkpoint import local_store

IDS = np.arange(40)


def placed(strategy: psnb.ParameterServerStrategy) -> tuple[Any, Any, Any]:
    """Return rows, a dense parameter, and a forward pass that returns both."""
    visits = strategy.embedding("visits", 2, initializer=0.5, optimizer=psnb.SGD(1.0))
    net = psnb.jax.variables(strategy, {"w": np.zeros(3, np.float32)}, psnb.SGD(1.0), "net")
    return visits, net, forward_of(visits, net)


def forward_of(visits: Any, net: Any) -> Any:
    def both(params: Any, rows: Any, batch: Any) -> Any:
        return {"rows": rows["ids"], "w": params["w"]}

    return psnb.jax.forward(both, params=net, tables={"ids": visits})


def main() -> None:
    directory, model = Path(sys.argv[1]), Path(sys.argv[2])
    with (
        psnb.local_cluster(1, 1, processes=False) as client,
        psnb.ParameterServerStrategy(client) as strategy,
    ):
        visits, net, forward = placed(strategy)
        manager = psnb.CheckpointManager(psnb.ClusterCoordinator(strategy), directory, full_every=4)
        psnb.export(model, forward, example={"ids": IDS}, follow=manager)

        def stop(path: Path) -> None:
            if path.is_dir():  # all that is in it is on disk; it gets its name next
                print("writes", flush=True)
                threading.Event().wait()

        for number in range(3):
            visits.push([number, number + 1], np.ones((2, 2), np.float32))
            net.variables[0].push(np.ones(3, np.float32))
            if number == 2:
                local_store.sync = stop  # type: ignore[attr-defined]
            manager.save()


if __name__ == "__main__":
    main()
