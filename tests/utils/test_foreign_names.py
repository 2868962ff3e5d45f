"""Names that people know from elsewhere: an error says what to use, and the documentation, too."""

from __future__ import annotations

import copy
import inspect
import pickle
from abc import ABC
from collections.abc import Sized
from pathlib import Path
from typing import Any

import pytest
from IPython.core.formatters import DisplayFormatter

import psnb
import psnb.data
import psnb.metrics
from psnb._src.coordinator.datasets.partitioned import PartitionedDataset
from psnb._src.coordinator.values import PerWorkerIterator
from psnb._src.data.iterator import DatasetIterator
from psnb._src.utils.foreign_names import FOREIGN, FOREIGN_ARGUMENTS, SaysWhatToUse
from psnb._src.worker.resources import SharedIterator
from psnb.data import Dataset

MODULES = {"psnb": psnb, "psnb.data": psnb.data, "psnb.metrics": psnb.metrics}

CLASSES: dict[str, type] = {
    "CheckpointManager": psnb.CheckpointManager,
    "ClusterCoordinator": psnb.ClusterCoordinator,
    "Dataset": Dataset,
    "DatasetIterator": DatasetIterator,
    "Embedding": psnb.Embedding,
    "InMemoryDataset": psnb.data.InMemoryDataset,
    "InputContext": psnb.InputContext,
    "MergeableMetric": psnb.metrics.MergeableMetric,
    "MetricState": psnb.metrics.MetricState,
    "ParameterServerStrategy": psnb.ParameterServerStrategy,
    "PartitionedDataset": PartitionedDataset,
    "PerWorkerIterator": PerWorkerIterator,
    "QueueDataset": psnb.data.QueueDataset,
    "RemoteValue": psnb.RemoteValue,
    "SharedIterator": SharedIterator,
    "Trainer": psnb.Trainer,
    "Variable": psnb.Variable,
}

PAIRS = [(owner, name) for owner, names in FOREIGN.items() for name in names]
PAGE = Path(__file__).parents[2] / "docs" / "coming-from" / "names.md"


def made(owner: str) -> Any:
    """Return an object of a class, without what its `__init__` does."""
    return object.__new__(
        psnb.metrics.RMSE if owner == "MergeableMetric" else CLASSES[owner]  # which is abstract
    )


@pytest.mark.parametrize(("owner", "name"), PAIRS)
def test_a_foreign_name_is_no_attribute_and_its_error_says_what_to_use(
    owner: str, name: str
) -> None:
    thing = MODULES[owner] if owner in MODULES else made(owner)
    assert not hasattr(thing, name)
    with pytest.raises(AttributeError) as found:
        getattr(thing, name)
    use = FOREIGN[owner][name].replace("`", "")
    assert str(found.value) == f"{owner} has no {name!r}; here: {use}"
    assert found.value.name is None  # so Python suggests nothing else


def test_the_table_has_the_classes_and_modules_that_answer() -> None:
    assert set(FOREIGN) == {*MODULES, *CLASSES}
    assert all(issubclass(each, SaysWhatToUse) for each in CLASSES.values())


def test_a_foreign_name_of_the_class_itself_is_answered_where_classes_are_called() -> None:
    with pytest.raises(AttributeError, match=r"here: psnb\.data\.Dataset\.from_tensor_slices"):
        Dataset.from_list([1, 2])  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="type object 'Dataset' has no attribute 'nothing'"):
        _ = Dataset.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("thing", [Dataset.range(3), psnb.metrics.RMSE(), psnb, psnb.data])
def test_of_other_names_python_tells_near_ones(thing: Any) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nearby'") as found:
        _ = thing.nearby
    assert (found.value.name, found.value.obj) == ("nearby", thing)


def test_an_error_of_a_property_is_its_own() -> None:
    class Failing(SaysWhatToUse):
        @property
        def number(self) -> int:
            raise AttributeError("within")

    with pytest.raises(AttributeError, match="within"):
        _ = Failing().number


def test_a_subclass_may_be_abstract_or_of_a_collection() -> None:
    class Mine(Dataset, Sized, ABC): ...

    class Other(ABC, Dataset): ...

    assert len(Mine.range(3)) == len(Other.range(3)) == 3


def test_pickle_copy_and_ipython_find_what_they_did() -> None:
    for thing in (Dataset.range(3), psnb.metrics.RMSE()):
        assert repr(copy.deepcopy(thing)) == repr(pickle.loads(pickle.dumps(thing))) == repr(thing)
        assert repr(copy.copy(thing)) == repr(thing)
        shown, _ = DisplayFormatter().format(thing)
        assert shown["text/plain"] == repr(thing)
    for owner, kind in CLASSES.items():
        assert not hasattr(made(owner), "_ipython_canary_method_should_not_exist_")
        assert not set(FOREIGN[owner]) & set(dir(kind))


ARGUMENTS = [(owner, name) for owner, names in FOREIGN_ARGUMENTS.items() for name in names]


def callables(owner: str) -> dict[str, Any]:
    """Return what users call of an owner in the table of arguments, by name."""
    thing = getattr(psnb, owner, None) or getattr(psnb.data, owner)
    if owner == "Optimizer":
        return {each.__name__: each for each in psnb.Optimizer.__subclasses__()[0].__subclasses__()}
    if not isinstance(thing, type):
        return {owner: thing}
    public = [name for name in dir(thing) if not name.startswith("_")]
    methods = {f"{owner}.{name}": getattr(thing, name) for name in public}
    return {owner: thing, **{name: each for name, each in methods.items() if callable(each)}}


@pytest.mark.parametrize(("owner", "name"), ARGUMENTS)
def test_a_foreign_argument_is_explained_wherever_it_is_given(owner: str, name: str) -> None:
    refused = 0
    for what, function in callables(owner).items():
        signature = inspect.signature(function)
        if name in signature.parameters or not signature.parameters:
            continue
        given = [None] * sum(each.default is each.empty for each in signature.parameters.values())
        with pytest.raises(TypeError) as found:
            function(*given, **{name: 1})
        use = FOREIGN_ARGUMENTS[owner][name].replace("`", "")
        assert str(found.value) == f"{what} has no argument {name!r}; here: {use}"
        refused += 1
    assert refused


def test_other_arguments_are_refused_by_what_is_near() -> None:
    with pytest.raises(TypeError, match="no argument 'nothing'; there are function"):
        Dataset.range(3).map(abs, nothing=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"local_cluster: .* 'worker': did you mean 'workers'"):
        psnb.local_cluster(worker=2)  # type: ignore[call-arg]


def test_signatures_are_those_of_the_methods() -> None:
    assert [*inspect.signature(Dataset.shard).parameters] == ["self", "num_shards", "index"]
    assert [*inspect.signature(psnb.local_cluster).parameters][:2] == ["workers", "servers"]


SET = [
    (Dataset.range(3), "batch_size", r"here: batch\(batch_size\)"),
    (Dataset.range(3), "node", "Dataset.node cannot be changed: make another one"),
    (Dataset.range(3), "nothing", "Dataset has no attribute 'nothing' to set"),
    (Dataset.range(3), "element_spec", "no setter"),
    (psnb.data.InMemoryDataset.of(Dataset.range(3), 2), "batch_size", "cannot be changed"),
    (
        psnb.data.InMemoryDataset.of(Dataset.range(3), 2),
        "thread",
        "argument of the class, when it is made: threads",
    ),
]


@pytest.mark.parametrize(("thing", "name", "problem"), SET)
def test_what_nothing_reads_cannot_be_set(thing: Any, name: str, problem: str) -> None:
    with pytest.raises(AttributeError, match=problem):
        setattr(thing, name, 8)


READ_ONLY = sorted(
    {*CLASSES}
    - {"DatasetIterator", "MergeableMetric", "MetricState", "PerWorkerIterator"}
    - {"InputContext", "SharedIterator"}
)


@pytest.mark.parametrize("owner", READ_ONLY)
def test_no_class_takes_an_attribute_that_it_does_not_declare(owner: str) -> None:
    with pytest.raises(AttributeError, match="nothing_reads_this"):
        object.__new__(CLASSES[owner]).nothing_reads_this = 8


def test_a_class_of_a_user_sets_what_it_likes() -> None:
    class Mine(Dataset): ...

    mine = Mine.range(3)
    mine.note = "mine"  # type: ignore[attr-defined]
    assert mine.note == "mine"  # type: ignore[attr-defined]


def as_markdown() -> str:
    """Return the table as the documentation has it."""
    parts = []
    for owner, names in FOREIGN.items():
        what = f"`{owner}`" if owner in MODULES else f"objects of `{owner}`"
        uses = dict.fromkeys(names.values())
        rows = [
            f"| {', '.join(f'`{name}`' for name in names if names[name] == use)} | {use} |"
            for use in uses
        ]
        parts.append("\n".join([f"| Not in {what} | here |", "| --- | --- |", *rows]))
    for owner, names in FOREIGN_ARGUMENTS.items():
        rows = [f"| `{name}` | {use} |" for name, use in names.items()]
        parts.append("\n".join([f"| No argument of `{owner}` | here |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def test_the_page_for_newcomers_has_the_table() -> None:
    # To write it anew: replace what follows the heading by what `as_markdown` returns.
    _, _, rest = PAGE.read_text().partition("# Names that an error explains\n\n")
    assert rest.partition("\n\n")[2] == as_markdown()
