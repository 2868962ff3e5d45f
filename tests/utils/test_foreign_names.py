"""Names that people know from elsewhere: an error says what to use, and the documentation, too."""

from __future__ import annotations

import copy
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
from psnb._src.coordinator.partitioned import PartitionedDataset
from psnb._src.utils.foreign_names import FOREIGN, SaysWhatToUse
from psnb.data import Dataset

MODULES = {"psnb": psnb, "psnb.data": psnb.data, "psnb.metrics": psnb.metrics}

CLASSES: dict[str, type] = {
    "CheckpointManager": psnb.CheckpointManager,
    "ClusterCoordinator": psnb.ClusterCoordinator,
    "Dataset": Dataset,
    "Embedding": psnb.Embedding,
    "InMemoryDataset": psnb.data.InMemoryDataset,
    "MergeableMetric": psnb.metrics.MergeableMetric,
    "MetricState": psnb.metrics.MetricState,
    "ParameterServerStrategy": psnb.ParameterServerStrategy,
    "PartitionedDataset": PartitionedDataset,
    "QueueDataset": psnb.data.QueueDataset,
    "RemoteValue": psnb.RemoteValue,
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
    return "\n\n".join(parts) + "\n"


def test_the_page_for_newcomers_has_the_table() -> None:
    # To write it anew: replace what follows the heading by what `as_markdown` returns.
    _, _, rest = PAGE.read_text().partition("# Names that an error explains\n\n")
    assert rest.partition("\n\n")[2] == as_markdown()
