"""Arguments that people know from TensorFlow, Paddle and Dask, and what to use here.

The table is for errors, and for docs/coming-from/names.md, which has it whole. Pure.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_NOTHING = "nothing: {}"
_FILES_AHEAD = (
    "`interleave(function, cycle_length)` reads several files in turn, `prefetch(n)` ahead"
)
_SIGNATURE = "`output_signature`, of `psnb.data.ArraySpec`"
_CHUNKS = _NOTHING.format("files are read in pieces")
_SHUFFLE = "`shuffle(buffer_size)`"

_PADDLE_DATASET = {
    "thread": "`threads`",
    "thread_num": "`threads`",
    "use_var": "`slots`, of `psnb.data.Slot`",
    "filelist": "`files`",
    "fs_name": "`files` may be addresses, such as `hdfs://user@host:port/path*`",
    "fs_ugi": "`files` may be addresses, such as `hdfs://user@host:port/path*`",
    "input_type": _NOTHING.format("slots say what they are"),
    "queue_num": _NOTHING.format("the threads of a worker share one iterator"),
}

FOREIGN_ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "local_cluster": {
        "n_workers": "`workers`",
        "num_workers": "`workers`",
        "num_ps": "`servers`",
        "num_servers": "`servers`",
        "n_servers": "`servers`",
    },
    "ParameterServerStrategy": {
        "cluster_resolver": "`client`, of Dask",
        "variable_partitioner": "`partitioner`",
        "trainable": "`optimizer`: without one a parameter does not learn",
        "aggregation": _NOTHING.format("each push is an update, in mode `psnb.Sync` a round"),
        "synchronization": _NOTHING.format("closures read what servers have"),
        "num_embeddings": "`rows`",
        "input_dim": "`rows`",
        "size": "`rows` and `dim`",
        "embedding_dim": "`dim`",
        "output_dim": "`dim`",
        "embeddings_initializer": "`initializer`",
        "entry": "`admission`",
        "param_attr": "`name`, `initializer` and `optimizer`",
    },
    "ClusterCoordinator": {
        "dataset_fn": "`dataset_or_fn`, the first argument",
        "val": "`structure`, the first argument",
    },
    "Dataset": {
        "num_parallel_calls": "`map` has it; other steps are read ahead by `prefetch(n)`",
        "deterministic": "`map` has it; all else keeps its order",
        "map_func": "`function`, the first argument",
        "compression_type": "`compression`",
        "buffer_size": _CHUNKS,
        "num_parallel_reads": _FILES_AHEAD,
        "filenames": "`files`",
        "output_types": _SIGNATURE,
        "output_shapes": _SIGNATURE,
        "num_epochs": "`repeat(count)`",
        "shuffle": _SHUFFLE,
        "shuffle_buffer_size": _SHUFFLE,
        "select_columns": "`columns`",
        "select_cols": "`columns`",
        "record_defaults": "`dtypes`",
        "column_names": "`names`",
        "field_delim": "`delimiter`",
        "label_name": "`map(function)` takes the column out",
        "num_workers": "workers of a cluster share a dataset: `create_per_worker_dataset`",
        "name": _NOTHING.format("steps have no names"),
    },
    "InMemoryDataset": _PADDLE_DATASET,
    "QueueDataset": _PADDLE_DATASET,
    "Trainer": {
        "program": "`step`, of the class",
        "scope": _NOTHING.format("parameters are the strategy's"),
        "thread": "`worker=psnb.Hogwild(threads=n)`, of the class",
        "fetch_list": "`fetch`, of names that a step returns or reports",
        "fetch_info": _NOTHING.format("`fetch` has the names that are shown"),
        "print_period": "`fetch_every`",
        "fetch_handler": "`callbacks`",
        "validation_data": "`validation`",
        "batch_size": "`batch(n)` of the dataset",
        "verbose": "`progress`, of the class",
        "initial_epoch": "`resume=True`, of the class",
    },
    "CheckpointManager": {
        "checkpoint": "`coordinator`: all parameters of its strategy are saved",
        "keep_checkpoint_every_n_hours": "`keep_every`, such as `'2 h'`",
        "checkpoint_interval": "`steps`, or `every`",
        "step_counter": "`steps`, which counts closures",
        "checkpoint_name": _NOTHING.format("checkpoints have numbers"),
        "checkpoint_number": _NOTHING.format("checkpoints have numbers"),
        "init_fn": "`restore()`, if `latest_checkpoint` is not None",
    },
}
"""For functions and classes: arguments that they and their methods have not, and what to use."""

F = TypeVar("F", bound=Callable[..., Any])


def explained(function: F) -> F:
    """Return a function that explains those arguments that the table has for it."""
    name = function.__name__
    return _explained(FOREIGN_ARGUMENTS[name], name, function)


def explain_methods(cls: type) -> None:
    """Let the methods of a class explain arguments, if the table has some for it."""
    known = FOREIGN_ARGUMENTS.get(cls.__name__)
    if known is None:
        return
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        is_made = name in ("__init__", "__new__")
        if name.startswith("_") and not is_made:
            continue
        what = cls.__name__ if is_made else f"{cls.__name__}.{name}"
        if isinstance(member, classmethod | staticmethod):
            setattr(cls, name, type(member)(_explained(known, what, member.__func__)))
        elif inspect.isfunction(member):
            setattr(cls, name, _explained(known, what, member))


def _explained(known: Mapping[str, str], what: str, function: F) -> F:
    own = inspect.signature(function).parameters
    uses = {name: use for name, use in known.items() if name not in own}
    if not own or any(each.kind is each.VAR_KEYWORD for each in own.values()):
        return function

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys().isdisjoint(uses):
            name = next(name for name in kwargs if name in uses)
            use = uses[name].replace("`", "")
            raise TypeError(f"{what} has no argument {name!r}; here: {use}")
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]
