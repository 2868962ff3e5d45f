"""`tests.oldest`: the versions with which `make test-oldest` runs."""

from __future__ import annotations

from psnb._src.dask_compat import TESTED
from tests.oldest import pins, requirements


def test_a_bound_becomes_its_newest_mend() -> None:
    assert pins(["numpy >= 2.0", "dask[distributed] >= 2026.3"]) == [
        "numpy==2.0.*",
        "dask==2026.3.*",
    ]


def test_every_requirement_that_is_not_psnb_itself_has_a_bound() -> None:
    others = [each for each in requirements() if not each.startswith("psnb[")]
    assert len(pins(others)) == len(others)


def test_the_room_of_dask_names_the_oldest_dask_that_is_supported() -> None:
    assert f"dask=={TESTED[0].rpartition('.')[0]}.*" in pins(requirements())
