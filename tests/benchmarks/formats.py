"""How fast files are read: ``python -m tests.benchmarks.formats``, on one core.

100,000 rows of 26 integers, 13 floats and a label, from files in the page cache into columns and
cut into batches of 512. Beside them the peers' figures of the issue, measured on this machine when
nothing else ran; what a copy of memory does now and did then says how to compare them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from psnb._src.data.formats.criteo import Criteo
from psnb._src.data.formats.csv import Csv
from psnb._src.data.formats.fixed_length import FixedLengthRecords
from psnb._src.data.formats.multi_slot import MultiSlot, Slot
from psnb._src.data.formats.parquet import Parquet
from psnb._src.data.formats.text import TextLines
from psnb._src.data.formats.tf_example import FixedLen, encode_example
from psnb._src.data.formats.tfrecord import TFRecords, TFRecordWriter
from tests.benchmarks.__main__ import per_second

ROWS, BATCH = 100_000, 512

COPY_THEN = 15.0
"""GB a second of a plain copy of memory, when the peers were measured."""


def batches(columns: Any, count: int) -> None:
    """Cut columns into batches, views of them, as a dataset does."""
    for column in columns.values() if isinstance(columns, dict) else [columns]:
        for begin in range(0, count, BATCH):
            column[begin : begin + BATCH]


def read(form: Any, path: Path) -> Callable[[], None]:
    """Return the work of reading a file once."""

    def work() -> None:
        rows = 0
        for chunk in form.read(str(path)):
            batches(chunk.columns, chunk.count)
            rows += chunk.count
        assert rows == ROWS

    return work


def write(folder: Path) -> dict[str, Path]:
    """Write the rows in each format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(3)
    ids = random.integers(0, 1_000_000, (ROWS, 26))
    dense = random.normal(size=(ROWS, 13)).astype(np.float32)
    label = random.integers(0, 2, ROWS)
    paths = {name: folder / name for name in ("slots", "records", "fixed", "criteo", "parquet")}
    with paths["slots"].open("w") as slots, paths["criteo"].open("w") as criteo:
        for i, d, y in zip(ids.tolist(), dense.tolist(), label.tolist(), strict=True):
            floats = " ".join(f"{value:.5f}" for value in d)
            slots.write(" ".join(f"1 {value}" for value in i) + f" 13 {floats} 1 {y}\n")
            integers = "\t".join(str(value) for value in i[:13])
            categories = "\t".join(f"{value * 4099:08x}" for value in i)
            criteo.write(f"{y}\t{integers}\t{categories}\n")
    with TFRecordWriter(str(paths["records"])) as writer:
        for i in range(ROWS):
            row = {"ids": ids[i], "dense": dense[i], "y": np.float32(label[i])}
            writer.write(encode_example(row))
    rows = np.concatenate([ids.astype(np.int32), dense.view(np.int32), label[:, None]], axis=1)
    paths["fixed"].write_bytes(rows.astype(np.int32).tobytes())
    columns = {f"i{k}": ids[:, k] for k in range(26)} | {f"d{k}": dense[:, k] for k in range(13)}
    table = pa.table({**columns, "y": label})
    pq.write_table(table, paths["parquet"])
    import pyarrow.csv

    paths["csv"] = folder / "csv"
    pyarrow.csv.write_csv(table, paths["csv"])
    return paths


def main() -> None:
    """Measure and print."""
    slots = [*(Slot(f"s{i}") for i in range(26)), Slot("dense", "float32", (13,))]
    slots.append(Slot("y", "float32", (1,)))
    features = {
        "ids": FixedLen(26, "int64"),
        "dense": FixedLen(13, "float32"),
        "y": FixedLen((), "float32"),
    }
    table = Table("work", "rows a second", "the same in CPU time", "peer, or what is asked for")
    with tempfile.TemporaryDirectory() as folder:
        paths = write(Path(folder))
        for name, form, file, peer in (
            ("TFRecords", TFRecords(), "records", "839,000 tf.data"),
            ("TFRecords of examples", TFRecords(features), "records", "764,000 tf.data"),
            ("text lines", TextLines(), "slots", "799,000 tf.data"),
            ("MultiSlot", MultiSlot(slots), "slots", "500,000 asked for; 53,000 Paddle's step"),
            ("MultiSlot through cat", MultiSlot(slots, "cat"), "slots", ""),
            ("fixed-length records", FixedLengthRecords(160), "fixed", ""),
            ("Criteo", Criteo(), "criteo", ""),
            ("CSV", Csv(), "csv", ""),
            ("Parquet", Parquet(), "parquet", ""),
        ):
            work = read(form, paths[file])
            rate = per_second(work, ROWS, 3, max)
            begin = time.thread_time()
            work()
            busy = ROWS / (time.thread_time() - begin)
            table.add_row(name, f"{rate:,.0f}", f"{busy:,.0f}", peer)
    source = np.ones(1 << 24)
    target = np.empty_like(source)
    copy = per_second(lambda: np.copyto(target, source), source.nbytes / 1e9, 5, max)
    table.add_row("copy of memory, GB", f"{copy:.1f}", "", f"{COPY_THEN:.1f} then")
    Console().print(table)


if __name__ == "__main__":
    main()
