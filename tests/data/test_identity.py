"""What tells datasets from each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from psnb._src.data.splits import identity
from psnb.data import Dataset

LONG = "long" * 50


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{LONG}-{number}" for number in range(9)]
    for each in paths:
        each.write_text("1\n")
    return [str(each) for each in paths]


def test_another_of_many_files_with_long_names_is_another_dataset(files: list[str]) -> None:
    one, other = (Dataset.text_lines(each) for each in (files[:8], [*files[:7], files[8]]))
    assert identity([one]) != identity([other])
    assert identity([one]) == identity([Dataset.text_lines(files[:8])])


def test_another_batch_size_seed_array_function_or_cut_is_another_dataset() -> None:
    base = Dataset.range(10).shuffle(5, seed=1)
    found = [
        identity([each])
        for each in (
            base,
            base.batch(2),
            base.batch(3),
            Dataset.range(10).shuffle(5, seed=2),
            Dataset.from_tensor_slices(np.zeros(3)),
            Dataset.from_tensor_slices(np.zeros(4)),
            base.map(int),
            base.map(float),
        )
    ]
    assert len({*found}) == len(found)
    assert identity([base, base]) != identity([base])


def test_people_see_the_chain() -> None:
    told = identity([Dataset.range(10).batch(2)])
    assert told.endswith("(range(start=0, stop=10, step=1) → batch(batch_size=2))")
