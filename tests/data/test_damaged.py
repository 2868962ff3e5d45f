"""Files of arrays that are damaged: refused, with their names and what to do."""

from __future__ import annotations

import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnb.data import Dataset
from psnb.errors import DatasetError
from tests.data.elements import values

D = Dataset


def kept(folder: Path) -> Dataset:
    rows = D.range(300).map(lambda x: {"n": x, "t": str(x)})
    return rows.cache(str(folder / "kept"))


def bombed(path: Path) -> None:
    """Write the arrays anew, compressed: what they unpack to is then the file's choice."""
    with np.load(path) as arrays:
        contents = dict(arrays)
    np.savez_compressed(path, **contents)


def pickled(path: Path) -> None:
    with np.load(path) as arrays:
        contents = dict(arrays)
    contents["0.values"] = np.array([Unpickled()] * 300, object)
    np.savez(path, **contents)


def with_length(length: int) -> Callable[[Path], None]:
    """Return what changes the length of the text in row 200."""

    def damage(path: Path) -> None:
        with np.load(path) as arrays:
            contents = dict(arrays)
        contents["1.lengths"][200] = length
        np.savez(path, **contents)

    return damage


class Unpickled:
    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


def with_header(header: str) -> Callable[[Path], None]:
    """Return what makes the first array's header another one."""

    def damage(path: Path) -> None:
        with zipfile.ZipFile(path) as file:
            contents = {name: file.read(name) for name in file.namelist()}
        contents["0.values.npy"] = npy(header)
        with zipfile.ZipFile(path, "w") as file:
            for name, content in contents.items():
                file.writestr(name, content)

    return damage


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


HEADERS = {
    "TokenError": "{'descr': '<i8', 'fortran_order': False, 'shape': (",
    "TypeError": "{'descr': '<i8', 1: False, 'shape': (300,)}",
    "SyntaxError": "{'descr': ']', 'fortran_order': False, 'shape': (300,)}",
    "object": "{'descr': '|O', 'fortran_order': False, 'shape': (300,)}",
    "larger than any memory": (
        "{'descr': '<i8', 'fortran_order': False, 'shape': (4611686018427387904,)}"
    ),
    "larger than the file": "{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,)}",
    "negative": "{'descr': '<i8', 'fortran_order': False, 'shape': (-300,)}",
    "fewer rows": "{'descr': '<i8', 'fortran_order': False, 'shape': (0,)}",
}

DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path: path.write_bytes(b""),
    "a zip file's head and no more": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "a bit flipped": lambda path: path.write_bytes(flipped(path.read_bytes(), 700)),
    "gone": lambda path: path.unlink(),
    "compressed": bombed,
    "pickled": pickled,
    "a text longer than its bytes": with_length(1 << 62),
    "a text of fewer bytes": with_length(2),
    "a text of negative length": with_length(-2),
    **{name: with_header(header) for name, header in HEADERS.items()},
}


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_part_of_a_cache_is_named_with_what_to_do(
    damage: Callable[[Path], Any], tmp_path: Path
) -> None:
    values(kept(tmp_path))
    damage(tmp_path / "kept" / "00000.npz")
    said = rf"kept/00000\.npz cannot be read: .*; delete the folder {tmp_path}/kept"
    with pytest.raises(DatasetError, match=said):
        values(kept(tmp_path))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_part_of_a_saved_dataset_is_named(
    damage: Callable[[Path], Any], tmp_path: Path
) -> None:
    D.range(300).map(lambda x: {"n": x, "t": str(x)}).save(tmp_path / "saved")
    damage(tmp_path / "saved" / "00000.npz")
    with pytest.raises(DatasetError, match=rf"{tmp_path}/saved/00000\.npz"):
        values(D.load(tmp_path / "saved"))


@pytest.mark.parametrize(
    "nesting",
    [["dict", ["n", "n"], [None, None]], ["dict", [["n"]], [None]], ["tuple", [0], [None, None]]],
    ids=["keys that are equal", "a key that is none", "too few keys"],
)
def test_a_damaged_nesting_of_a_saved_dataset_is_named(nesting: Any, tmp_path: Path) -> None:
    D.range(3).map(lambda x: {"n": x, "t": x}).save(tmp_path / "saved")
    path = tmp_path / "saved" / "00000.npz"
    with np.load(path) as arrays:
        contents = dict(arrays)
    head = json.loads(str(contents["head"]))
    contents["head"] = np.array(json.dumps({**head, "nesting": nesting}))
    np.savez(path, **contents)
    with pytest.raises(DatasetError, match=r"0\.npz is not part of a saved dataset, or damaged"):
        values(D.load(tmp_path / "saved"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2}',
        '{"version": 1, "counts": 5}',
        '{"version": 1, "counts": "5"}',
    ],
)
def test_a_damaged_list_of_a_saved_dataset_is_named(text: str, tmp_path: Path) -> None:
    D.range(3).save(tmp_path / "saved")
    (tmp_path / "saved" / "dataset.json").write_text(text)
    with pytest.raises(DatasetError, match=r"dataset\.json cannot be read: .*; save the dataset"):
        D.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"counts": [300]', '"counts": ["300"]'),
        ('"counts": [300]', '"counts": [-300]'),
        ('"counts": [300]', '"counts": 300'),
        ('"counts": [300]', '"count": [300]'),
        ('"seed": ', '"seed": null, "x": '),
        ("{", "[{"),
        ('{"format"', '[5]{"format"'),
    ],
)
def test_a_damaged_list_of_a_cache_is_named_with_what_to_do(
    old: str, new: str, tmp_path: Path
) -> None:
    values(kept(tmp_path))
    path = tmp_path / "kept" / "cache.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DatasetError, match=r"cache\.json cannot be read: .*; delete the folder"):
        values(kept(tmp_path))


@pytest.mark.parametrize("header", [HEADERS[name] for name in HEADERS if name != "fewer rows"])
def test_a_damaged_npy_file_is_named(header: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(npy(header))
    with pytest.raises(DatasetError, match=rf"npy.*{path} cannot be mapped"):
        len(D.npy(str(path)))


def test_what_is_no_npy_file_is_not_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(pickle.dumps(Unpickled()))
    with pytest.raises(DatasetError, match="cannot be mapped"):
        len(D.npy(str(path)))


def test_any_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    values(kept(tmp_path))
    cache, alone = tmp_path / "kept" / "00000.npz", tmp_path / "a.npy"
    out = io.BytesIO()
    np.save(out, np.arange(12))
    contents = {cache: cache.read_bytes(), alone: out.getvalue()}
    draw = random.Random(5)
    for _ in range(400):
        for path, content in contents.items():
            mutated = bytearray(content)
            for _ in range(draw.randint(1, 4)):
                mutated[draw.randrange(min(len(mutated), 4000))] = draw.randrange(256)
            path.write_bytes(bytes(mutated[: draw.choice([None, draw.randrange(len(mutated))])]))
        for dataset in (kept(tmp_path), D.npy(str(alone))):
            with suppress(DatasetError):
                values(dataset.take(3))
