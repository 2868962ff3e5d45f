"""Tests of what may be wrong with a model's folder: nothing of it is believed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from xxhash import xxh3_64_hexdigest

import psnb
from psnb._src.utils.files import checksum
from psnb.errors import ExportError
from tests.models.export.rows_model import Model
from tests.models.export.test_export import any_ids, chunks

MANIFEST, PROGRAM = "manifest.json", "program.torch.json"
ROWS, IDS, PLACES = (f"0000-{what}.safetensors" for what in ("rows", "ids", "places"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return psnb.export(tmp_path / "m", Model(*chunks(any_ids(100))))


def forge(path: Path, change: Callable[[dict[str, Any]], object] = lambda content: None) -> None:
    """Change the manifest, with the right sizes and checksums."""
    content = json.loads((path / MANIFEST).read_text())
    del content["xxh3"]
    for name in content["files"]:
        if (path / name).is_file():
            size = (path / name).stat().st_size
            content["files"][name] = {"bytes": size, "xxh3": checksum(path / name)}
    change(content)
    text = json.dumps(content)
    (path / MANIFEST).write_text(json.dumps({**content, "xxh3": xxh3_64_hexdigest(text.encode())}))


def rewrite(path: Path, file: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change the array of a file."""
    array = load_file(path / file)["data"]
    save_file({"data": np.ascontiguousarray(change(array))}, path / file)
    forge(path)


def refused(path: Path, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        psnb.load_model(path)


@pytest.mark.parametrize("name", [MANIFEST, PROGRAM, ROWS, IDS, PLACES, "dense.safetensors"])
@pytest.mark.parametrize(
    "damage", ["missing", "truncated", "empty", "longer", "link", "pipe", "folder"]
)
@pytest.mark.timeout(30)
def test_damaged_files_are_refused(model: Path, tmp_path: Path, name: str, damage: str) -> None:
    file = model / name
    whole = file.read_bytes()
    elsewhere = file.rename(tmp_path / "elsewhere")
    if damage == "link":
        file.symlink_to(elsewhere)
    elif damage == "pipe":
        os.mkfifo(file)
    elif damage == "folder":
        file.mkdir()
    elif damage != "missing":
        changed = {"truncated": whole[:-1], "empty": b"", "longer": whole + b" "}[damage]
        file.write_bytes(changed + (b"x" if name == MANIFEST and damage == "longer" else b""))
    gone = name == MANIFEST and damage == "missing"
    said = "has no manifest.json" if gone else "is not an exported model, or is damaged"
    refused(model, said)


def test_any_flipped_bit_is_noticed(model: Path) -> None:
    for name in (MANIFEST, PROGRAM, ROWS, IDS, "dense.safetensors"):
        file = model / name
        whole = file.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 40)):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            refused(model, "is not an exported model")
        file.write_bytes(whole)
    psnb.load_model(model)


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change of the manifest: the last of ``path`` is the value."""

    def change(content: dict[str, Any]) -> None:
        *keys, last, value = path
        for key in keys:
            content = content[key]
        content[last] = value

    return change


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        *keys, last = path
        for key in keys:
            content = content[key]
        del content[last]

    return change


FILE = {"bytes": 3, "xxh3": ""}
TABLE = ("tables", 0)
CASES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "another format": (put("format", 3), "format 3"),
    "no format": (drop("format"), "format"),
    "a framework of its choosing": (put("framework", "os"), r"at `\$\.framework`"),
    "a framework that is a list": (put("framework", []), r"at `\$\.framework`"),
    "a file elsewhere": (put("files", "../secret", FILE), "at `key` in `.*files"),
    "a file at the root": (put("files", "/etc/passwd", FILE), "at `key` in `.*files"),
    "a hidden file": (put("files", ".ssh", FILE), "at `key` in `.*files"),
    "itself as a file": (put("files", MANIFEST, FILE), "at `key` in `.*files"),
    "a size below 0": (put("files", ROWS, "bytes", -1), "Expected `int` >= 0"),
    "a size that is true": (put("files", ROWS, "bytes", True), "got `bool`"),
    "files that are a list": (put("files", []), r"at `\$\.files`"),
    "a program that is not a file": (put("programs", ["other"]), "is not a file of it"),
    "a program that is a number": (put("programs", [1]), r"at `\$\.programs\[0\]`"),
    "no program": (put("programs", []), "program.torch.json is missing"),
    "no rows": (drop("files", ROWS), "is missing"),
    "no dense parameters": (drop("files", "dense.safetensors"), "is missing"),
    "more than there is": (put("more", 1), "unknown field `more`"),
    "a key less": (drop("feeds"), "missing required field `feeds`"),
    "feeds that are a text": (put("feeds", "ids"), r"at `\$\.feeds`"),
    "a feed without a name": (put("feeds", 0, "name", None), r"at `\$\.feeds\[0\]\.name`"),
    "a feed of objects": (put("feeds", 0, "dtype", "object"), r"at `\$\.feeds\[0\]\.dtype`"),
    "a feed of a dtype that is a list": (
        put("feeds", 0, "dtype", []),
        r"at `\$\.feeds\[0\]\.dtype`",
    ),
    "a feed of a negative shape": (put("feeds", 0, "shape", [-1]), "Expected `int` >= 0"),
    "a feed of many axes": (put("feeds", 0, "shape", [1] * 40), "of length <= 32"),
    "a feed that holds files": (put("feeds", 0, "holds", "files"), r"at `\$\.feeds\[0\]\.holds`"),
    "a table twice": (lambda c: c["tables"].append(c["tables"][0]), "two of its tables"),
    "a table of no columns": (put(*TABLE, "dim", 0), r"at `\$\.tables\[0\]\.dim`"),
    "wide rows": (put(*TABLE, "dim", 4), "expected float32 of shape"),
    "more rows": (put(*TABLE, "count", 1 << 40), "expected"),
    "rows without end": (put(*TABLE, "count", 1 << 60), r"at `\$\.tables\[0\]\.count`"),
    "fixed rows that lack some": (put(*TABLE, "rows", 5), "lacks rows"),
    "rows of another dtype": (put(*TABLE, "stored", "float16"), "expected float16"),
    "rows of objects": (put(*TABLE, "stored", "object"), r"at `\$\.tables\[0\]\.stored`"),
    "an int8 table without scales": (put(*TABLE, "stored", "int8"), "expected int8|is missing"),
    "a seed below 0": (put(*TABLE, "seed", -1), r"at `\$\.tables\[0\]\.seed`"),
    "a padding of 65 bits": (put(*TABLE, "padding_idx", 1 << 64), "padding_idx is"),
    "an initializer of its choosing": (put(*TABLE, "initializer", {"name": "exec"}), "initializer"),
    "an initializer of infinity": (
        put(*TABLE, "initializer", {"name": "Constant", "value": 1e400}),
        "exported model",
    ),
    "an initializer of a text": (
        put(*TABLE, "initializer", {"name": "Constant", "value": "x"}),
        "must be a finite number",
    ),
    "an admission of nobody": (
        put(*TABLE, "admission", {"name": "CountFilter", "count": 0}),
        "count",
    ),
    "an error that is none": (
        put(*TABLE, "error", {"max": "small", "rms": 0}),
        r"at `\$\.tables\[0\]\.error",
    ),
    "outputs that loop": (put("outputs", {"list": [0, 7]}), "its outputs"),
    "outputs that are true": (put("outputs", True), "its outputs"),
    "outputs of two kinds": (put("outputs", {"list": [], "dict": {}}), "its outputs"),
    "sources that are a list": (put("sources", []), r"at `\$\.sources`"),
    "sources in nothing": (put("sources", "parts", {"w": ["v", 0]}), "no variable of 'w'"),
    "a variable of infinity": (put("sources", "variables", {"v": [1e400, "f4"]}), "exported model"),
    "a variable of texts": (
        put("sources", "variables", {"v": [1, "str"]}),
        r"at `\$\.sources\.variables",
    ),
    "a source of nothing": (
        put("sources", {"variables": {"v": [1, "float32"]}, "parts": {"w": ["v", 0]}}),
        "there is no dense parameter 'w'",
    ),
    "a source before the beginning": (
        put("sources", {"variables": {"v": [1, "float32"]}, "parts": {"w": ["v", -1]}}),
        r"at `\$\.sources\.parts",
    ),
    "what it follows is a text": (put("follows", "run"), r"at `\$\.follows`"),
    "it follows a number": (
        put("follows", {"directory": 3, "after": 0}),
        r"at `\$\.follows\.directory`",
    ),
    "it follows what comes after a text": (
        put("follows", {"directory": "run", "after": "3"}),
        r"at `\$\.follows\.after`",
    ),
    "another fetch": (lambda c: c["fetches"].append(c["fetches"][0]), "other outputs"),
}


@pytest.mark.parametrize("case", CASES)
def test_manifests_that_cannot_be_are_refused(model: Path, case: str) -> None:
    change, said = CASES[case]
    forge(model, change)
    refused(model, said)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        (IDS, lambda ids: ids[::-1], "its ids do not ascend"),
        (IDS, lambda ids: np.zeros_like(ids), "its ids do not ascend"),
        (IDS, lambda ids: ids.view(np.int64), "expected uint64"),
        (IDS, lambda ids: ids[1:], "expected uint64 of shape"),
        (PLACES, lambda places: places + 1, "a place outside of the rows"),
        (PLACES, lambda places: places.astype(np.uint64), "expected uint32"),
        (ROWS, lambda rows: rows[:, :2], "expected float32"),
        (ROWS, lambda rows: rows.astype(np.float64), "expected float32"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(model: Path, file: str, change: Any, said: str) -> None:
    rewrite(model, file, change)
    refused(model, said)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (["os.system", ["true"], {}], "not an operator of a model"),
        (["torch.hub.load", ["x"], {}], "not an operator of a model"),
        (["aten.__class__.default", [], {}], "not an operator of a model"),
        (["aten.from_file.default", ["/etc/passwd"], {}], "not an operator of a model"),
        (["aten.add_.Tensor", [{"node": 0}, 1], {}], "not an operator of a model"),
        (["aten.nothing.default", [], {}], "not an operator of a model"),
        (["psnb.lookup.default", [], {}], "not an operator of a model"),
        (["lookup", [{"node": 0}, "other"], {}], "a lookup in its program"),
        (["lookup", [{"node": 0}], {}], "a lookup in its program"),
        (["aten.add.Tensor", [{"node": 1}, 1], {}], "an argument in its program"),
        (["aten.add.Tensor", [{"node": -1}, 1], {}], "an argument in its program"),
        (["aten.add.Tensor", [{"dtype": "load"}, 1], {}], "an argument in its program"),
        (["aten.add.Tensor", [{"device": "cuda"}, 1], {}], "an argument in its program"),
        (["aten.add.Tensor", 1, {}], r"Expected `array`, got `int` - at `\$\.nodes\[0\]"),
        ("lookup", r"Expected `array`, got `str` - at `\$\.nodes\[0\]"),
    ],
)
def test_programs_that_are_none_are_refused(model: Path, node: Any, said: str) -> None:
    program = json.loads((model / PROGRAM).read_text())
    program["nodes"] = [node]
    (model / PROGRAM).write_text(json.dumps(program))
    forge(model)
    refused(model, said)


@pytest.mark.parametrize(
    "entry", [["dense", "w"], ["feed", "x"], ["feed", "ids", "values"], ["file", "x"], [], 1]
)
def test_inputs_that_are_not_there_are_refused(model: Path, entry: Any) -> None:
    program = json.loads((model / PROGRAM).read_text())
    program["inputs"] = [entry]
    (model / PROGRAM).write_text(json.dumps(program))
    forge(model)
    refused(model, r"an input of its program|has no bags|at `\$\.inputs")


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "nothing' is not there: a model is a folder that")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "file' is a file: a model is a folder")
    refused(tmp_path, "has no manifest.json: .* checkpoints are read by")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def places_of(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a JSON object."""
    found = [path] if path else []
    items = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, each in items:
        found += places_of(each, (*path, key))
    return found


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), file=st.sampled_from([MANIFEST, PROGRAM]), value=JSON)
def test_any_change_of_json_is_refused_or_predicts(
    model: Path, data: st.DataObject, file: str, value: Any
) -> None:
    before = {name: (model / name).read_bytes() for name in (MANIFEST, PROGRAM)}
    content = json.loads(before[file])
    path = data.draw(
        st.sampled_from([p for p in places_of(content) if p[0] not in ("xxh3", "format")])
    )
    try:
        if file == MANIFEST:
            forge(model, put(*path, value))
        else:
            put(*path, value)(content)
            (model / PROGRAM).write_text(json.dumps(content))
            forge(model)
        try:
            loaded = psnb.load_model(model)
        except ExportError:
            return
        # Another model may take other feeds, or fail as PyTorch does.
        with suppress(psnb.errors.PsnbError, RuntimeError, ValueError, TypeError):
            loaded.predict({"ids": np.zeros((2, 2), np.int64)})
    finally:
        for name, whole in before.items():
            (model / name).write_bytes(whole)
