"""What crosses the wire, without Dask."""

from __future__ import annotations

import asyncio
import copyreg
import dataclasses
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from tblib import pickling_support

from psnb import errors
from psnb._src.protocol.errors import pack_error, packed_text, unpack_error
from psnb._src.protocol.packing import Nothing, PerWorkerReference, dumps, loads, shorten_call


class Reference(PerWorkerReference):
    def __init__(self, number: int) -> None:
        self.owner, self.resource_id = "somebody", number


class NeedsTwoArgumentsError(Exception):
    """Pickles, but cannot be unpickled: the default for such exceptions."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_references_become_the_workers_values_at_any_depth() -> None:
    references: list[PerWorkerReference] = []
    used = Reference(7)
    data = dumps({"deep": [(1, used)], "captured": lambda: used}, "it", references)
    value = loads(data, resolve=lambda number: f"value {number}")
    assert value["deep"] == [(1, "value 7")]
    assert value["captured"]() == "value 7"
    assert set(references) == {used}


def test_a_reference_cannot_come_back_from_a_worker() -> None:
    with pytest.raises(errors.InternalError):
        loads(dumps(Reference(1), "it"))


def test_arrays_are_captured_when_they_are_packed() -> None:
    array = np.zeros(3)
    data = dumps(array, "it")
    array += 1
    np.testing.assert_array_equal(loads(data), np.zeros(3))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"a": [0, threading.Lock()]}, r"\['a'\]\[1\] is <unlocked"),
        (((x for x in ()),), r"\[0\] is <generator"),
        (threading.Lock(), "it is <unlocked"),
    ],
)
def test_what_cannot_be_pickled_is_named(value: object, named: str) -> None:
    with pytest.raises(errors.SerializationError, match=named):
        dumps(value, "the argument")


def test_a_repr_that_raises_does_not_hide_the_message() -> None:
    class Awkward:
        def __repr__(self) -> str:
            raise RuntimeError

        def __reduce__(self) -> Any:
            raise TypeError("never pickled")

    with pytest.raises(errors.SerializationError, match=r"whose repr raises.*never pickled"):
        dumps(Awkward(), "the argument")


def test_an_exception_keeps_its_type_cause_and_traceback_text() -> None:
    error = ValueError("boo")
    error.__cause__ = KeyError("why")
    back = unpack_error(pack_error(raised(error), "on worker 'a'"))
    assert type(back) is ValueError
    assert type(back.__cause__) is KeyError
    (note,) = back.__notes__
    assert note.startswith("on worker 'a'\n")
    assert "test_packing.py" in note
    assert note.endswith("in raised\n    raise error")
    assert "KeyError: 'why'\n\nThe above exception was the direct" in back.full_traceback  # type: ignore[attr-defined]


class OwnError(Exception):
    """Of the kind that a notebook defines: no library knows how to pickle its cause."""


OwnError.__module__ = "__main__"  # so it travels by value


@pytest.mark.parametrize("kind", [OwnError, errors.ClosureInputError, ValueError])
def test_causes_of_causes_travel_whatever_their_class(kind: type[Exception]) -> None:
    def raises() -> None:
        try:
            try:
                raise OSError("no disk")
            except OSError as lowest:
                raise OwnError("lower") from lowest
        except OwnError:
            raise kind("upper")  # noqa: B904 - while the other one is handled

    try:
        raises()
    except kind as error:
        back = unpack_error(pack_error(error))
    assert (str(back), back.__cause__, str(back.__context__)) == ("upper", None, "lower")
    assert back.__context__ is not None
    assert repr(back.__context__.__cause__) == "OSError('no disk')"


def test_an_exception_without_a_cause_has_none_elsewhere() -> None:
    back = unpack_error(pack_error(raised(OwnError("x"))))
    assert (back.__cause__, back.__context__) == (None, None)


def test_a_cause_that_cannot_travel_leaves_the_exception_as_it_is() -> None:
    error = ValueError("boo")
    error.__cause__ = NeedsTwoArgumentsError("a", "b")
    back = unpack_error(pack_error(error))
    assert (type(back), type(back.__cause__)) == (ValueError, errors.ClosureError)
    assert "NeedsTwoArgumentsError" in str(back.__cause__)
    assert isinstance(error.__cause__, NeedsTwoArgumentsError)  # what is packed stays whole


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    """Lets nobody set its cause, or add a note."""

    code: int


def test_an_exception_that_takes_no_attributes_becomes_a_closure_error_with_its_cause() -> None:
    def raises() -> None:
        try:
            raise OSError("no disk")
        except OSError as lower:
            raise FrozenError(4) from lower

    try:
        raises()
    except FrozenError as error:
        back = unpack_error(pack_error(error, "on worker 'a'"))
    assert type(back) is errors.ClosureError
    assert "FrozenError(code=4)" in str(back)
    assert repr(back.__cause__) == "OSError('no disk')"
    assert back.__notes__[0].startswith("on worker 'a'\n")


def test_an_exception_is_whole_while_it_is_packed() -> None:
    """Others may pack the same one, such as that of a value that could not be made."""

    class WatchedError(Exception):
        def __reduce__(self) -> Any:
            seen.append(self.__cause__)
            return WatchedError, ()

    seen: list[Any] = []
    error = WatchedError()
    error.__cause__ = cause = KeyError("why")
    pack_error(raised(error))
    assert seen[0] is cause


def test_what_an_exception_says_is_read_without_making_it() -> None:
    assert packed_text(pack_error(OwnError("boo"))) == "OwnError: boo"


@pytest.mark.parametrize(
    "error",
    [NeedsTwoArgumentsError("a", "b"), ValueError(threading.Lock())],
    ids=["type", "argument"],
)
def test_an_exception_that_cannot_travel_becomes_a_closure_error(error: Exception) -> None:
    back = unpack_error(pack_error(raised(error), "on worker 'a'"))
    assert type(back) is errors.ClosureError
    assert type(error).__qualname__ in str(back)
    assert back.__notes__[0].startswith("on worker 'a'\n")


@pytest.mark.parametrize("what", [ValueError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("form", ["__str__", "__repr__", "__reduce__"])
def test_whatever_an_exception_raises_when_it_is_shown_it_is_named_by_its_type(
    form: str, what: type[BaseException]
) -> None:
    def raises(*_: object) -> str:
        raise what("no")

    unresponsive = type("SilentError", (Exception,), {form: raises})
    back = unpack_error(pack_error(raised(unresponsive("a")), "on worker 'a'"))
    assert type(back).__name__ in ("SilentError", "ClosureError")
    assert "SilentError" in repr(type(back)) or "SilentError" in str(back)
    assert back.__notes__[0].startswith("on worker 'a'\n")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_would_end_the_notebook_or_cancel_it_is_the_cause_of_a_closure_error(
    error: BaseException,
) -> None:
    back = unpack_error(pack_error(raised(error), "on worker 'a'"))
    assert type(back) is errors.ClosureError
    assert type(error).__name__ in str(back)
    assert type(back.__cause__) is type(error)


def test_whatever_arguments_raise_when_they_are_shown_the_call_is_shown() -> None:
    class Awkward:
        def __repr__(self) -> str:
            raise SystemExit

    assert "Awkward whose repr raises SystemExit" in shorten_call((Awkward(),), {})


def test_bytes_that_are_no_exception_become_a_closure_error() -> None:
    assert isinstance(unpack_error(b"broken"), errors.ClosureError)


def test_the_result_of_a_closure_whose_data_had_ended_is_none_and_says_so() -> None:
    with pytest.warns(errors.EndOfDataWarning, match="closure step found its iterator") as told:
        assert loads(dumps(Nothing("step"), "the result")) is None
    assert told[0].filename == __file__  # the user's line, not psnb's


def test_the_arguments_of_a_call_are_shortened() -> None:
    text = shorten_call((1, np.zeros(10_000)), {"name": "x" * 1000})
    assert text.startswith("1, array([")
    assert "name='xxx" in text
    assert len(text) <= 300


@pytest.mark.parametrize("error", [e for e in vars(errors).values() if isinstance(e, type)])
def test_every_error_of_psnb_survives_pickling_by_tblib(
    error: type[errors.PsnbError], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Dask has it pickle the exceptions that are imported before Dask is.
    monkeypatch.setitem(copyreg.dispatch_table, error, pickling_support.pickle_exception)
    back = pickle.loads(pickle.dumps(error("what, where, what to do")))
    assert type(back) is error
    assert back.args == ("what, where, what to do",)


@pytest.mark.parametrize("error", [e for e in vars(errors).values() if isinstance(e, type)])
def test_every_error_of_psnb_survives_pickling(error: type[errors.PsnbError]) -> None:
    back = unpack_error(pack_error(raised(error("what, where, what to do"))))
    assert type(back) is error
    assert str(back) == "what, where, what to do"
