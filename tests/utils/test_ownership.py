"""Who may change what is kept, or handed out."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from numpy.lib.stride_tricks import as_strided
from numpy.lib.stride_tricks import sliding_window_view as windows

from psnb._src.utils.ownership import may_change, owned, read_only
from psnb.data import Ragged
from psnb.errors import ConfigurationError


class Pair(NamedTuple):
    first: Any
    second: Any


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


def test_what_nobody_can_change_is_not_copied() -> None:
    array = np.frombuffer(bytes(8))
    fixed = np.arange(2)
    fixed.flags.writeable = False
    texts = np.array(["a", "b"], object)
    texts.flags.writeable = False
    for each in ("text", b"bytes", 1, 2.5, None, True, np.float32(1), len, array, fixed, texts):
        assert owned(each) is each
    assert not may_change(fixed)


@pytest.mark.parametrize(
    "show",
    [read_only, lambda base: as_strided(base, writeable=False), lambda base: windows(base, 2)],
)
def test_what_shows_the_memory_of_others_is_copied_though_it_is_read_only(show: Any) -> None:
    base = np.arange(2)
    view = show(base)
    assert may_change(view)
    found = owned(view)
    base[:] = 9
    assert found.reshape(-1).tolist() == [0, 1]
    base.flags.writeable = False
    assert not may_change(show(base))


def _objects(array: Any) -> Any:
    found = np.empty((1, 2), object)
    found[0, 0], found[0, 1] = array, "text"
    return found


HOLDERS: dict[str, Any] = {
    "array": (lambda a: a, lambda v: v),
    "list": (lambda a: [a, 1], lambda v: v[0]),
    "dict": (lambda a: {"x": (a,)}, lambda v: v["x"][0]),
    "named tuple": (lambda a: Pair(a, 1), lambda v: v.first),
    "object": (Holder, lambda v: v.held),
    "objects": (_objects, lambda v: v[0, 0]),
    "Ragged": (lambda a: Ragged(a, np.array([0, 2])), lambda v: v.values),
    "set": (lambda a: ({1}, a), lambda v: v[1]),
    "column of objects": (lambda a: pd.DataFrame({"x": [a]}), lambda v: v["x"][0]),
    "series of objects": (lambda a: pd.Series([a]), lambda v: v[0]),
}


@pytest.mark.parametrize(("hold", "held"), HOLDERS.values(), ids=HOLDERS)
def test_an_array_is_found_wherever_it_is(hold: Any, held: Any) -> None:
    array = np.zeros(2)
    mine = owned(hold(array))
    assert type(mine) is type(hold(array))
    array[:] = 5
    assert held(mine).tolist() == [0, 0]
    held(mine)[:] = 7  # who keeps it may change it
    assert array.tolist() == [5, 5]


def test_a_record_and_arrays_of_records_with_objects_are_copied() -> None:
    records = np.zeros(1, [("x", np.float64), ("o", object)])
    record, several = owned(records[0]), owned(records)
    records["x"] = 9
    assert (record["x"], several["x"].tolist()) == (0, [0])


def test_what_an_object_does_when_it_is_asked_for_attributes_does_not_matter() -> None:
    class Remote:
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__deepcopy"):
                raise AttributeError(name)
            raise RuntimeError(f"no {name}")

    assert type(owned(Remote())) is Remote


def test_what_is_one_thing_stays_one_and_may_have_itself() -> None:
    array = np.zeros(1)
    several: list[Any] = [array, array]
    several.append(several)
    found = owned(several)
    assert found[0] is found[1] is not array
    assert found[2] is found


def test_what_cannot_be_copied_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"lock is kept for later.*give arrays"):
        owned({"x": threading.Lock()})
