from __future__ import annotations

import json
import pickle
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from psnb.data import AUTOTUNE, ArraySpec, Dataset, Ragged
from psnb.errors import DatasetError
from tests.data.chains import MEMORY, Pair, fails_at_five, negative
from tests.data.elements import Numbers, plain, values

D = Dataset
INT = np.dtype(np.int64)


@dataclass
class Row:
    x: Any
    y: Any


def test_nothing_runs_until_a_dataset_is_iterated_over() -> None:
    def explode(*_: Any) -> Any:
        raise AssertionError("run")

    dataset = D.from_generator(explode).map(explode).filter(explode).shuffle(5).batch(2).prefetch(2)
    assert "map(" in repr(dataset)
    assert dataset._repr_html_()
    assert dataset.cardinality() is None
    cloudpickle.dumps(dataset)


@pytest.mark.parametrize("make", MEMORY.values(), ids=MEMORY)
def test_datasets_travel(make: Callable[[], Dataset]) -> None:
    dataset = make()
    state = dataset.iterator().state()  # for the same random numbers
    there = cloudpickle.loads(cloudpickle.dumps(dataset))
    with dataset.iterator(state) as here_iterator, there.iterator(state) as there_iterator:
        assert values(there_iterator) == values(here_iterator)


def test_with_functions_of_a_module_the_standard_pickle_will_do() -> None:
    dataset = pickle.loads(pickle.dumps(D.range(4).map(negative).cache()))
    assert values(dataset) == [0, -1, -2, -3]


@pytest.mark.parametrize("make", MEMORY.values(), ids=MEMORY)
def test_a_cardinality_that_is_known_is_right(make: Callable[[], Dataset]) -> None:
    dataset = make()
    count = dataset.cardinality()
    if count is not None:
        with dataset.ignore_errors().iterator() as iterator:
            assert len(values(iterator)) == count - iterator.errors_ignored


def test_the_length_of_what_has_none_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="infinite"):
        len(D.range(3).repeat())
    with pytest.raises(TypeError, match="not known"):
        len(D.range(3).filter(bool))
    assert len(D.range(7).batch(2).repeat(3)) == 12
    assert D.range(0)  # not false because it is empty


def test_printing_shows_a_node_a_line_and_inputs_of_several_further_in() -> None:
    dataset = D.zip(D.range(3), D.range(5).map(negative)).shuffle(10, seed=1).batch(2)
    assert repr(dataset).splitlines() == [
        "  range(start=0, stop=3, step=1)",
        "  range(start=0, stop=5, step=1)",
        "  map(negative)",
        "zip()",
        "shuffle(buffer_size=10, seed=1)",
        "batch(batch_size=2)",
    ]


def test_the_drawing_is_escaped() -> None:
    html = D.list_files("<script>alert(1)</script>").map(lambda x: x)._repr_html_()
    assert "<script>" not in html
    assert "&lt;lambda&gt;" in html


SPECS = {
    "range": (D.range(3), ArraySpec((), INT)),
    "slices": (D.from_tensor_slices({"a": np.ones((4, 2))}), {"a": ArraySpec((2,), np.float64)}),
    "ragged": (D.from_tensor_slices(Ragged.from_rows([[1], []], int)), ArraySpec((None,), INT)),
    "text": (D.from_tensor_slices(["a", "b"]), ArraySpec((), object)),
    "batch": (D.range(3).batch(2), ArraySpec((None,), INT)),
    "batch, drop": (D.range(3).batch(2, True), ArraySpec((2,), INT)),
    "padded_batch": (
        D.range(3).map(np.arange).padded_batch(2, [7]),
        ArraySpec((None, 7), INT),
    ),
    "bucket_by_sequence_length": (
        D.range(3)
        .map(np.arange)
        .bucket_by_sequence_length(len, [2], [2, 1], [7], drop_remainder=True),
        ArraySpec((None, 7), INT),
    ),
    "take_while": (D.range(3).take_while(negative), ArraySpec((), INT)),
    "ragged_batch of a batched map": (
        D.range(3).map(lambda x: np.stack([x, x], 1), batched=True).ragged_batch(3),
        ArraySpec((None, 2), INT),
    ),
    "ragged_batch": (
        D.range(3).map(np.arange).ragged_batch(2),
        ArraySpec((None, None), INT, ragged=True),
    ),
    "enumerate": (D.range(3).enumerate(), (ArraySpec((), INT), ArraySpec((), INT))),
    "zip": (D.zip({"a": D.range(3)}), {"a": ArraySpec((), INT)}),
    "concatenate": (
        D.from_tensors([1, 2]).concatenate(D.from_tensors([1, 2, 3])),
        ArraySpec((None,), INT),
    ),
    "unbatch": (D.from_tensors(np.ones((3, 2))).unbatch(), ArraySpec((2,), np.float64)),
    "map": (
        D.range(3).map(lambda x: (x, [0.5])).shuffle(2),
        (ArraySpec((), INT), ArraySpec((1,), float)),
    ),
}


@pytest.mark.parametrize(("dataset", "spec"), SPECS.values(), ids=SPECS)
def test_the_spec_says_what_elements_are(dataset: Dataset, spec: Any) -> None:
    assert dataset.element_spec == spec


def test_the_spec_of_a_map_runs_its_function_once() -> None:
    calls = []
    dataset = D.range(5).map(lambda x: calls.append(x) or x)
    assert [dataset.element_spec, dataset.element_spec] == [ArraySpec((), INT)] * 2
    assert calls == [0]
    with pytest.raises(DatasetError, match="there is none"):
        _ = D.range(0).map(negative).element_spec


def test_the_spec_of_a_window_has_those_of_its_datasets() -> None:
    assert D.range(5).window(2).element_spec.element_spec == ArraySpec((), INT)


def test_dataclasses_and_named_tuples_nest() -> None:
    dataset = D.from_tensor_slices(Row([1, 2, 3], Pair([4, 5, 6], ["a", "b", "c"]))).batch(2)
    first = next(iter(dataset))
    assert isinstance(first, Row)
    assert isinstance(first.y, Pair)
    assert plain(first) == [[1, 2], ([4, 5], ["a", "b"])]


def test_dicts_may_come_in_another_order() -> None:
    dataset = D.range(4).map(lambda x: {"a": x, "b": -x} if x % 2 else {"b": -x, "a": x})
    (batch,) = dataset.batch(4)
    assert plain(batch) == {"a": [0, 1, 2, 3], "b": [0, -1, -2, -3]}


def test_arrays_of_the_user_cannot_be_changed_through_elements_and_batches_can() -> None:
    array = np.zeros((4, 2))
    element = next(iter(D.from_tensor_slices(array)))
    with pytest.raises(ValueError, match="read-only"):
        element += 1
    for batch in D.from_tensor_slices(array).batch(2):
        batch += 1
    assert not array.any()
    array += 1  # nor is the user's own array read-only


def test_a_map_runs_no_further_than_what_is_asked_for() -> None:
    calls: list[int] = []
    with D.range(100).map(lambda x: calls.append(int(x)) or x).iterator() as iterator:
        next(iterator)
        assert calls == [0]
        next(iterator)
        assert calls == [0, 1]


def test_a_cache_in_memory_reads_its_input_once_for_all_iterators() -> None:
    calls: list[int] = []
    dataset = D.range(5).map(lambda x: calls.append(int(x)) or x).cache()
    with dataset.iterator() as partial:
        next(partial)
    assert values(dataset.repeat(2)) == [0, 1, 2, 3, 4] * 2
    assert values(dataset) == [0, 1, 2, 3, 4]
    assert calls == [0, 0, 1, 2, 3, 4]


def test_what_is_kept_cannot_be_changed_through_elements() -> None:
    dataset = D.from_tensor_slices(np.zeros((4, 2))).batch(2).cache()
    for _ in range(2):
        for batch in dataset:
            with pytest.raises(ValueError, match="read-only"):
                batch += 1


def test_a_cache_lacks_nothing_because_of_an_error() -> None:
    dataset = D.range(8).map(fails_at_five).cache().ignore_errors()
    for _ in range(2):
        with dataset.iterator() as iterator:
            assert values(iterator) == [0, 1, 2, 3, 4, 6, 7]
            assert iterator.errors_ignored == 1


def test_a_cache_in_files_serves_other_processes(tmp_path: Path) -> None:
    calls: list[int] = []

    def make() -> Dataset:
        rows = D.range(5).map(
            lambda x: calls.append(int(x)) or {"n": x, "t": (str(x), b"\0" * int(x))}
        )
        return rows.cache(str(tmp_path / "kept"))

    first = values(make())
    assert values(make()) == first
    assert calls == [0, 1, 2, 3, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_cache_in_files_is_for_its_user_alone(tmp_path: Path) -> None:
    values(D.range(5).cache(str(tmp_path / "kept")))
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700


def test_a_cache_of_another_chain_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "kept")
    values(D.range(5).cache(folder))
    with pytest.raises(
        DatasetError, match="another dataset, or another version of psnb; delete it"
    ):
        values(D.range(6).cache(folder))
    (tmp_path / "kept" / "00000.npz").write_bytes(b"nonsense")
    with pytest.raises(DatasetError, match=r"0\.npz cannot be read"):
        values(D.range(5).cache(folder))
    (tmp_path / "other").mkdir()
    with pytest.raises(DatasetError, match="is not a cache"):
        values(D.range(5).cache(str(tmp_path / "other")))


def test_a_cache_in_files_that_is_not_read_to_its_end_leaves_nothing(tmp_path: Path) -> None:
    with D.range(5).cache(str(tmp_path / "kept")).iterator() as iterator:
        next(iterator)
    assert list(tmp_path.iterdir()) == []
    objects = D.range(4).window(2).cache(str(tmp_path / "kept"))
    with pytest.raises(DatasetError, match="only arrays, Ragged and text"):
        values(objects)
    assert list(tmp_path.iterdir()) == []
    assert len(values(objects.ignore_errors())) == 2


def test_memory_maps_are_gathered_over_files(tmp_path: Path) -> None:
    array = np.arange(30.0).reshape(10, 3)
    for name, part in (("a", array[:4]), ("b", array[4:4]), ("c", array[4:])):
        np.save(tmp_path / f"{name}.npy", part)
    dataset = D.npy(str(tmp_path / "*.npy"))
    assert len(dataset) == 10
    assert dataset.element_spec == ArraySpec((3,), float)
    assert values(dataset) == array.tolist()
    assert sorted(values(dataset.shuffle(10))) == array.tolist()
    np.save(tmp_path / "d.npy", np.ones((2, 2)))
    with pytest.raises(DatasetError, match=r"d\.npy has rows of"):
        values(D.npy(str(tmp_path / "*.npy")))
    with pytest.raises(DatasetError, match="no such file"):
        values(D.npy(str(tmp_path / "none.npy")))
    (tmp_path / "e.npy").write_bytes(b"\x93NUMPY\x01\x00nonsense")
    with pytest.raises(DatasetError, match=r"e\.npy cannot be mapped"):
        values(D.npy(str(tmp_path / "e.npy")))
    with pytest.raises(DatasetError, match=r"\['y'\] has 2 rows in its files, \['x'\] has 10"):
        values(D.npy({"x": [tmp_path / "a.npy", tmp_path / "c.npy"], "y": tmp_path / "d.npy"}))


def test_files_are_listed_in_order_unless_shuffled(tmp_path: Path) -> None:
    for name in "cab":
        (tmp_path / name).touch()
    assert [Path(each).name for each in D.list_files(f"{tmp_path}/*")] == ["a", "b", "c"]
    assert sorted(D.list_files(f"{tmp_path}/*", shuffle=True)) == values(
        D.list_files(f"{tmp_path}/*")
    )
    with pytest.raises(DatasetError, match="no file matches"):
        D.list_files(f"{tmp_path}/x*")


def test_states_are_of_jsons_types() -> None:
    with MEMORY["a long chain"]().iterator() as iterator:
        next(iterator)
        state = iterator.state()
        assert json.loads(json.dumps(state))["chain"] == state["chain"]


def test_autotune_is_tensorflows_number() -> None:
    assert AUTOTUNE == -1


def test_a_table_is_a_dict_of_its_columns() -> None:
    frame = pd.DataFrame({"a": [1, 2], "f": [0.5, np.nan], "s": ["x", None]}, index=[7, 8])
    for table in (frame, pa.Table.from_pandas(frame, preserve_index=False)):
        (first, label), (second, _) = D.from_tensor_slices((table, [3, 4]))
        assert (first, label) == ({"a": 1, "f": 0.5, "s": "x"}, 3)
        assert (second["a"], second["s"]) == (2, None)
        assert np.isnan(second["f"])


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ([1, "x"], "a DataFrame has columns that Arrow does not hold: .*'x'"),
        (pd.array([1, None], "Int64"), "column 'a' lacks a value in row 1"),
    ],
)
def test_a_table_that_arrays_cannot_hold_is_refused(column: Any, problem: str) -> None:
    with pytest.raises(DatasetError, match=problem):
        D.from_tensor_slices(pd.DataFrame({"a": column}))


def test_columns_of_one_name_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(DatasetError, match=r"two columns have one name: \['a', 'a'\]"):
        D.from_tensor_slices(table)


def test_texts_may_be_missing_in_batches() -> None:
    rows = D.from_tensor_slices({"s": np.array(["x", None, "z"], object)})
    for dataset in (rows.batch(3), rows.map(dict).padded_batch(3), rows.ragged_batch(3)):
        (batch,) = dataset
        assert batch["s"].tolist() == ["x", None, "z"]


def test_a_function_that_returns_nothing_is_refused() -> None:
    with pytest.raises(DatasetError, match="found a NoneType"):
        list(D.range(2).map(lambda number: None))


@pytest.mark.parametrize(
    ("dtype", "given", "found"),
    [
        (np.float32, [1.5, 2], [1.5, 2.0]),
        (np.int32, [[1, 2], []], [[1, 2], []]),
        (np.uint8, [255], [255]),
    ],
)
def test_pythons_numbers_take_the_dtype_of_the_signature(
    dtype: Any, given: list[Any], found: list[Any]
) -> None:
    axes = (None,) if isinstance(given[0], list) else ()
    elements = list(D.from_generator(lambda: given, output_signature=ArraySpec(axes, dtype)))
    assert [each.tolist() for each in elements] == found
    assert {each.dtype for each in elements} == {np.dtype(dtype)}


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (np.float32, np.float64(0.1)),
        (np.int32, 2**31),
        (np.uint8, -1),
        (np.int64, 1.5),
        (np.float32, 2**24 + 1),
        (int, True),
    ],
)
def test_numbers_that_a_dtype_cannot_hold_are_refused(dtype: Any, given: Any) -> None:
    dataset = D.from_generator(lambda: [given], output_signature=ArraySpec((), dtype))
    with pytest.raises(DatasetError, match="is a scalar of"):
        list(dataset)


def test_a_cache_in_files_keeps_ragged_batches_and_missing_texts(tmp_path: Path) -> None:
    rows = Ragged.from_rows([[1, 2], [3], []], int)
    texts = np.array(["x", None, b"z"], object)
    dataset = D.from_tensor_slices({"r": rows, "s": texts}).ragged_batch(2)
    for _ in range(2):  # the second comes from the files
        first, second = dataset.cache(str(tmp_path / "cache"))
        assert [row.tolist() for row in first["r"]] == [[1, 2], [3]]
        assert [row.tolist() for row in second["r"]] == [[]]
        assert (first["s"].tolist(), second["s"].tolist()) == (["x", None], [b"z"])


def test_take_while_asks_no_more_once_it_has_ended() -> None:
    asked: list[int] = []
    dataset = D.range(9).take_while(lambda n: asked.append(int(n)) or n < 2)
    assert values(dataset.batch(5)) == [[0, 1]]
    assert asked == [0, 1, 2]


def test_a_format_of_the_users_may_have_a_count_of_its_own() -> None:
    @dataclass(frozen=True)
    class Counted(Numbers):
        count: int = 3

    dataset = D.from_files(Counted(), ["2", "3"])
    assert dataset.cardinality() is None
    assert values(dataset) == [20, 21, 30, 31, 32]
