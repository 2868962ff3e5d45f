"""Whose code a file is."""

from __future__ import annotations

import json

import numpy as np
import pytest

from psnb._src.utils import tracebacks
from psnb._src.utils.tracebacks import is_psnbs, is_users


@pytest.mark.parametrize(
    "file",
    [__file__, "train.py", "<ipython-input-3-abc>", "/tmp/ipykernel_3/4.py", "<stdin>", "<string>"],
)
def test_cells_scripts_and_modules_are_the_users(file: str) -> None:
    assert is_users(file)
    assert not is_psnbs(file)


@pytest.mark.parametrize(
    "file",
    [
        *(json.__file__, np.__file__, "<frozen importlib._bootstrap>", tracebacks.__file__),
        *("pyarrow/error.pxi", "pandas/_libs/lib.pyx"),  # as extensions name them
    ],
)
def test_pythons_libraries_and_psnb_are_not(file: str) -> None:
    assert not is_users(file)
    assert is_psnbs(file) == (file == tracebacks.__file__)
