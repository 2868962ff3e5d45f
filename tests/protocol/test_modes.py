"""What update modes may be made of."""

from __future__ import annotations

import pytest

import psnb
from psnb._src.protocol.modes import check_mode
from psnb.errors import ConfigurationError

MODES = [psnb.Async(), psnb.Sync(), psnb.Sync(4), psnb.BoundedStaleness(0), psnb.Geo(8)]


@pytest.mark.parametrize("mode", MODES, ids=repr)
def test_a_mode_is_a_mode(mode: object) -> None:
    assert check_mode(mode) is mode


@pytest.mark.parametrize(
    "mode", ["async", None, psnb.Async, psnb._src.protocol.modes.Mode()], ids=repr
)
def test_nothing_else_is(mode: object) -> None:
    with pytest.raises(ConfigurationError, match=r"psnb\.Async\(\)"):
        check_mode(mode)


@pytest.mark.parametrize(
    ("mode", "bad"),
    [
        *((psnb.Sync, bad) for bad in (0, -1, 2.0, True, "2")),
        *((psnb.BoundedStaleness, bad) for bad in (-1, 1.5, None, False)),
        *((psnb.Geo, bad) for bad in (0, None, 1.0, True)),
    ],
)
def test_numbers_out_of_range_are_refused(mode: type, bad: object) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        mode(bad)
