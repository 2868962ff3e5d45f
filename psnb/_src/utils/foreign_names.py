"""Names that people know from TensorFlow, Keras, PyTorch, Dask and Paddle, and what to use here.

The table is for errors, and for docs/coming-from/names.md, which has it whole. Pure.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from psnb._src.utils.foreign_arguments import explain_methods

_SCHEDULE = "`coordinator.schedule(fn, args)` queues a closure, which runs on one worker"
_PER_WORKER = "`coordinator.create_per_worker_dataset(fn)`; the function may take an InputContext"
_PARAMETERS = "`strategy.variable(...)` and `strategy.embedding(...)` make parameters; no scopes"
_CHECKPOINTS = "`psnb.CheckpointManager` saves and restores all parameters of a strategy"
_ELEMENT_SPEC = "`element_spec` says shapes and dtypes"
_ITERATE = "`iter(dataset)`, or `iterator(state)` to resume"
_SAVED = "`save(path)` and `psnb.data.Dataset.load(path)`, or `cache(filename)`"
_RAGGED = "`ragged_batch(batch_size)`"
_ARGUMENT = "an argument of the class, when it is made: "
_FILES = "`with_files(files)`, or the argument `files`"
_STATISTICS = "`statistics().examples`"
_MEMORY = "`psnb.data.InMemoryDataset` has its examples in memory; a queue reads files as a stream"
_READ = "`read()` returns the value as an array of NumPy"
_METRIC = "a metric has no state of its own: it returns one for each batch, and those add up"
_ADD = f"{_METRIC}; `metric.empty()` is where a sum begins"
_FETCH = "`fetch()` waits for the result and returns it"
_LOADED = "`psnb.data.{}`"
_PROGRAM = "nothing: servers and workers are Dask's, and get what they need with the first closure"

_PADDLE_SETTINGS = {
    "set_batch": f"{_ARGUMENT}`batch_size`",
    "set_batch_size": f"{_ARGUMENT}`batch_size`",
    "set_thread": f"{_ARGUMENT}`threads`",
    "set_use_var": f"{_ARGUMENT}`slots`, of `psnb.data.Slot`",
    "set_pipe_command": f"{_ARGUMENT}`pipe_command`",
    "set_filelist": _FILES,
    "set_date": f"a dataset a day: {_FILES}",
    "set_hdfs_config": "files may be addresses, such as `hdfs://user@host:port/path*`",
    "set_parse_ins_id": '`psnb.data.Slot("id", "bytes", ())` is a word of each line',
    "set_parse_content": '`psnb.data.Slot("content", "bytes", ())` is a word of each line',
    "set_queue_num": "nothing: the threads of a worker share one iterator",
    "init": "arguments of the class: `files`, `slots`, `batch_size`, `threads`",
    "update_settings": "arguments of the class; make another dataset",
}

FOREIGN: Mapping[str, Mapping[str, str]] = {
    "psnb": {
        "fleet": "`psnb.ParameterServerStrategy`, `psnb.ClusterCoordinator`, `psnb.Trainer`",
        "init_server": _PROGRAM,
        "run_server": _PROGRAM,
        "init_worker": _PROGRAM,
        "Executor": "`psnb.Trainer`",
        "train_from_dataset": "`psnb.Trainer.train_from_dataset`",
        "Dataset": "`psnb.data.Dataset`",
        "InMemoryDataset": "`psnb.data.InMemoryDataset`",
        "QueueDataset": "`psnb.data.QueueDataset`",
        "Slot": "`psnb.data.Slot`",
        "AUTOTUNE": "`psnb.data.AUTOTUNE`",
        "Server": "servers are Dask workers: `psnb.local_cluster(workers=2, servers=1)`",
        "LocalCluster": "`psnb.local_cluster(workers=2, servers=1)`",
        "Client": "`psnb.connect(address)`, or a Client of Dask's own",
        "FixedShardsPartitioner": "`psnb.FixedShards`",
        "MinSizePartitioner": "`psnb.MinSize`",
        "MaxSizePartitioner": "`psnb.MaxSize`",
        "RandomUniform": "`psnb.Uniform`",
        "RandomNormal": "`psnb.Normal`",
        "Zeros": "`psnb.Constant(0.0)`",
        "Ftrl": "`psnb.FTRL`",
        "RMSprop": "`psnb.RMSProp`",
        "load": "`psnb.CheckpointManager` restores parameters; `psnb.load_model` reads a model",
        "save": "`psnb.CheckpointManager` saves parameters; `psnb.export` writes a model",
    },
    "psnb.data": {
        "DatasetFactory": "classes have names: `psnb.data.InMemoryDataset`",
        "TextLineDataset": _LOADED.format("Dataset.text_lines"),
        "TFRecordDataset": _LOADED.format("Dataset.tfrecords"),
        "FixedLengthRecordDataset": _LOADED.format("Dataset.fixed_length_records"),
        "CsvDataset": _LOADED.format("Dataset.csv"),
        "MultiSlotDataset": _LOADED.format("Dataset.multi_slot"),
        "FixedLenFeature": _LOADED.format("FixedLen"),
        "VarLenFeature": _LOADED.format("VarLen"),
        "RaggedTensor": _LOADED.format("Ragged"),
        "TensorSpec": _LOADED.format("ArraySpec"),
        "DataLoader": "`psnb.data.Dataset` batches and shuffles; `batch(n)`, `shuffle(n)`",
        "from_tensor_slices": _LOADED.format("Dataset.from_tensor_slices"),
        "from_generator": _LOADED.format("Dataset.from_generator"),
        "load": _LOADED.format("Dataset.load"),
    },
    "psnb.metrics": {
        "BinaryCrossentropy": "`psnb.metrics.LogLoss`",
        "BinaryAccuracy": "`psnb.metrics.Accuracy`",
        "CategoricalAccuracy": "`psnb.metrics.Accuracy`",
        "RootMeanSquaredError": "`psnb.metrics.RMSE`",
        "MeanAbsoluteError": "`psnb.metrics.MAE`",
        "TopKCategoricalAccuracy": "`psnb.metrics.TopK`",
    },
    "ParameterServerStrategy": {
        "run": _SCHEDULE,
        "experimental_run_v2": _SCHEDULE,
        "scope": _PARAMETERS,
        "add_weight": _PARAMETERS,
        "reduce": "closures push gradients, which servers apply; states of metrics add up",
        "gather": "`coordinator.fetch(results)` brings what closures have returned",
        "experimental_local_results": "`coordinator.fetch(results)`: what closures have returned",
        "distribute_datasets_from_function": _PER_WORKER,
        "experimental_distribute_datasets_from_function": _PER_WORKER,
        "experimental_distribute_dataset": (
            '`coordinator.create_per_worker_dataset(dataset, sharding="dynamic")`'
        ),
        "experimental_distribute_values_from_function": (
            "`coordinator.create_per_worker_resource(fn)`"
        ),
        "num_replicas_in_sync": "`num_workers`: they are not in step, but in mode `psnb.Sync`",
        "cluster_resolver": "`worker_names` and `server_addresses`",
        "extended": "`worker_names`, `server_addresses` and `parameters`",
        "trainable_variables": "`parameters`, by name",
        "variables": "`parameters`, by name",
        "save": _CHECKPOINTS,
        "restore": _CHECKPOINTS,
    },
    "ClusterCoordinator": {
        "run": _SCHEDULE,
        "submit": _SCHEDULE,
        "gather": "`fetch(results)`",
        "wait": "`join()`",
        "scatter": "arguments travel with a closure; `create_per_worker_resource(fn)` makes more",
        "create_per_worker_values": "`create_per_worker_resource(fn)`",
        "shutdown": "`close()`",
        "stop": "`close()` ends it, `cancel_queued()` what waits, `pause()` holds it",
    },
    "InputContext": {
        "num_input_pipelines": "`num_workers`",
        "input_pipeline_id": "`worker_index`",
        "num_replicas_in_sync": "`num_workers`",
        "get_per_replica_batch_size": "a batch is that of one closure, whatever the workers",
    },
    "PerWorkerIterator": {
        "get_next": "`next(iterator)` in a closure, whose argument it is",
        "next": "`next(iterator)` in a closure, whose argument it is",
    },
    "SharedIterator": {
        "get_next": "`next(iterator)`",
        "get_next_as_optional": "`next(iterator, None)`",
        "next": "`next(iterator)`",
    },
    "DatasetIterator": {
        "get_next": "`next(iterator)`",
        "get_next_as_optional": "`next(iterator, None)`",
        "next": "`next(iterator)`",
    },
    "RemoteValue": {
        "get": _FETCH,
        "result": _FETCH,
        "numpy": _FETCH,
        "exception": f"{_FETCH}, or raises the closure's error",
        "add_done_callback": "`psnb.as_completed(remotes)` gives each one that is done",
    },
    "Dataset": {
        "apply": "call the function with the dataset: `fn(dataset)`",
        "group_by_window": "`bucket_by_sequence_length(...)` groups by an integer of an element",
        "dense_to_ragged_batch": _RAGGED,
        "dense_to_sparse_batch": _RAGGED,
        "sparse_batch": _RAGGED,
        "map_and_batch": "`map(function).batch(batch_size)`",
        "shuffle_and_repeat": "`shuffle(buffer_size).repeat(count)`",
        "parallel_interleave": "`interleave(function)`, with `prefetch(n)` at each dataset's end",
        "snapshot": _SAVED,
        "rejection_resample": "`filter(predicate)`, or `psnb.data.Dataset.sample_from_datasets`",
        "choose_from_datasets": "`psnb.data.Dataset.sample_from_datasets`, or `zip` for turns",
        "random": "`psnb.data.Dataset.range(n).map(function)`, seeded by the number",
        "counter": "`psnb.data.Dataset.range(start, stop)`",
        "from_list": "`psnb.data.Dataset.from_tensor_slices(items)`",
        "from_dict": "`psnb.data.Dataset.from_tensor_slices(arrays)`",
        "from_pandas": "`psnb.data.Dataset.from_table(frame)`",
        "from_csv": "`psnb.data.Dataset.csv(files)`",
        "from_parquet": "`psnb.data.Dataset.parquet(files)`",
        "get_single_element": "`next(iter(dataset))`",
        "to_list": "`list(dataset)`",
        "options": "`with_options(psnb.data.Options(...))`",
        "output_shapes": _ELEMENT_SPEC,
        "output_types": _ELEMENT_SPEC,
        "make_one_shot_iterator": _ITERATE,
        "make_initializable_iterator": _ITERATE,
        "batch_size": "`batch(batch_size)`",
        "prefetch_to_device": "`prefetch(n)`; a step moves its batch to `device=`",
        "global_shuffle": _MEMORY,
        "load_into_memory": _MEMORY,
        "slots_shuffle": _MEMORY,
    },
    "InMemoryDataset": {
        **_PADDLE_SETTINGS,
        "get_memory_data_size": _STATISTICS,
        "get_shuffle_data_size": _STATISTICS,
        "set_fea_eval": "nothing: `slots_shuffle(slots)` needs no preparation",
        "set_merge_by_lineid": '`psnb.data.Dataset.merge_by("id")`, before `of`',
        "set_fleet_send_batch_size": "nothing: a receiver that is slow slows its senders",
        "map": "`batches()` is a dataset with such methods, once loaded; or before `of`",
        "shuffle": "`global_shuffle(seed)`",
    },
    "PartitionedDataset": {
        "get_memory_data_size": _STATISTICS,
        "get_shuffle_data_size": _STATISTICS,
    },
    "QueueDataset": {
        **_PADDLE_SETTINGS,
        "load_into_memory": _MEMORY,
        "local_shuffle": _MEMORY,
        "global_shuffle": _MEMORY,
        "slots_shuffle": _MEMORY,
        "map": "`dataset` has such methods",
        "batch": "`batch_size`, an argument: elements are batches already",
    },
    "Variable": {
        "read_value": _READ,
        "value": _READ,
        "numpy": _READ,
        "eval": _READ,
        "sparse_read": "`gather(rows)`",
        "get_shape": "`shape`",
        "batch_scatter_update": "`scatter_update(rows, values)`",
        "scatter_nd_update": "`scatter_update(rows, values)`",
        "scatter_nd_add": "`scatter_add(rows, values)`",
        "scatter_nd_sub": "`scatter_sub(rows, values)`",
        "apply_gradients": "`push(gradient)`: the optimizer is where the parameter is",
        "backward": "`push(gradient)`, of a gradient that a framework has computed",
        "grad": "`push(gradient)`: servers keep no gradients",
        "trainable": "`optimizer`, which is None without one",
    },
    "Embedding": {
        "read": "`lookup(ids)`: a table may have any number of rows",
        "numpy": "`lookup(ids)`: a table may have any number of rows",
        "weight": "`lookup(ids)`",
        "gather": "`lookup(ids)`",
        "embedding_lookup": "`lookup(ids)`",
        "pull_sparse": "`lookup(ids)`",
        "push_sparse": "`push(ids, gradients)`",
        "apply_gradients": "`push(ids, gradients)`: the optimizer is where the table is",
        "num_embeddings": "`rows`",
        "input_dim": "`rows`",
        "embedding_dim": "`dim`",
        "output_dim": "`dim`",
        "scatter_update": "`assign(ids, values)`",
    },
    "MergeableMetric": {
        "update_state": _ADD,
        "reset_state": _ADD,
        "reset_states": _ADD,
        "result": f"{_METRIC}; a state's `result()` is the number",
    },
    "MetricState": {
        "numpy": "`result()` is the number",
        "value": "`result()` is the number",
        "update_state": "states of batches add up: `state + other`",
        "merge_state": "states of batches add up: `state + other`",
    },
    "Trainer": {
        "fit": "`train_from_dataset(dataset, epochs=...)`",
        "train": "`train_from_dataset(dataset, epochs=...)`",
        "predict": "`infer_from_dataset(dataset)`",
        "validate": "`evaluate(dataset)`",
        "test": "`evaluate(dataset)`",
        "dump_fields": "`infer_from_dataset(dataset, to=path)` writes what a model predicts",
        "set_dump_fields": "`infer_from_dataset(dataset, to=path)` writes what a model predicts",
        "set_fetch_var_and_info": "`fetch=` and `fetch_every=` of `train_from_dataset`",
        "save": "`checkpoint=` of the class; `psnb.export` for what serves",
        "stop_training": "`stop()`",
    },
    "CheckpointManager": {
        "checkpoint": "all parameters of the coordinator's strategy are saved",
        "restore_or_initialize": "`restore()`, if `latest_checkpoint` is not None",
        "latest": "`latest_checkpoint`",
        "save_persistables": "`save()`",
        "write": "`save()`",
        "read": "`restore()`",
    },
}
"""For each class and module: names that it has not, and what to use."""


def foreign(owner: str, name: str) -> AttributeError | None:
    """Return the error for a name of which the table says what to use; else None."""
    use = FOREIGN.get(owner, {}).get(name)
    if use is None:
        return None
    # With a name, Python would suggest another one of a similar spelling, too.
    return AttributeError(f"{owner} has no {name!r}; here: {use.replace('`', '')}", name=None)


def module_error(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module has not."""
    plain = f"module {module!r} has no attribute {name!r}"
    return foreign(module, name) or AttributeError(plain)  # to which Python adds near names


def answer_of(module: str) -> Callable[[str], NoReturn]:
    """Return a module's ``__getattr__``."""

    def answer(name: str) -> NoReturn:
        raise module_error(module, name)

    return answer


def _missing(owners: tuple[type, ...], name: str) -> None:
    if name.startswith("_"):  # what pickle, copy and IPython look for
        return
    for each in owners:
        error = foreign(each.__name__, name)
        if error is not None:
            raise error


class NamedClass(ABCMeta):
    """The metaclass of a class whose foreign names, called on itself, are in the table.

    A subclass may have an abstract class, or one of `collections.abc`, as a base, too.
    """

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            _missing(cls.__mro__, name)
            type.__getattribute__(cls, name)


class SaysWhatToUse:
    """Base of classes whose foreign names, and arguments, are in the tables."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_methods(cls)

    if not TYPE_CHECKING:  # or every name would be one for type checkers

        def __getattr__(self, name: str) -> NoReturn:
            _missing(type(self).__mro__, name)
            object.__getattribute__(self, name)  # raises Python's own error, with its suggestion


class FixedAttributes(SaysWhatToUse):
    """Base of classes whose objects take only attributes that the class declares, and each once.

    An assignment that nothing reads would be a mistake that nobody sees. What begins with an
    underscore, and classes that users derive, are free.
    """

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None:
            kind = type(self)
            if (
                name.startswith("_")
                or hasattr(kind, name)  # a property, which knows whether it can be set
                or not kind.__module__.startswith("psnb.")
            ):
                object.__setattr__(self, name, value)
                return
            if name in vars(self):
                raise AttributeError(f"{kind.__name__}.{name} cannot be changed: make another one")
            if not any(name in inspect.get_annotations(each) for each in kind.__mro__):
                _missing(kind.__mro__, name)
                _missing(kind.__mro__, f"set_{name}")
                raise AttributeError(f"{kind.__name__} has no attribute {name!r} to set")
            object.__setattr__(self, name, value)
