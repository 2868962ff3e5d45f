"""Small frozen objects as JSON can hold them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import psnb
from psnb._src.protocol.modes import MODES
from psnb._src.server.optimizers import OPTIMIZERS
from psnb._src.server.tables.admission import ADMISSIONS
from psnb._src.server.tables.initializers import INITIALIZERS
from psnb._src.utils.config import from_config, to_config

KINDS = {**OPTIMIZERS, **INITIALIZERS, **ADMISSIONS, **MODES, "CtrAccessor": psnb.CtrAccessor}


@pytest.mark.parametrize(
    "thing",
    [
        psnb.Uniform(-1, np.float32(0.5)),
        psnb.Constant(2),
        psnb.CountFilter(3),
        psnb.Probability(0.25),
        psnb.Always(),
        psnb.CtrAccessor(delete_after_unseen_days=math.inf),
        psnb.Sync(4),
        psnb.Async(),
        psnb.Geo(2),
        psnb.BoundedStaleness(0),
        psnb.Adam(psnb.Warmup(psnb.PiecewiseConstant([3, 5], [1.0, 0.5, 0.25]), 10), clipnorm=2.0),
        psnb.FTRL(0.1),
    ],
    ids=repr,
)
def test_what_was_described_is_made_again(thing: Any) -> None:
    assert (
        from_config("it", json.loads(json.dumps(to_config(thing), allow_nan=False)), KINDS) == thing
    )


def test_each_optimizer_schedule_initializer_admission_and_mode_of_psnb_is_known() -> None:
    for base in (psnb.Optimizer, psnb.Schedule, psnb.Initializer, psnb.Admission):
        for name in psnb.__all__:
            kind = getattr(psnb, name)
            if isinstance(kind, type) and issubclass(kind, base) and kind is not base:
                assert KINDS[name] is kind
    assert {psnb.Async, psnb.Sync, psnb.BoundedStaleness, psnb.Geo} == {*MODES.values()}


@dataclass(frozen=True)
class Uniform(psnb.Initializer):
    """A user's own, of the same name as psnb's."""

    like: Any = 0

    def fill(self, out: np.ndarray, ids: np.ndarray, seed: int) -> None:
        out[...] = 0


def test_what_is_a_users_own_is_described_and_not_made_again() -> None:
    own = Uniform()
    object.__setattr__(own, "like", np.zeros(3))
    description = json.loads(json.dumps(to_config(own)))
    assert description == {"name": f"{__name__}.Uniform", "like": {"name": "numpy.ndarray"}}
    with pytest.raises(ValueError, match="its initializer is"):
        from_config("its initializer", description, KINDS)


@pytest.mark.parametrize(
    "description",
    [
        *(None, 3, {}, {"name": "os.system"}, {"name": ["Adam"]}, {"name": "Uniform", "low": 1}),
        {"name": "Uniform", "low": 0, "high": 1, "more": 2},
        {"name": "Uniform", "low": 0, "high": {"float": "none"}},
        {"name": "Constant", "value": "many"},
    ],
)
def test_what_describes_nothing_is_refused(description: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_config("it", description, KINDS)
