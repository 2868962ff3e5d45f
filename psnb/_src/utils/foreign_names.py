"""Names and arguments that people know from TensorFlow, Keras, PyTorch, Dask and Paddle. Pure.

Errors say what to use here in their place, and docs/coming-from/names.md has the whole tables,
which are in ``foreign_names.json``.
"""

from __future__ import annotations

import functools
import inspect
import json
from abc import ABCMeta
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from psnb._src.utils.text import unknown

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))

FOREIGN: Mapping[str, Mapping[str, str]] = _TABLES["names"]
"""For each class and module: names that it has not, and what to use."""

FOREIGN_ARGUMENTS: Mapping[str, Mapping[str, str]] = _TABLES["arguments"]
"""For functions and classes: arguments that they and their methods have not, and what to use."""

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=type)


def explained(function: F) -> F:
    """Return a function that explains those arguments that the table has for it."""
    name = function.__name__
    return _explained(FOREIGN_ARGUMENTS[name], name, function)


def explained_fields(base: str) -> Callable[[T], T]:
    """Return what has a dataclass explain those arguments that the table has for a base of it."""

    def explain(kind: T) -> T:
        made = _explained(FOREIGN_ARGUMENTS[base], kind.__name__, kind.__init__)  # type: ignore[misc]
        kind.__init__ = made  # type: ignore[misc]
        return kind

    return explain


def _explained(known: Mapping[str, str], what: str, function: F) -> F:
    own = inspect.signature(function).parameters
    named = {name for name, each in own.items() if each.kind is not each.POSITIONAL_ONLY}
    if not own or any(each.kind is each.VAR_KEYWORD for each in own.values()):
        return function

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= named:
            name = next(name for name in kwargs if name not in named)
            if name in known:
                use = known[name].replace("`", "")
                raise TypeError(f"{what} has no argument {name!r}; here: {use}")
            others = [each for each in own if each in named and each not in ("self", "cls")]
            raise TypeError(f"{what}: {unknown('argument', name, others)}")
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


def foreign(owner: str, name: str) -> AttributeError | None:
    """Return the error for a name of which the table says what to use; else None."""
    use = FOREIGN.get(owner, {}).get(name)
    if use is None:
        return None
    # With a name, Python would suggest another one of a similar spelling, too.
    return AttributeError(f"{owner} has no {name!r}; here: {use.replace('`', '')}", name=None)


def module_error(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module has not."""
    plain = f"module {module!r} has no attribute {name!r}"
    return foreign(module, name) or AttributeError(plain)  # to which Python adds near names


def answer_of(module: str) -> Callable[[str], NoReturn]:
    """Return a module's ``__getattr__``."""

    def answer(name: str) -> NoReturn:
        raise module_error(module, name)

    return answer


def _missing(owners: tuple[type, ...], name: str) -> None:
    if name.startswith("_"):  # what pickle, copy and IPython look for
        return
    for each in owners:
        error = foreign(each.__name__, name)
        if error is not None:
            raise error


class NamedClass(ABCMeta):
    """The metaclass of a class whose foreign names, called on itself, are in the table.

    A subclass may have an abstract class, or one of `collections.abc`, as a base, too.
    """

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            _missing(cls.__mro__, name)
            type.__getattribute__(cls, name)


class SaysWhatToUse:
    """Base of classes whose foreign names, and arguments, are in the tables."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = FOREIGN_ARGUMENTS.get(cls.__name__, {})
        for name in dir(cls) if known else ():
            member = inspect.getattr_static(cls, name)
            is_made = name in ("__init__", "__new__")
            if name.startswith("_") and not is_made:
                continue
            what = cls.__name__ if is_made else f"{cls.__name__}.{name}"
            if isinstance(member, classmethod | staticmethod):
                setattr(cls, name, type(member)(_explained(known, what, member.__func__)))
            elif inspect.isfunction(member):
                setattr(cls, name, _explained(known, what, member))

    if not TYPE_CHECKING:  # or every name would be one for type checkers

        def __getattr__(self, name: str) -> NoReturn:
            _missing(type(self).__mro__, name)
            object.__getattribute__(self, name)  # raises Python's own error, with its suggestion


class FixedAttributes(SaysWhatToUse):
    """Base of classes whose objects take only attributes that the class declares, and each once.

    An assignment that nothing reads would be a mistake that goes unnoticed. Names with a leading
    underscore, and derived classes, are free.
    """

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            kind = type(self)
            if (
                name.startswith("_")
                or hasattr(kind, name)  # a property, which knows whether it can be set
                or not kind.__module__.startswith("psnb.")
            ):
                object.__setattr__(self, name, value)
                return
            if name in vars(self):
                raise AttributeError(f"{kind.__name__}.{name} cannot be changed: make another one")
            if not any(name in inspect.get_annotations(each) for each in kind.__mro__):
                _missing(kind.__mro__, name)
                _missing(kind.__mro__, f"set_{name}")
                raise AttributeError(f"{kind.__name__} has no attribute {name!r} to set")
            object.__setattr__(self, name, value)
