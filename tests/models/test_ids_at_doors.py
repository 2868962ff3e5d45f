"""Each door that takes ids takes them in each form, with all of their bits; none makes others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psnb
import psnb.jax
from psnb._src.server.optimizers import SGD
from psnb.errors import InvalidArrayError
from tests.models.placing import InProcessStrategy
from tests.utils.id_forms import FORMS, NO_IDS

KNOWN = sorted({n % 2**64 for _, ids in FORMS.values() for n in ids})
IN_A_ROW = [form for form in FORMS if np.ndim(FORMS[form][0]()) == 1]


def table_of(*ids: int) -> Any:
    """Return a table in which the row of each id is its place among them."""
    made = InProcessStrategy().embedding("t", 1, optimizer=SGD(1.0))
    made.assign(np.array(ids, "u8"), np.arange(len(ids), dtype="f4")[:, None])
    return made


def table() -> Any:
    return table_of(*KNOWN)


def places(rows: Any) -> list[int]:
    return np.asarray(rows).reshape(-1).astype(int).tolist()


def halves(ids: Any) -> np.ndarray:
    try:
        return np.full((*np.shape(ids), 1), 0.5, np.float32)
    except ValueError:  # no array, so no shape is right
        return np.full((1, 1), 0.5, np.float32)


def pushed(ids: Any) -> list[int]:
    of = table()
    of.push(ids, halves(ids))
    after = of.lookup(np.array(KNOWN, "u8"))[:, 0]
    return np.flatnonzero(after != np.arange(len(KNOWN))).tolist()


def assigned(ids: Any) -> list[int]:
    of = table()
    of.assign(ids, halves(ids))
    return np.flatnonzero(of.lookup(np.array(KNOWN, "u8"))[:, 0] == 0.5).tolist()


def by_jax(ids: Any) -> list[int]:
    forward = psnb.jax.forward(
        lambda params, rows, batch: rows["t"], tables={"t": table()}, ids=lambda batch: {"t": ids}
    )
    return places(forward({}))


READ: dict[str, Callable[[Any], list[int]]] = {
    "lookup": lambda ids: places(table().lookup(ids)),
    "pull": lambda ids: places(psnb.pull({(of := table()): ids})[of]),
    "jax": by_jax,
}
BAGS: dict[str, Callable[[Any], list[int]]] = {
    "lookup_bags": lambda ids: places(table().lookup_bags(ids, range(len(ids)), "sum")),
}
WRITE: dict[str, Callable[[Any], list[int]]] = {"push": pushed, "assign": assigned}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("door", READ)
def test_ids_find_their_rows(door: str, form: str) -> None:
    make, expected = FORMS[form]
    assert READ[door](make()) == [KNOWN.index(n % 2**64) for n in expected]


@pytest.mark.parametrize("form", IN_A_ROW)
@pytest.mark.parametrize("door", BAGS)
def test_ids_of_bags_find_their_rows(door: str, form: str) -> None:
    make, expected = FORMS[form]
    assert BAGS[door](make()) == [KNOWN.index(n % 2**64) for n in expected]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("door", WRITE)
def test_ids_change_their_rows(door: str, form: str) -> None:
    make, expected = FORMS[form]
    assert WRITE[door](make()) == sorted(KNOWN.index(n % 2**64) for n in expected)


@pytest.mark.parametrize("form", NO_IDS)
@pytest.mark.parametrize("door", READ | WRITE | BAGS)
def test_what_is_no_id_is_refused(door: str, form: str) -> None:
    make, problem = NO_IDS[form]
    with pytest.raises(InvalidArrayError, match=problem):
        (READ | WRITE | BAGS)[door](make())


BIG = 2**40 + 3
BY_JAX_NUMPY: dict[str, Callable[[Any], Any]] = {
    "where": lambda b: jnp.where(b["u"] > 0, b["u"], 0),
    "maximum": lambda b: jnp.maximum(b["u"], 0),
    "concatenate": lambda b: jnp.concatenate([b["u"], b["u"]])[:1],
    "shift": lambda b: (jnp.asarray(b["high"], jnp.int64) << 40) | b["low"],
    "jit": lambda b: jax.jit(lambda u: u + 0)(b["u"]),
    "operators": lambda b: b["u"] + 0,
}
BATCH = {"u": np.array([BIG]), "high": np.array([1], "u1"), "low": np.array([3], "u1")}


def learned(made: Callable[[Any], Any]) -> tuple[list[int], list[int]]:
    """Return what the row of a computed id is, and which rows a step on it changes."""
    of, ids = table_of(3, BIG), lambda batch: {"t": made(batch)}
    found = psnb.jax.forward(lambda p, rows, b: rows["t"], tables={"t": of}, ids=ids)(BATCH)
    step = psnb.jax.step(lambda p, rows, b: rows["t"].sum(), tables={"t": of}, ids=ids)
    step(iter([BATCH]))
    after = of.lookup(np.array([3, BIG]))[:, 0]
    return places(found), np.flatnonzero(after != [0, 1]).tolist()


@pytest.mark.parametrize("way", BY_JAX_NUMPY)
def test_ids_that_jax_numpy_computes_keep_64_bits(way: str) -> None:
    assert learned(BY_JAX_NUMPY[way]) == ([1], [1])
