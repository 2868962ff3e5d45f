"""The arguments of a call, as users write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnb._src.coordinator.closures.call import keyword, positional
from psnb._src.coordinator.values import PerWorkerIterator, ResourceRegistry
from psnb.errors import ConfigurationError


@pytest.mark.parametrize("args", [(1, "a"), [1, "a"], iter([1, "a"])])
def test_positional_arguments_are_any_iterable(args: Any) -> None:
    assert positional(args) == (1, "a")


def test_positional_arguments_may_be_left_out() -> None:
    assert positional(None) == ()


@pytest.mark.parametrize(
    "args",
    [
        5,
        "ab",
        b"ab",
        {1},
        np.arange(3),
        PerWorkerIterator(ResourceRegistry(), len, spec=dict),
    ],
)
def test_a_single_argument_without_its_tuple_is_refused(args: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"found .*args=\(value,\).*mind the comma"):
        positional(args)


def test_keyword_arguments_in_the_place_of_positional_ones_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\{'x': 1\}.*kwargs="):
        positional({"x": 1})


@pytest.mark.parametrize("kwargs", [5, "ab", [("x", 1)], {1: 2}])
def test_keyword_arguments_are_a_mapping_of_names(kwargs: Any) -> None:
    with pytest.raises(ConfigurationError, match="kwargs must be a mapping of names"):
        keyword(kwargs)


def test_keyword_arguments_may_be_left_out() -> None:
    assert keyword(None) == {}
