"""One chain and more for each kind of node, to try the same things on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from psnb.data import AUTOTUNE, Dataset, Options, Ragged
from tests.data.elements import Numbers

D = Dataset


class Pair(NamedTuple):
    a: Any
    b: Any


def slices(count: int = 11) -> Dataset:
    return D.from_tensor_slices(
        {
            "id": np.arange(count),
            "x": (np.arange(2.0 * count).reshape(count, 2), list("abcdefghijk")),
        }
    )


def ragged(count: int = 9) -> Dataset:
    return D.from_tensor_slices(Ragged.from_rows([np.arange(i % 4) + i for i in range(count)]))


def counted(count: int = 12) -> Iterator[int]:
    yield from range(count)


def generated() -> Dataset:
    return D.from_generator(counted)


def negative(x: Any) -> Any:
    return -x


def fails_at_five(x: Any) -> Any:
    if x == 5:
        raise ValueError("five")
    return x


def total(state: Any, x: Any) -> Any:
    return state + x, (x, state + x)


def upto(n: Any) -> Dataset:
    return D.range(int(n)).map(lambda i: i + 10 * n)


def of_two_dtypes(first: int) -> Dataset:
    kind = np.float32 if first in (3, 18, 21) else np.int64
    return D.from_tensor_slices(np.arange(first, first + 3, dtype=kind))


MEMORY: dict[str, Callable[[], Dataset]] = {
    "range": lambda: D.range(3, 20, 2),
    "from_tensors": lambda: D.from_tensors((np.arange(3), "text")),
    "from_tensor_slices": slices,
    "ragged slices": ragged,
    "from_generator": generated,
    "from_files": lambda: D.from_files(Numbers(), ["7", "0", "4", "3"]),
    "map": lambda: slices().map(lambda row: Pair(row["id"] * 2, row["x"][0])),
    "map, batched": lambda: D.range(20).map(negative, batched=True),
    "map, parallel": lambda: D.range(20).map(negative, num_parallel_calls=3),
    "map, parallel, batched": lambda: D.range(9).map(negative, AUTOTUNE, batched=True),
    "map of changing lengths": lambda: D.range(9).map(lambda n: np.arange(n % 3)),
    "filter": lambda: D.range(20).filter(lambda x: x % 3 == 0),
    "filter, batched": lambda: D.range(20).filter(lambda x: x % 3 == 0, batched=True),
    "flat_map": lambda: D.range(5).flat_map(upto),
    "interleave": lambda: D.range(1, 6).interleave(upto, cycle_length=3, block_length=2),
    "interleave of one": lambda: D.range(4).interleave(upto, cycle_length=1),
    "interleaved files": lambda: (
        D.from_tensor_slices(["5", "2", "9"])
        .interleave(lambda path: D.from_files(Numbers(), path), cycle_length=2)
        .shuffle(4, seed=1)
        .batch(3)
    ),
    "flat_map of shuffled": lambda: D.range(4).flat_map(lambda n: D.range(5).shuffle(5)),
    "zip": lambda: D.zip((slices(), generated())),
    "zip, indexed": lambda: D.zip({"a": D.range(5), "b": slices()}).shuffle(3, seed=2),
    "zip of filtered": lambda: D.zip(D.range(30).filter(lambda x: x % 4 == 0), generated()),
    "concatenate": lambda: generated().concatenate(D.range(3)),
    "concatenate, indexed": lambda: D.range(7).concatenate(D.range(20, 24)).shuffle(20, seed=3),
    "sample_from_datasets": lambda: D.sample_from_datasets(
        [D.range(8), generated(), D.range(100, 104)], [0.5, 0.3, 0.2], seed=4
    ),
    "sample, unseeded": lambda: D.sample_from_datasets(
        [D.range(8), D.range(100, 108)], stop_on_empty_dataset=True
    ),
    "shuffle, indexed": lambda: slices().shuffle(4, seed=5),
    "shuffle, all": lambda: slices().shuffle(100),
    "shuffle, buffer": lambda: generated().shuffle(4, seed=6),
    "shuffle, buffer of all": lambda: generated().shuffle(100),
    "shuffle of ragged": lambda: ragged().map(lambda x: (x, "t")).shuffle(3, seed=7),
    "shuffle of shuffled": lambda: generated().shuffle(5).shuffle(3),
    "repeat": lambda: D.range(4).repeat(3),
    "repeat of shuffled": lambda: D.range(5).shuffle(5, seed=8).repeat(3),
    "repeat of buffered": lambda: generated().shuffle(5).repeat(2).batch(5),
    "repeat, no reshuffle": lambda: (
        D.range(5).shuffle(5, seed=9, reshuffle_each_iteration=False).repeat(3)
    ),
    "repeat for ever": lambda: D.range(3).repeat().take(10),
    "batch": lambda: slices().batch(4),
    "batch, drop": lambda: generated().batch(5, drop_remainder=True),
    "batch of batches": lambda: D.range(24).batch(3).batch(2),
    "padded_batch": lambda: ragged().padded_batch(4, padding_values=-1),
    "ragged_batch": lambda: ragged().ragged_batch(4),
    "unbatch": lambda: slices().batch(4).unbatch(),
    "unbatch of ragged": lambda: ragged().ragged_batch(4).unbatch(),
    "bucket_by_sequence_length": lambda: (
        ragged().enumerate().bucket_by_sequence_length(lambda _, row: len(row), [1, 3], [2, 2, 1])
    ),
    "bucket_by_sequence_length of a buffer": lambda: (
        D.range(40)
        .map(lambda n: np.arange(n % 7))
        .shuffle(5, seed=14)
        .bucket_by_sequence_length(len, [2, 5], [3, 4, 9], drop_remainder=True)
    ),
    "merge_by": lambda: (
        D.range(12)
        .map(lambda n: {"key": n % 5, "rows": np.arange(n % 3), "same": n % 5 + 1})
        .merge_by("key")
        .shuffle(3, seed=13)
    ),
    "window": lambda: D.range(10).window(3, shift=2),
    "window, stride": lambda: generated().window(3, 1, 2, drop_remainder=True),
    "window, gaps": lambda: generated().window(2, 5).flat_map(lambda w: w.batch(2)),
    "take": lambda: generated().take(7),
    "take_while": lambda: generated().take_while(lambda n: n != 7),
    "unique": lambda: D.range(30).map(lambda n: str(n * n % 11)).unique(),
    "unique of shuffled": lambda: (
        D.range(40).map(lambda n: n % 9).shuffle(20).filter(lambda n: n).unique().repeat(2)
    ),
    "take, indexed": lambda: D.range(20).take(7).shuffle(7, seed=10),
    "skip": lambda: generated().skip(7),
    "skip, indexed": lambda: slices().skip(7).batch(2),
    "shard": lambda: generated().shard(5, 2),
    "shard, indexed": lambda: D.range(23).shard(5, 2).shuffle(9, seed=11),
    "cache": lambda: generated().shuffle(12).cache().repeat(2),
    "prefetch": lambda: D.range(20).prefetch(3),
    "prefetch, tuned": lambda: slices().shuffle(11).repeat(2).batch(3).prefetch(AUTOTUNE),
    "prefetch in the midst": lambda: generated().prefetch(2).shuffle(5).prefetch(4).batch(5),
    "enumerate": lambda: generated().enumerate(5),
    "enumerate, indexed": lambda: slices().enumerate().shuffle(4, seed=12),
    "scan": lambda: D.range(9).scan(100, total),
    "scan of a structure": lambda: D.range(9).scan(
        {"s": "", "n": np.zeros(2)},
        lambda m, x: ({"s": m["s"] + str(x), "n": m["n"] + x}, (m["s"], m["n"])),
    ),
    "ignore_errors": lambda: D.range(12).map(fails_at_five).ignore_errors(),
    "ignore_errors in batches": lambda: D.range(12).map(fails_at_five).batch(4).ignore_errors(),
    "ignore_errors, parallel": lambda: (
        D.range(12).map(fails_at_five, num_parallel_calls=2).prefetch(2).ignore_errors()
    ),
    "ignore_errors in buckets": lambda: (
        D.range(12)
        .map(fails_at_five)
        .bucket_by_sequence_length(lambda n: n % 3, [1, 2], [2, 3, 2], no_padding=True)
        .ignore_errors()
    ),
    "ignore_errors of unique": lambda: (
        D.range(12).map(fails_at_five).map(lambda n: n % 7).unique().ignore_errors()
    ),
    "ignore_errors in a buffer": lambda: D.range(12).map(fails_at_five).shuffle(6).ignore_errors(),
    "errors of a buffer itself": lambda: (
        D.range(0, 36, 3).flat_map(of_two_dtypes).shuffle(6).ignore_errors()
    ),
    "ignore_errors behind threads": lambda: (
        D.range(12).map(fails_at_five).map(negative, num_parallel_calls=2).ignore_errors()
    ),
    "with_options": lambda: D.range(9).map(negative, AUTOTUNE).with_options(Options(threads=2)),
    "a long chain": lambda: (
        D.from_files(Numbers(), ["9", "8"])
        .filter(lambda x: x % 5 != 0)
        .shuffle(6)
        .map(lambda x: {"x": x, "text": str(x)})
        .repeat(2)
        .enumerate()
        .batch(4)
        .prefetch(AUTOTUNE)
    ),
}


def on_disk(folder: Path) -> dict[str, Callable[[], Dataset]]:
    """Return those that need files."""
    for name, count in (("a", 7), ("b", 5)):
        np.save(folder / f"{name}.npy", np.arange(3.0 * count).reshape(count, 3))
        np.save(folder / f"{name}_ids.npy", np.arange(count))
    saved = folder / "saved"
    D.range(11).map(lambda n: {"n": n, "row": np.arange(n % 3), "t": f"{n}"}).save(saved)
    return {
        "npy": lambda: D.npy(str(folder / "a.npy")),
        "npy, several": lambda: (
            D.npy(
                {
                    "x": [folder / "a.npy", folder / "b.npy"],
                    "id": [folder / "a_ids.npy", folder / "b_ids.npy"],
                }
            )
            .shuffle(5)
            .batch(2)
        ),
        "list_files": lambda: D.list_files(f"{folder}/*.npy", shuffle=True),
        "load": lambda: D.load(saved),
        "load, shuffled": lambda: D.load(saved).shuffle(5).repeat(2).ragged_batch(3),
        "cache in files": lambda: (
            generated()
            .map(lambda x: {"x": x, "text": f"{x}\0", "row": np.arange(x % 3)})
            .shuffle(5)
            .cache(str(folder / "cache"))
            .repeat(2)
        ),
    }
