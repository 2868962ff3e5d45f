"""Exported: the content of an export, and the computation that a framework makes of it.

A framework has two small parts. One makes an `Exported` of a model: ``to_export(example)``, a
method of what `psnb.export` takes. The other is a module ``<framework>_program`` here: without
Dask, its ``load(manifest, programs, dense, tables)`` makes a `Computation` of it, or raises
ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from psnb._src.models.export.manifest import DenseSources, Fetch, ModelFeed
from psnb._src.models.export.nested import check_nested, leaves_of
from psnb._src.models.export.tables import ExportedTable
from psnb._src.protocol.remote_traceback import RemoteTraceback
from psnb.errors import ConfigurationError


class RowChunk(NamedTuple):
    """Some rows of a table.

    Attributes
    ----------
    ids : numpy.ndarray
        uint64 ``(n,)``, distinct over all chunks; ascending from 0 if the table has fixed rows.
    rows : numpy.ndarray
        ``(n, dim)``.
    scores : numpy.ndarray or None
        How much each row is used, if that is recorded.
    """

    ids: np.ndarray
    rows: np.ndarray
    scores: np.ndarray | None = None


@dataclass(frozen=True)
class TableSource(ExportedTable):
    """A table whose rows are to be written.

    Attributes
    ----------
    scored : bool
        Whether chunks have scores.
    chunks : callable
        Fetches the rows, chunk by chunk.
    """

    scored: bool
    chunks: Callable[[], Iterator[RowChunk]]


@dataclass(frozen=True)
class Exported:
    """The parts of a model that are written.

    Attributes
    ----------
    framework : str
        Which room loads it.
    feeds : sequence of ModelFeed
        The parts of a batch that it needs.
    fetches : sequence of Fetch
        What it returns.
    outputs : object
        The structure of its result, with numbers in place of ``fetches``; see `nested`.
    dense : mapping of str to numpy.ndarray
        Its dense parameters.
    tables : mapping of str to TableSource
        Its tables.
    programs : mapping of str to bytes
        Its computation, in files by name.
    detail : mapping
        Anything else that the framework needs; as JSON can hold it.
    written_with : mapping of str to str
        The versions of libraries.
    sources : DenseSources
        Where dense parameters are on the servers.
    """

    framework: str
    feeds: Sequence[ModelFeed]
    fetches: Sequence[Fetch]
    outputs: Any
    dense: Mapping[str, np.ndarray]
    tables: Mapping[str, TableSource]
    programs: Mapping[str, bytes]
    detail: Mapping[str, Any]
    written_with: Mapping[str, str]
    sources: DenseSources


@contextmanager
def tracing(what: str, hint: Callable[[Exception], str] = lambda error: "") -> Iterator[None]:
    """Raise ConfigurationError where a framework cannot trace a model, by the user's own lines.

    These are a note. The framework's own traceback, of up to 250 lines, is the error's
    ``__context__``, which is not shown.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:  # whatever the user's code raises when it is traced
        message = str(error).partition("\n\n")[0]  # then come frameworks' advice and addresses
        found = ConfigurationError(
            f"psnb.export: {what} cannot be exported for batches of any size: "
            f"{type(error).__name__}: {message[:600].rstrip('. ')}{hint(error)}"
        )
        if lines := RemoteTraceback.of(error).text():
            found.add_note(lines)
        raise found from None


def returned(outputs: Any, forms: Iterable[tuple[str, Iterable[Any]]]) -> tuple[Any, list[Fetch]]:
    """Return the form of a model's result, and its arrays.

    Parameters
    ----------
    outputs : object
        The structure, with numbers in place of its arrays.
    forms : iterable of (str, iterable)
        For each number dtype and shape; an item of a shape that is not an int depends on the batch.
    """
    form = check_nested(outputs)
    names = [name for _, name in sorted(leaves_of(form))]
    return form, [
        Fetch(name, dtype, tuple(size if isinstance(size, int) else None for size in shape))
        for name, (dtype, shape) in zip(names, forms, strict=True)
    ]
