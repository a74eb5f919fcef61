"""The names of other libraries, each with the call of Penstock that does the same, for messages.

The table here has names of torch, Grain, tf.data, Hugging Face, WebDataset, Streaming and Ray: as attributes of a
dataset, a loader and the package, and as arguments of calls. It is read only where Python has already refused a call or
an attribute, so a right call costs nothing more than one function call, and neither type checkers nor completion see
the names.

Each entry is a reason and a call. The tests evaluate all of these calls. In the call of an argument, `{}` is replaced
by the given value.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])
Remedy: TypeAlias = tuple[str, str]

_LOADED: Final = (
    "a loader iterates over a dataset, and its workers compute batches ahead",
    "ps.Loader(dataset.batch(32), num_workers=4)",
)
_PREFETCHED: Final = ("a loader computes batches ahead", "ps.Loader(dataset.batch(32), prefetch=2)")
_TENSORS: Final = ("a loader of torch yields tensors", "ps.torch.Loader(dataset.batch(32))")
_NUMPY: Final = ("elements are NumPy arrays and Python values already", "list(dataset)")
_JOINED: Final = ("a function reads datasets one after the other", "ps.concatenate([dataset, other])")
_MIXED: Final = ("a function mixes datasets by weights", 'ps.mix({"a": dataset, "b": other}, {"a": 3, "b": 1})')
_RANKS: Final = (
    "the loader of each rank takes its rows of each batch",
    "ps.Loader(dataset.batch(32), shard=ps.Shard(0, 2))",
)
_STATE: Final = ("the position is that of a loader", "ps.Loader(dataset).state_dict()")
_SEED: Final = ("the seed is an argument of the function that makes a dataset", "ps.read(source, seed=7)")
_INDEXED: Final = (
    "an origin has the position and the index over all epochs",
    "dataset.map_with_origin(lambda element, origin: (origin.index, element))",
)
_FIELDS: Final = ("elements are nested dicts, lists or tuples, and a function changes them", "dataset.map(function)")
_SPLIT: Final = ("split returns disjoint random parts", 'dataset.split({"train": 0.9, "test": 0.1})')
_WORKERS: Final = (
    "the loader's workers compute the functions of a dataset",
    "ps.Loader(dataset.batch(32), num_workers={})",
)
_BATCHED: Final = ("a function above a batch gets the batch", "dataset.batch(32).map(function)")
_ORDER: Final = ("the dataset has the order", "ps.Loader(dataset.shuffle().batch(32))")
_EPOCH: Final = (
    "each epoch has an order of its own, and the loader counts epochs; one can be fixed, with its random steps",
    "dataset.epoch(3)",
)
_WRITTEN: Final = ("a function writes datasets to files", 'ps.write(dataset, "folder", "jsonl")')
_PACKED: Final = ("it is called length", "documents.pack({})")
_ENDLESS: Final = ("an epoch gets another length by a repeat without end", "dataset.repeat().limit(1000)")

ATTRIBUTES: Final[Mapping[str, Remedy]] = {
    "apply": ("a function of a dataset is called", "function(dataset)"),
    "as_numpy": _NUMPY,
    "as_numpy_iterator": _NUMPY,
    "batched": ("it is called batch", "dataset.batch(32)"),
    "bucket_by_sequence_length": ("it is called bucket", "dataset.bucket(size, [128, 256], rows=32)"),
    "cardinality": ("a dataset has a length", "len(dataset)"),
    "chunk": ("sequences of one length are packed from documents", "documents.pack(1024)"),
    "cast": _FIELDS,
    "cast_column": _FIELDS,
    "collate": ("a collate function is an argument of batch", "dataset.batch(32, merge=function)"),
    "collate_fn": ("a collate function is an argument of batch", "dataset.batch(32, merge=function)"),
    "column_names": ("the structure of elements has the names", "dataset.element_spec"),
    "compose": ("a function of a dataset is called", "function(dataset)"),
    "concat": _JOINED,
    "concatenate": _JOINED,
    "count": ("a dataset has a length", "len(dataset)"),
    "decode": _FIELDS,
    "enumerate": _INDEXED,
    "features": ("the structure of elements has their types", "dataset.element_spec"),
    "get_state": _STATE,
    "group_by_window": ("an object of your own joins elements", "dataset.combine(Fold)"),
    "head": ("it is called take", "dataset.take(5)"),
    "ignore_errors": ("the function that raises is skipped", 'dataset.map(function, on_error="skip")'),
    "interleave": ("a function interleaves datasets", "ps.interleave([dataset, other])"),
    "iter": _LOADED,
    "iter_batches": _LOADED,
    "iter_rows": ("a dataset is iterable", "list(dataset)"),
    "iter_torch_batches": _TENSORS,
    "load_state_dict": _STATE,
    "loader": _LOADED,
    "map_batches": _BATCHED,
    "map_dict": _FIELDS,
    "map_tuple": _FIELDS,
    "map_with_index": _INDEXED,
    "materialize": ("a cache keeps elements in memory", "dataset.cache()"),
    "mix": _MIXED,
    "mp_prefetch": ("the loader has workers", 'ps.Loader(dataset.batch(32), num_workers=4, workers="processes")'),
    "num_rows": ("a dataset has a length", "len(dataset)"),
    "pipe": ("a function of a dataset is called", "function(dataset)"),
    "prefetch": _PREFETCHED,
    "random_shuffle": ("it is called shuffle", "dataset.shuffle()"),
    "random_split": _SPLIT,
    "reduce": ("Python reads elements one by one", "sum(dataset)"),
    "remove_columns": _FIELDS,
    "rename": _FIELDS,
    "rename_column": _FIELDS,
    "rename_columns": _FIELDS,
    "sample_from_datasets": _MIXED,
    "save_to_disk": _WRITTEN,
    "scan": ("an object of your own keeps the state", "dataset.combine(Fold)"),
    "schema": ("the structure of elements has their types", "dataset.element_spec"),
    "seed": _SEED,
    "select_columns": _FIELDS,
    "set_epoch": _EPOCH,
    "set_format": _TENSORS,
    "set_state": _STATE,
    "set_transform": ("a function is a step of the dataset", "dataset.map(function)"),
    "slice": ("slices are those of Python", "dataset[2:8]"),
    "snapshot": ("a cache in a directory keeps elements", 'dataset.cache("folder")'),
    "split_by_node": _RANKS,
    "split_by_worker": ("workers share each batch by its rows, so no worker has a part of its own", _LOADED[1]),
    "state_dict": _STATE,
    "to_iter_dataset": _LOADED,
    "to_iterable_dataset": _LOADED,
    "to_jax": ("a loader of JAX yields its arrays", "ps.jax.Loader(dataset.batch(32))"),
    "to_json": _WRITTEN,
    "to_list": ("Python makes a list of it", "list(dataset)"),
    "to_numpy": _NUMPY,
    "to_parquet": _WRITTEN,
    "to_torch": _TENSORS,
    "to_tuple": _FIELDS,
    "train_test_split": _SPLIT,
    "unbatched": ("it is called unbatch", "dataset.batch(4).unbatch()"),
    "union": _JOINED,
    "window": ("a batch may be a list of its elements", "dataset.batch(4, merge=list)"),
    "with_epoch": _ENDLESS,
    "with_format": _TENSORS,
    "with_index": _INDEXED,
    "with_length": _ENDLESS,
    "with_transform": ("a function is a step of the dataset", "dataset.map(function)"),
    "zip": ("a function reads datasets side by side", "ps.zip(dataset, other)"),
    "write": _WRITTEN,
}
"""By the name of an attribute that a dataset doesn't have."""

_READ: Final = ("a dataset is made of any object with a length and items", "ps.read(source)")
_DATA_LOADER: Final = (
    "a script that uses torch's class imports `from penstock.torch import DataLoader`; a Dataset is loaded by",
    "ps.Loader(dataset.shuffle().batch(32), num_workers=4)",
)

PACKAGE: Final[Mapping[str, Remedy]] = {
    "Arrays": ("sources have a module", "ps.sources.Arrays"),
    "BatchSampler": ("a dataset has its batches", "dataset.batch(32)"),
    "ChainDataset": _JOINED,
    "ConcatDataset": _JOINED,
    "DataLoader": _DATA_LOADER,
    "DistributedSampler": _RANKS,
    "Compose": ("functions are steps of the dataset", "dataset.map(function).map(function)"),
    "Files": ("sources have a module", "ps.sources.Files"),
    "ImageFolder": ("sources have a module", "ps.sources.ImageFolder"),
    "IndexSampler": ("a dataset has its order", "dataset.shuffle()"),
    "IterDataset": ("a dataset is made of an iterable", "ps.stream(iterable)"),
    "IterableDataset": ("a dataset is made of an iterable", "ps.stream(iterable)"),
    "JsonLines": ("sources have a module", "ps.sources.JsonLines"),
    "MapDataset": _READ,
    "Pipeline": ("pipelines have a module", "ps.pipeline.PipelineBuilder"),
    "PipelineBuilder": ("pipelines have a module", "ps.pipeline.PipelineBuilder"),
    "RandomSampler": ("a dataset has its order", "dataset.shuffle()"),
    "SequentialSampler": ("a dataset has its order", "dataset.batch(32)"),
    "StatefulDataLoader": _DATA_LOADER,
    "StreamingDataset": _READ,
    "Subset": ("a verb selects positions", "dataset.select([7, 2])"),
    "TensorDataset": ("arrays of one length are a source", 'ps.read({"x": x, "y": y})'),
    "TFRecordDataset": ("TFRecord files are a source", "ps.sources.TFRecord"),
    "Tar": ("sources have a module", "ps.sources.Tar"),
    "Tokens": ("sources have a module", "ps.sources.Tokens"),
    "WebDataset": ("tar files are a source", "ps.sources.Tar"),
    "WeightedRandomSampler": ("a verb draws elements by weights", "dataset.sample(weights)"),
    "concat": _JOINED,
    "concatenate_datasets": _JOINED,
    "default_collate": ("a batch stacks its elements", "dataset.batch(32)"),
    "from_dict": _READ,
    "from_generator": ("a dataset is made of a function that makes an iterable", "ps.stream(generator)"),
    "from_list": _READ,
    "from_numpy": _READ,
    "from_tensor_slices": _READ,
    "interleave_datasets": _MIXED,
    "load_dataset": ("a dataset of Hugging Face is a source", "ps.read(source)"),
    "random_split": _SPLIT,
    "read_csv": ("CSV files are a source", "ps.sources.Csv"),
    "read_images": ("folders of images are a source", "ps.sources.ImageFolder"),
    "read_json": ("files of JSON lines are a source", "ps.sources.JsonLines"),
    "read_parquet": ("Parquet files are a source", "ps.sources.Parquet"),
    "read_tfrecords": ("TFRecord files are a source", "ps.sources.TFRecord"),
    "read_webdataset": ("tar files are a source", "ps.sources.Tar"),
    "sample_from_datasets": _MIXED,
    "source": _READ,
}
"""By the name of an attribute that the package doesn't have."""

_KEPT: Final = ("a loader keeps its dataset, which has the order and the batches", "dataset.shuffle().batch(32)")

LOADER: Final[Mapping[str, Remedy]] = {
    "batch_sampler": _KEPT,
    "batch_size": _KEPT,
    "dataset": _KEPT,
    "get_state": ("the state is a dict", "ps.Loader(dataset).state_dict()"),
    "sampler": _KEPT,
    "set_epoch": (
        "each `for` over a loader is the next epoch; a loader can go to one",
        "ps.Loader(dataset).seek(position=0, epoch=3)",
    ),
    "set_state": ("the state is a dict", "ps.Loader(dataset).load_state_dict(ps.Loader(dataset).state_dict())"),
    "shutdown": ("it is called close", "ps.Loader(dataset).close()"),
}
"""By the name of an attribute that a loader doesn't have."""

_IN_BATCH: Final = "elements are batched in the dataset"
_WHOLE: Final = ("the shuffle is exact, over all elements, without a buffer", "dataset.shuffle()")
_PROCESSES: Final = 'ps.Loader(dataset.batch(32), num_workers=4, workers="processes")'
_MERGE: Final = ("a collate function is called merge", "dataset.batch(32, merge={})")
_DROP: Final = ("a last batch that isn't full", 'dataset.batch(32, remainder="drop")')

_LOADER: Final[Mapping[str, Remedy]] = {
    "batch_sampler": ("the dataset has its order and batches", "ps.Loader(dataset.shuffle().batch(32))"),
    "batch_size": (_IN_BATCH, "ps.Loader(dataset.batch({}))"),
    "collate_fn": (_IN_BATCH, "ps.Loader(dataset.batch(32, merge={}))"),
    "drop_last": (_IN_BATCH, "ps.Loader(dataset.batch(32, drop_last={}))"),
    "drop_remainder": (_IN_BATCH, "ps.Loader(dataset.batch(32, drop_last={}))"),
    "epochs": ("each `for` over a loader is one epoch; a dataset may repeat", "ps.Loader(dataset.repeat({}))"),
    "generator": ("the order derives from the dataset's seed", "ps.Loader(dataset.shuffle(seed=7).batch(32))"),
    "in_order": ("it is called ordered", "ps.Loader(dataset, ordered={})"),
    "multiprocessing_context": (
        "a limit names the start method",
        'ps.Loader(dataset, limits=ps.Limits(start_method="spawn"))',
    ),
    "num_epochs": ("each `for` over a loader is one epoch; a dataset may repeat", "ps.Loader(dataset.repeat({}))"),
    "num_threads": ("workers are threads or processes", "ps.Loader(dataset, num_workers={})"),
    "num_replicas": _RANKS,
    "persistent_workers": ("the workers of a loader always live as long as it", "ps.Loader(dataset, num_workers=4)"),
    "pin_memory": ("a loader of torch pins the memory that it copies from", "ps.torch.Loader(dataset, device=device)"),
    "prefetch_factor": ("prefetch counts batches for all workers together", "ps.Loader(dataset, prefetch={})"),
    "rank": _RANKS,
    "sampler": _ORDER,
    "seed": ("the order derives from the dataset's seed", "ps.Loader(dataset.shuffle(seed={}).batch(32))"),
    "shuffle": _ORDER,
    "timeout": ("a limit bounds the time", "ps.Loader(dataset, num_workers=2, limits=ps.Limits(timeout={}))"),
    "transform": ("a function is a step of the dataset", "ps.Loader(dataset.map({}))"),
    "transforms": ("a function is a step of the dataset", "ps.Loader(dataset.map(function))"),
    "worker_count": ("it is called num_workers", "ps.Loader(dataset, num_workers={})"),
    "worker_init_fn": (
        "a limit has the function",
        "ps.Loader(dataset, num_workers=2, limits=ps.Limits(worker_init={}))",
    ),
    "world_size": _RANKS,
}

ARGUMENTS: Final[Mapping[str, Mapping[str, Remedy]]] = {
    "Loader": _LOADER,
    "batch": {
        "batch_fn": _MERGE,
        "batch_size": ("it is called size", "dataset.batch({})"),
        "collate_fn": _MERGE,
        "collation_fn": _MERGE,
        "deterministic": ("the order never depends on workers", "dataset.batch(32)"),
        "drop_remainder": ("it is called drop_last", "dataset.batch(32, drop_last={})"),
        "num_parallel_calls": _WORKERS,
        "partial": _DROP,
    },
    "cache": {
        "directory": ("it is called where", "dataset.cache({})"),
        "filename": ("it is called where", "dataset.cache({})"),
        "path": ("it is called where", "dataset.cache({})"),
    },
    "concatenate": {"datasets": ("it is called parts", "ps.concatenate([dataset, other])")},
    "filter": {
        "batched": ("the predicate is called for each element", "dataset.filter(function)"),
        "fn": ("it is called predicate", "dataset.filter({})"),
        "function": ("it is called predicate", "dataset.filter({})"),
        "num_parallel_calls": _WORKERS,
        "num_proc": _WORKERS,
    },
    "interleave": {
        "datasets": ("it is called parts", "ps.interleave([dataset, other])"),
        "probabilities": _MIXED,
        "weights": _MIXED,
    },
    "map": {
        "batch_size": _BATCHED,
        "batched": _BATCHED,
        "deterministic": ("the order never depends on workers", "dataset.map(function)"),
        "fn": ("it is called function", "dataset.map({})"),
        "handler": ("on_error has the response to an exception", 'dataset.map(function, on_error="skip")'),
        "ignore_errors": ("on_error has the response to an exception", 'dataset.map(function, on_error="skip")'),
        "num_parallel_calls": _WORKERS,
        "num_proc": ("workers are the loader's", _PROCESSES),
        "num_workers": _WORKERS,
        "remove_columns": _FIELDS,
        "seed": ("random_map passes random numbers that derive from the seed", "dataset.random_map(random_function)"),
        "transform": ("it is called function", "dataset.map({})"),
        "with_indices": _INDEXED,
    },
    "mix": {
        "datasets": ("it is called parts", "ps.mix([dataset, other], [3, 1])"),
        "probabilities": ("they are called weights", "ps.mix([dataset, other], [3, 1])"),
        "stop_criteria": ("it is called stop", 'ps.mix([dataset, other], stop="all")'),
        "stopping_strategy": ("it is called stop", 'ps.mix([dataset, other], stop="all")'),
    },
    "pack": {
        "block_size": _PACKED,
        "max_length": _PACKED,
        "max_seq_length": _PACKED,
        "packing_strategy": ("it is called how", 'documents.pack(1024, how="best_fit")'),
        "pad_token_id": ("it is called fill", "documents.pack(1024, fill={})"),
        "padding_value": ("it is called fill", "documents.pack(1024, fill={})"),
        "seq_len": _PACKED,
        "seq_length": _PACKED,
        "sequence_length": _PACKED,
    },
    "random_map": {
        "num_parallel_calls": _WORKERS,
        "seed": (
            "the numbers derive from the dataset's seed and the step's name",
            'dataset.random_map(random_function, name="other")',
        ),
        "transform": ("it is called function", "dataset.random_map(random_function)"),
    },
    "read": {
        "batch_size": (_IN_BATCH, "ps.read(source).batch({})"),
        "shuffle": ("shuffle is a verb", "ps.read(source).shuffle()"),
        "transform": ("a function is a step of the dataset", "ps.read(source).map({})"),
    },
    "repeat": {
        "count": ("it is called times", "dataset.repeat({})"),
        "epochs": ("it is called times", "dataset.repeat({})"),
        "num_epochs": ("it is called times", "dataset.repeat({})"),
        "reseed_each_epoch": ("it is called reshuffle", "dataset.repeat(2, reshuffle={})"),
    },
    "shard": {
        "num_replicas": ("they are called index and count", "dataset.shard(0, {})"),
        "num_shards": ("they are called index and count", "dataset.shard(0, {})"),
        "rank": _RANKS,
        "shard_count": ("they are called index and count", "dataset.shard(0, {})"),
        "world_size": _RANKS,
    },
    "shuffle": {
        "buffer_size": _WHOLE,
        "bufsize": _WHOLE,
        "generator": ("the order derives from a seed", "dataset.shuffle(seed=7)"),
        "initial": _WHOLE,
        "reshuffle_each_iteration": (
            "each epoch has an order of its own, unless it is fixed",
            "dataset.reindex(ps.sampling.FixedOrder(ps.sampling.Shuffle(len(dataset), seed=7)))",
        ),
        "size": _WHOLE,
        "window_size": _WHOLE,
    },
    "split": {
        "lengths": ("shares are fractions", "dataset.split([0.9, 0.1])"),
        "test_size": _SPLIT,
        "train_size": _SPLIT,
    },
    "stream": {
        "buffer_size": ("a loader computes batches ahead", "ps.Loader(ps.stream(iterable).batch(32), prefetch=2)")
    },
    "window_shuffle": {
        "buffer_size": ("it is called size", "dataset.window_shuffle({})"),
        "window_size": ("it is called size", "dataset.window_shuffle({})"),
    },
    "zip": {"strict": ("it is called unequal", 'ps.zip(dataset, other, unequal="shortest")')},
}
"""By a call's name, then by the name of an argument that it doesn't have."""

POSITIONAL: Final[Mapping[str, Remedy]] = {
    "Loader": ("all but the dataset have names", "ps.Loader(dataset, num_workers=4)"),
    "mix": ("datasets are one argument, and weights another", "ps.mix([dataset, other], [3, 1])"),
    "shuffle": (
        "the shuffle is exact, over all elements, without a buffer; a seed has a name",
        "dataset.shuffle(seed=7)",
    ),
}
"""By a call's name, where there are too many or too few arguments."""


def attribute_text(name: str) -> str:
    """Return the message for an attribute that a dataset doesn't have: Python's own, and a remedy if one is known."""
    return _missing_text("'Dataset' object", name, ATTRIBUTES)


def loader_text(name: str) -> str:
    """Return the message for an attribute that a loader doesn't have: Python's own, and a remedy if one is known."""
    return _missing_text("'Loader' object", name, LOADER)


def package_text(name: str) -> str:
    """Return the message for a name that the package doesn't have: Python's own, and a remedy if one is known."""
    return _missing_text("module 'penstock'", name, PACKAGE)


def _missing_text(owner: str, name: str, names: Mapping[str, Remedy]) -> str:
    missing = f"{owner} has no attribute {name!r}"
    return f"{missing}. {_remedy_text(*names[name])}" if name in names else missing


def explained(name: str) -> Callable[[_F], _F]:
    """Return a decorator after which a call that doesn't fit the signature raises a TypeError with a remedy.

    Args:
        name: the call's name in messages. Its last part is the name in the table; a loader with another name than
            `Loader` takes the place of `ps.Loader` in a remedy.
    """

    def decorate(call: _F) -> _F:
        @functools.wraps(call)
        def checked(*given: object, **named: object) -> object:
            try:
                return call(*given, **named)
            except TypeError as error:
                inside = error.__traceback__
                if inside is None or inside.tb_next is not None:
                    raise  # the call itself was right, and something in it raised
                problem = _call_text(name, call, named)
            raise TypeError(problem)

        return cast("_F", checked)

    return decorate


def explain_verbs(dataset: type) -> None:
    """Decorate the public methods of a class by `explained`."""
    found = {name for name, value in vars(dataset).items() if name[0] != "_" and inspect.isfunction(value)}
    explain_methods(dataset, **{name: name for name in found})


def explain_methods(kind: type, **names: str) -> None:
    """Decorate methods of a class by `explained`, each with its name in messages."""
    for method, name in names.items():
        setattr(kind, method, explained(name)(vars(kind)[method]))


def _call_text(name: str, call: Callable[..., object], named: Mapping[str, object]) -> str:
    """Return the message for arguments that don't fit a signature."""
    entry = name.rpartition(".")[2]
    parameters = [each for each in inspect.signature(call).parameters.values() if each.name != "self"]
    known = {each.name for each in parameters}
    unknown = next((each for each in named if each not in known), None)
    if unknown is not None:
        problem = f"{name}() has no argument {unknown!r}"
        remedy = ARGUMENTS.get(entry, {}).get(unknown)
        shown = _value_text(named[unknown])
    else:
        problem = f"{name}() was called with too many arguments, or without one that it needs"
        remedy = POSITIONAL.get(entry)
        shown = ""
    if remedy is not None:
        written = remedy[1].replace("{}", shown)
        if entry == "Loader" and name != entry:
            written = written.replace("ps.Loader(", f"{name}(")
        return f"{problem}. {_remedy_text(remedy[0], written)}"
    return f"{problem}. Its arguments are {_parameters_text(parameters)}"


def _remedy_text(reason: str, call: str) -> str:
    return f"{reason[0].upper()}{reason[1:]}: {call}"


def _parameters_text(parameters: list[inspect.Parameter]) -> str:
    """Return the names of parameters as they are written in a signature, without types and defaults."""
    names: list[str] = []
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and "*" not in names and not any(name[0] == "*" for name in names):
            names.append("*")
        names.append(f"*{each.name}" if each.kind is each.VAR_POSITIONAL else each.name)
    return f"({', '.join(names)})"


def _value_text(value: object) -> str:
    """Return a value as it would be written in a call; of a function its name."""
    name = getattr(value, "__name__", None)
    if isinstance(name, str) and name.isidentifier():
        return name
    text = repr(value)
    return text if isinstance(value, bool | int | float | str) and len(text) <= 40 else "…"
