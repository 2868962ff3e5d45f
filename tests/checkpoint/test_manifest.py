"""Tests of what a checkpoint says that it holds: damaged, forged, or neither."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnb._src.checkpoint.manifest import MANIFEST
from psnb._src.checkpoint.reader import latest_full
from psnb.errors import CheckpointError
from tests.checkpoint.saved import forge, manifest_of, names, parameter, write

FIRST = "00000-variables.bin"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write(tmp_path, [parameter("v"), parameter("w")], {"step": 3, "loss": 0.1, "é": 1})


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"format": 8}', "\udcff", "null", "3", "NaN", "[" * 100_000),
        '{"format": 8, "format": 8}',
        '{"format": 8, "metadata": {}, "parameters": []}',
    ],
)
def test_damaged_manifest_is_no_checkpoint(checkpoint: Path, text: str) -> None:
    (checkpoint / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=r"1' is not a checkpoint"):
        manifest_of(checkpoint)


@pytest.mark.parametrize("name", ["missing", "file"])
def test_other_path_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=f"{name}' is not a checkpoint"):
        manifest_of(tmp_path / name)


def test_unknown_format_is_refused_with_what_is_known(checkpoint: Path) -> None:
    forge(checkpoint, lambda content: content.update(format=99))
    with pytest.raises(CheckpointError, match="has format 99, this psnb reads 8"):
        manifest_of(checkpoint)


def test_a_run_does_not_go_on_from_what_is_older_than_one_that_another_psnb_saved(
    checkpoint: Path,
) -> None:
    newest = write(checkpoint.parent, [parameter("v")], {})
    forge(newest, lambda content: content.update(format=99))
    with pytest.raises(CheckpointError, match=f"{newest.name}' has format 99.*use the psnb that"):
        latest_full(checkpoint.parent)


def test_any_byte_that_changes_the_content_is_noticed(checkpoint: Path) -> None:
    file = checkpoint / MANIFEST
    whole, said = file.read_bytes(), manifest_of(checkpoint)
    for at in range(0, len(whole), 3):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            assert manifest_of(checkpoint) == said  # only how it is set has changed
        except CheckpointError:
            continue


SHARDS = r"at `\$\.parameters\[0\]\.shards"
FORGED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a number for consistent": (
        lambda c: c.update(consistent=1),
        r"Expected `bool`, got `int` - at `\$\.consistent`",
    ),
    "files by name": (
        lambda c: first(c).update(shards=[{FIRST: ""}]),
        f"Expected `array`.*{SHARDS}",
    ),
    "a file for parts": (lambda c: first(c).update(shards=[FIRST]), f"Expected `array`.*{SHARDS}"),
    "no parts": (lambda c: first(c).update(shards=[[]]), f"of length >= 1.*{SHARDS}"),
    "no shards": (lambda c: first(c).update(shards=[]), f"of length >= 1.*{SHARDS}"),
    "an absolute path": (lambda c: part(c).update(file=f"/{FIRST}"), "no name of a file"),
    "a path above": (lambda c: part(c).update(file=f"../{FIRST}"), "no name of a file"),
    "a folder": (lambda c: part(c).update(file=".."), "no name of a file"),
    "a line more": (lambda c: part(c).update(file=f"{FIRST}\n"), "no name of a file"),
    "a NUL": (lambda c: part(c).update(file=f"{FIRST}\0"), "no name of a file"),
    "a number for a file": (lambda c: part(c).update(file=1), f"Expected `str`.*{SHARDS}"),
    "another's part": (
        lambda c: second(c).update(shards=first(c)["shards"]),
        f"what begins at 0 in {FIRST} is there twice",
    ),
    "its own part again": (
        lambda c: first(c).update(shards=[[part(c)]] * 2),
        f"what begins at 0 in {FIRST} is there twice",
    ),
    "a number for a sum": (lambda c: part(c).update(checksum=1), "Expected `str`"),
    "null for a sum": (lambda c: part(c).update(checksum=None), "Expected `str`"),
    "a part before the file": (lambda c: part(c).update(start=-8), f"`int` >= 0.*{SHARDS}"),
    "a part beyond all files": (lambda c: part(c).update(start=2**62), f"`int` <= .*{SHARDS}"),
    "a part between numbers": (lambda c: part(c).update(start=4), f"multiple of 8.*{SHARDS}"),
    "more in a part": (lambda c: part(c).update(more=1), "unknown field `more`"),
    "an array of booleans": (lambda c: values(c, "bool", [3]), f"matching regex.*{SHARDS}"),
    "an array of objects": (lambda c: values(c, "object", [3]), f"matching regex.*{SHARDS}"),
    "rows below 0": (lambda c: values(c, "float32", [-1]), f"`int` >= 0.*{SHARDS}"),
    "rows without end": (lambda c: values(c, "float32", [10**99]), f"`int` <= .*{SHARDS}"),
    "half a row": (lambda c: values(c, "float32", [0.5]), f"Expected `int`.*{SHARDS}"),
    "no shape": (lambda c: values(c, "float32", None), f"Expected `array`.*{SHARDS}"),
    "a depth below 0": (lambda c: c.update(depth=-1), r"Expected `int` >= 0 - at `\$\.depth`"),
    "a depth without end": (
        lambda c: c.update(depth=10**99),
        r"Expected `int` <= 9+ - at `\$\.depth`",
    ),
    "a depth that is true": (
        lambda c: c.update(depth=True),
        r"Expected `int`, got `bool` - at `\$\.depth`",
    ),
    "a prefix above": (lambda c: c.update(prefix="../"), r"at `\$\.prefix`"),
    "a number for a prefix": (lambda c: c.update(prefix=3), r"at `\$\.prefix`"),
    "a list that describes": (
        lambda c: first(c).update(description=[1]),
        r"at `\$\.parameters\[0\]\.description`",
    ),
    "a text for optimizer": (
        lambda c: first(c).update(optimizer="SGD"),
        r"at `\$\.parameters\[0\]\.optimizer`",
    ),
    "no name": (lambda c: first(c).pop("name"), "missing required field `name`"),
    "a name that is none": (lambda c: first(c).update(name=[1]), r"at `\$\.parameters\[0\]\.name`"),
    "one name twice": (lambda c: second(c).update(name="v"), "parameter 'v' is there twice"),
    "more": (lambda c: first(c).update(more=1), "unknown field `more`"),
    "more at large": (lambda c: c.update(more=1), "unknown field `more`"),
    "a parameter that is a list": (
        lambda c: c.update(parameters=[[]]),
        r"at `\$\.parameters\[0\]`",
    ),
    "parameters by name": (lambda c: c.update(parameters={}), "Expected `array`"),
    "metadata in a list": (lambda c: c.update(metadata=[1]), r"at `\$\.metadata`"),
    "metadata with NaN": (lambda c: c["metadata"].update(x=float("nan")), "NaN is not a number"),
    "metadata with infinity": (lambda c: c["metadata"].update(x=float("inf")), "not a number of"),
}


def first(content: dict[str, Any]) -> dict[str, Any]:
    return content["parameters"][0]  # type: ignore[no-any-return]


def part(content: dict[str, Any]) -> dict[str, Any]:
    return first(content)["shards"][0][0]  # type: ignore[no-any-return]


def values(content: dict[str, Any], dtype: str, shape: Any) -> None:
    part(content)["arrays"]["values"] = [dtype, shape]


def second(content: dict[str, Any]) -> dict[str, Any]:
    return content["parameters"][1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", FORGED)
def test_forged_manifest_is_refused_though_its_sum_is_right(checkpoint: Path, case: str) -> None:
    change, message = FORGED[case]
    forge(checkpoint, change)
    with pytest.raises(CheckpointError, match=f"ckpt-000001' is not a checkpoint.*{message}"):
        manifest_of(checkpoint)


def test_an_array_that_is_listed_twice_is_refused(checkpoint: Path) -> None:
    forge(checkpoint)
    file = checkpoint / MANIFEST
    text = file.read_text()
    file.write_text(text.replace('"values"', '"values": ["float32", [1]], "values"', 1))
    with pytest.raises(CheckpointError, match="a key is there twice"):
        manifest_of(checkpoint)


def test_numbers_beyond_floats_in_metadata_are_refused(checkpoint: Path) -> None:
    forge(checkpoint, lambda content: content["metadata"].update(loss=math.inf))
    file = checkpoint / MANIFEST
    file.write_text(file.read_text().replace("Infinity", "1e999"))  # of the same sum
    with pytest.raises(CheckpointError, match="not JSON compliant"):
        manifest_of(checkpoint)


def test_manifest_too_large_to_be_one_is_not_read(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psnb._src.utils.sealed_json.MOST_BYTES", 100)
    with pytest.raises(CheckpointError, match="more than 100 bytes"):
        manifest_of(checkpoint)


def test_manifest_too_large_to_be_read_is_not_written(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psnb._src.utils.sealed_json.MOST_BYTES", 100)
    with pytest.raises(CheckpointError, match="is read with 100 at most: save less metadata"):
        write(checkpoint.parent, [parameter("v")], {})
    assert names(checkpoint.parent) == [checkpoint.name]


def test_whitespace_does_not_matter(checkpoint: Path) -> None:
    said = manifest_of(checkpoint)
    file = checkpoint / MANIFEST
    file.write_text(json.dumps(json.loads(file.read_text())))
    assert manifest_of(checkpoint) == said
