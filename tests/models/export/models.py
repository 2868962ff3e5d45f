"""Models for tests of exports; servers in this process."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import psnb.jax
from psnb._src.server.optimizers import SGD
from psnb._src.server.tables.initializers import Normal
from psnb.data import Ragged
from tests.models.placing import InProcessStrategy

IDS = np.array([[3, 1], [3, 2**40], [7, 3], [-5, 9]])
WORDS = Ragged.from_rows([[1, 5, 1], [], [2], [0, 4]], np.int64)
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
BATCH = {"ads": IDS, "words": WORDS, "x": X, "label": np.ones(4, np.float32)}
"""``label`` is what a prediction does not need."""

NEW = {
    "ads": np.array([[3, 77], [8, 2**63 - 1], [1, 1]]),
    "words": Ragged.from_rows([[], [9, 0], [3, 3, 3]], np.int64),
    "x": np.full((3, 3), 0.5, np.float32),
}
"""Another number of examples, with ids that were not seen."""


def score(params: Any, rows: Any, batch: Any) -> Any:
    found = (rows["ads"].sum(1) + rows["words"]) @ params["w"] + batch["x"] @ params["w"]
    return {"score": jnp.tanh(found + params["b"]), "raw": found}


class JaxModel:
    """A table of any id, a table of fixed rows with bags, and dense parameters."""

    def __init__(self, **options: Any) -> None:
        self.strategy = InProcessStrategy()
        params = {"w": jnp.arange(3.0), "b": jnp.ones(())}
        self.params = psnb.jax.variables(self.strategy, params, SGD(0.5))
        self.ads = self.strategy.embedding("ads", 3, None, Normal(stddev=0.3), SGD(0.5))
        self.words = self.strategy.embedding("words", 3, 12, padding_idx=0)
        self.words.assign(np.arange(12), random_rows(12, 3))
        self.ads.assign(IDS, random_rows(8, 3).reshape(4, 2, 3))
        options = {"tables": {"ads": self.ads, "words": self.words}, **options}
        self.forward = psnb.jax.forward(score, params=self.params, **options)


def random_rows(count: int, dim: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, dim)).astype(np.float32)


def assert_close(found: Any, expected: Any, within: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=within)
