"""Arrays that differ in any axis, where elements are kept or mixed."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnb._src.data.block import block_of, concatenate, objects
from psnb._src.data.nodes import parts
from psnb._src.data.nodes import saved as saved_elements
from psnb.data import Dataset, Ragged, splits
from psnb.errors import DatasetError
from tests.data.elements import values

D = Dataset


def of(elements: Sequence[Any]) -> Dataset:
    """Return a dataset of given elements, which is cut and read by any process."""
    return D.range(len(elements)).map(lambda n: elements[n])


def words(*shape: int) -> np.ndarray:
    found = np.empty(shape, object)
    found[...] = [f"é{n}" for n in range(shape[-1])]
    return found


ROWS = of([np.arange(n) for n in (2, 3, 4, 1, 5, 1, 2)])

SOURCES: dict[str, Dataset] = {
    "padded": ROWS.padded_batch(2),
    "one a batch": ROWS.padded_batch(1),
    "padded by map": ROWS.ragged_batch(2).map(lambda batch: batch.pad()),
    "buckets": ROWS.bucket_by_sequence_length(len, [3], [2, 2]),
    "ragged": ROWS.ragged_batch(2),
    "ragged of other rows": of([Ragged.from_rows([np.ones((2, n))] * 2) for n in (2, 3, 2)]),
    "pictures": of([np.full((n, n + 1, 3), n, np.uint8) for n in (2, 3, 4, 1, 5, 5, 0)]),
    "equal at first": of([np.full((2, n), n) for n in (2, 2, 2, 2, 3, 4, 2)]),
    "first axis at first": of([np.ones(s) for s in ((1, 2), (2, 2), (3, 2), (2, 3), (2, 2))]),
    "scalars beside": of([(np.ones((n, n)), n, f"n{n}") for n in (2, 3, 1)]),
    "words": of([words(1, n) for n in (2, 3, 2, 1)]),
    "words of one shape": of([words(2, 2)] * 3),
    "times": of([np.full((n, n), n, "datetime64[ns]") for n in (2, 3, 1)]),
    "Fortran's order": of([np.asfortranarray(np.arange(n * n).reshape(n, n)) for n in (2, 3)]),
}


def cached(dataset: Dataset, folder: Path) -> Dataset:
    kept = dataset.cache(str(folder / "kept"))
    assert values(kept) == values(dataset)
    return kept


def saved(dataset: Dataset, folder: Path) -> Dataset:
    dataset.save(folder / "saved")
    return D.load(folder / "saved")


DOORS: dict[str, Callable[[Dataset, Path], Dataset]] = {
    "cache": cached,
    "save": saved,
    "shuffle of one": lambda dataset, folder: dataset.shuffle(1, seed=3),
    "shuffle": lambda dataset, folder: dataset.shuffle(3, seed=3),
    "shuffle of all": lambda dataset, folder: dataset.shuffle(99, seed=3),
    "shuffle of what is cached": lambda dataset, folder: cached(dataset, folder).shuffle(3),
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Dataset:
    return SOURCES[request.param]


@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_arrays_of_any_shapes(door: str, source: Dataset, tmp_path: Path) -> None:
    found, expected = values(DOORS[door](source, tmp_path)), values(source)
    if "shuffle" in door:
        found, expected = sorted(found, key=repr), sorted(expected, key=repr)
    assert found == expected


def test_a_shuffle_of_any_shapes_resumes_anywhere(source: Dataset) -> None:
    mixed = source.shuffle(3, seed=3)
    whole = values(mixed)
    for taken in range(len(whole) + 1):
        iterator = iter(mixed)
        begun = list(itertools.islice(iterator, taken))
        rest = mixed.iterator(json.loads(json.dumps(iterator.state())))
        assert values(begun) + values(rest) == whole


def test_parts_of_what_was_saved_have_all_of_it(source: Dataset, tmp_path: Path) -> None:
    loaded = saved(source, tmp_path)
    assert [each for part in splits(loaded, 3) for each in values(part)] == values(source)


def test_large_elements_do_not_wait_for_others_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_PART_BYTES", 100_000)
    monkeypatch.setattr(saved_elements, "BLOCK", 4)
    pictures = of([np.full((100, n), n) for n in range(100, 120)])
    assert values(saved(pictures, tmp_path)) == values(pictures)
    assert len(list((tmp_path / "saved").glob("*.npz"))) == 5


@pytest.mark.parametrize(
    "shapes", [[[2, 2], [-1, 3], [1, 1]], [[4, 1], [-1, 1], [4, 1]], [[1, 2]] * 3, [[9, 9]] * 3]
)
def test_shapes_that_are_not_those_of_the_values_are_refused(
    shapes: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = np.savez

    def damaged(path: Any, **arrays: Any) -> None:
        write(path, **{**arrays, "0.shapes": np.array(shapes)})

    monkeypatch.setattr(np, "savez", damaged)
    of([np.ones((2, 2)), np.ones((1, 2)), np.ones((1, 1))]).save(tmp_path / "saved")
    with pytest.raises(DatasetError, match="its arrays have other shapes than their values"):
        list(D.load(tmp_path / "saved"))


def test_arrays_of_several_dtypes_are_refused_as_they_are_elsewhere(tmp_path: Path) -> None:
    whole = D.from_tensor_slices(np.ones((3, 1, 2)))
    several = whole.concatenate(of([np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)]))
    for use in (lambda: several.save(tmp_path / "saved"), lambda: list(several.shuffle(2))):
        with pytest.raises(DatasetError, match=r"dtype|float"):
            use()


@pytest.mark.parametrize("leaves", [(1, [2]), ([2], 1), ([1, 2], [[3]])])
@pytest.mark.parametrize("join", [D.batch, D.padded_batch])
def test_leaves_with_other_numbers_of_axes_are_refused_in_a_batch(leaves: Any, join: Any) -> None:
    each = [D.from_generator(lambda leaf=leaf: iter([np.array(leaf)[()]])) for leaf in leaves]
    joined = functools.reduce(D.concatenate, each)
    with pytest.raises(DatasetError, match=r"element 0: the element (cannot be stacked|has from)"):
        list(join(joined, len(leaves)))


def test_scalars_beside_objects_stay_what_they_are() -> None:
    arrays = objects([np.ones((2, 2), int), np.ones((3, 3), int)])
    (found,) = concatenate([block_of(arrays), block_of(np.array([7]))]).columns
    assert isinstance(found[2], np.int64)
