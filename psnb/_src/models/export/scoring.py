"""Scores files with an exported model, in order, in memory that does not depend on their length."""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from psnb._src.data.dataset import Dataset
from psnb._src.data.ragged import Ragged
from psnb._src.data.splits import splits
from psnb._src.models.export.loaded import LoadedModel
from psnb._src.models.export.manifest import WIDE, ModelFeed
from psnb._src.training.prediction_files import write_rows
from psnb._src.utils.arrays import bits_of, integers_of
from psnb._src.utils.checks import path_text
from psnb._src.utils.text import shown, truncate
from psnb.errors import ConfigurationError, DatasetError, ExportError

_READS = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".jsonl": "jsonl"}
_FLOAT = re.compile(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*", re.ASCII | re.IGNORECASE)

_PACKED = {".gz", ".bz2", ".xz", ".zst"}


def score_files(
    model: LoadedModel, files: list[str], to: str | None, form: str | None, batch_size: int
) -> int:
    """Write a row of predictions for each row of some files.

    Parameters
    ----------
    model : LoadedModel
        What predicts.
    files : list of str
        CSV, JSON lines or Parquet, by their suffix; read one after another. A feed is a column of
        its name; or, if it has several numbers a row, a list in JSON lines and Parquet, and the
        columns ``name.0``, ``name.1``, … in CSV.
    to : str or None
        The file to write, by default standard output; it appears when it is complete.
        JSON lines have null for NaN and infinite numbers; bfloat16 is written as float32. Without a
        row, CSV and Parquet have the columns only.
    form : {"csv", "jsonl", "parquet"} or None
        The format to write; by default the one that ``to`` ends with, and CSV.
    batch_size : int
        Rows at a time.

    Returns
    -------
    int
        How many rows were written.

    Raises
    ------
    ConfigurationError
        If a file has no known suffix, or lacks the column of a feed.
    DatasetError
        If a file cannot be read.
    ExportError
        If the predictions cannot be written, or are not one for each row.
    """
    to = None if to is None else path_text("to", to)
    form = form or _READS.get(Path(to).suffix if to else "", "csv")
    unfinished = None if to is None else Path(to).with_name(f".incomplete-{uuid.uuid4().hex}")
    try:
        if unfinished is not None:
            unfinished.parent.mkdir(parents=True, exist_ok=True)
        rows = write_rows(unfinished or sys.stdout, f".{form}", _scored(model, files, batch_size))
        if unfinished is not None and to is not None:
            unfinished.replace(to)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise ExportError(
            f"predictions cannot be written to {to or 'the output'}: {error}"
        ) from error
    finally:
        if unfinished is not None:
            unfinished.unlink(missing_ok=True)
    return rows or 0


def _scored(
    model: LoadedModel, files: list[str], batch_size: int
) -> Iterator[Mapping[str, np.ndarray]]:
    """Yield the predictions of batches; their columns without rows, if there is no batch."""
    batch = None
    for batch in batches(model.feeds, files, batch_size):
        found, count = model.predict_flat(batch), len(next(iter(batch.values())))
        for fetch, array in zip(model.fetches, found, strict=True):
            if not array.ndim or len(array) != count:
                raise ExportError(
                    f"output {fetch.name!r} of the model has shape {array.shape} for {count} rows: "
                    "one for each row is expected"
                )
        yield {fetch.name: each for fetch, each in zip(model.fetches, found, strict=True)}
    if batch is None:
        yield {
            fetch.name: np.empty((0, *(size or 1 for size in fetch.shape[1:])), fetch.dtype)
            for fetch in model.fetches
        }


def batches(
    feeds: tuple[ModelFeed, ...], files: list[str], batch_size: int
) -> Iterator[Mapping[str, Any]]:
    """Yield batches with the feeds of a model from files, in order."""
    if odd := [feed.name for feed in feeds if feed.holds == "any" or not feed.shape]:
        raise ConfigurationError(
            f"feeds {odd} are not of rows: export the model with psnb.data.Ragged in their place"
        )
    for file, kind in [(file, _kind(file)) for file in files]:
        if kind == "csv":
            yield from _csv_batches(feeds, file, batch_size)
            continue
        if kind == "parquet":
            names = [feed.name for feed in feeds]
            rows: Any = Dataset.parquet(file, columns=names)
        else:
            rows = Dataset.text_lines(file).map(partial(_parsed, feeds, file))
        yield from splits(rows, 1)[0].ragged_batch(batch_size).map(partial(_shaped, feeds))


def _parsed(feeds: tuple[ModelFeed, ...], file: str, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line.removeprefix("\ufeff"))  # which may begin a file
        return {feed.name: _row(feed, found[feed.name]) for feed in feeds}
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{file}: a line is not a JSON object with {[feed.name for feed in feeds]}: "
            f"{type(error).__name__}: {error}; the line begins {line[:60]!r}"
        ) from error


def _row(feed: ModelFeed, given: Any) -> np.ndarray:
    # In the dtype of the feed: a line alone does not show what numbers others have.
    found = feed.array(given)
    if found.dtype == object and np.dtype(feed.dtype).kind == "f" and None in found.reshape(-1):
        found = found.astype(np.float64)  # null is NaN, as in what psnb writes
    found = feed.cast(found) if found.size else found.astype(feed.dtype)
    return found.reshape(-1) if feed.holds == "examples" and found.ndim else found


def _shaped(feeds: tuple[ModelFeed, ...], batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch with arrays of rows of one length."""
    found = {}
    for feed in feeds:
        given = batch[feed.name]
        if isinstance(given, Ragged) and not feed.ragged:
            width = int(np.prod([size or 1 for size in feed.shape[1:]]))
            if (given.lengths != width).any():
                raise ConfigurationError(
                    f"column {feed.name!r}: expected {width} numbers in each row, found "
                    f"{int(given.lengths[given.lengths != width][0])}"
                )
            given = given.values.reshape(len(given), *feed.shape[1:])
        found[feed.name] = given
    return found


def _csv_batches(
    feeds: tuple[ModelFeed, ...], file: str, batch_size: int
) -> Iterator[Mapping[str, Any]]:
    columns, dtypes = [], {}
    for feed in feeds:
        if feed.holds != "examples" or len(feed.shape) > 2:
            raise ConfigurationError(
                f"feed {feed.name!r} has lists of numbers, which CSV cannot hold: use JSON lines "
                "or Parquet"
            )
        for column in _columns_of(feed):
            columns.append(column)
            # As text: a column of ids may have -1 and 2**64 - 1, which no dtype of CSV holds.
            dtypes[column] = "str" if feed.dtype in WIDE else feed.dtype
    delimiter = "\t" if _suffix(file) == ".tsv" else ","
    rows = Dataset.csv(file, columns=columns, dtypes=dtypes, delimiter=delimiter)
    count = 0
    for batch in splits(rows, 1)[0].batch(batch_size):
        for column in [name for name in columns if dtypes[name] == "str"]:
            batch[column] = _integers(batch[column], f"{file}: column {column!r}", count)
        count += len(batch[columns[0]])
        yield {
            feed.name: batch[feed.name]
            if len(feed.shape) == 1
            else np.stack([batch[column] for column in _columns_of(feed)], 1)
            for feed in feeds
        }


def _integers(texts: np.ndarray, what: str, before: int) -> np.ndarray:
    numbers = []
    for row, text in enumerate(texts.tolist(), before + 1):
        try:
            numbers.append(int(text))
        except ValueError as error:
            problem = f"{what}, row {row}: {truncate(text)!r} is not an integer"
            hint = "psnb.hash_ids makes ids of texts"
            if not text.strip():
                hint = "fill it"
            elif _FLOAT.fullmatch(text):
                hint = "write it without a point or an exponent"
            raise DatasetError(f"{problem}: {hint}") from error
    return bits_of(integers_of(numbers, what)).view(np.int64)


def _columns_of(feed: ModelFeed) -> list[str]:
    if len(feed.shape) == 1:
        return [feed.name]
    return [f"{feed.name}.{number}" for number in range(feed.shape[1] or 0)]


def _kind(file: str) -> str:
    suffix = _suffix(file)
    if suffix not in _READS:
        raise ConfigurationError(
            f"{file!r}: expected a file that ends with {', '.join(_READS)}, found {shown(suffix)}"
        )
    return _READS[suffix]


def _suffix(file: str) -> str:
    path = Path(file)
    return Path(path.stem).suffix if path.suffix in _PACKED else path.suffix
