"""A notebook that owns a strategy and trains until it is killed: what `test_attach.py` runs.

``python -m tests.integration.notebook.owner SCHEDULER_FILE MAKE``: ``MAKE`` is the Python
expression that makes the strategy, of ``client``; or ``attach`` takes over the one named *mine*. It
prints how many closures have had their effect, again and again.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import psnb
from tests.conftest import connected
from tests.integration.counting import wait_until_copied


def parameters_of(strategy: psnb.ParameterServerStrategy) -> None:
    """Make the parameters: each closure, and each write of the notebook, changes two servers."""
    strategy.variable(np.zeros(2), "dense", psnb.SGD(1.0))
    strategy.embedding("sparse", 1, rows=100_000, initializer=0.0, optimizer=psnb.SGD(1.0))
    strategy.variable(np.zeros(2), "direct")
    strategy.variable(np.zeros(1), "counted", psnb.Adam(0.1))


def step(parameters: dict[str, Any], number: int) -> None:
    """Change all of them but one, on both servers; a closure."""
    parameters["dense"].push(np.ones(2))
    parameters["sparse"].push([2 * number, 2 * number + 1], np.ones((2, 1), np.float32))
    parameters["counted"].push(np.ones(1))


def main(file: str, make: str) -> None:
    """Train until killed."""
    client = connected(file)
    if make == "attach":
        strategy, coordinator = psnb.attach(client, "mine")
    else:
        strategy = eval(make, {"psnb": psnb, "client": client})
        coordinator = psnb.ClusterCoordinator(strategy)
        parameters_of(strategy)
        wait_until_copied(strategy)  # if it has replicas: a server is killed with the notebook
    parameters: dict[str, Any] = dict(strategy.parameters)
    first = int(-parameters["dense"].read()[0])
    number = 2 * first + 100  # nobody has used these ids
    while True:
        for _ in range(10):
            coordinator.schedule(step, (parameters, number))
            number += 1
        parameters["direct"].assign_add(np.ones(2))
        print(int(-parameters["dense"].read()[0]) - first, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
