"""Tests of scoring files, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import psnb
import psnb.jax
from psnb._src.cli import main
from psnb._src.models.export.scoring import batches
from psnb._src.utils.arrays import bits_of
from tests.models.export.models import JaxModel, random_rows

COUNT = 1003
IDS = np.random.default_rng(0).integers(0, 2**50, (COUNT, 2))
X = random_rows(COUNT, 3)
WORDS = [list(range(at % 4)) for at in range(COUNT)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of arrays only: CSV holds no bags."""
    made = JaxModel()

    def score(params: object, rows: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> object:
        return {"score": rows["ads"].sum((1, 2)) + batch["x"].sum(1), "row": rows["ads"][:, 0]}

    forward = psnb.jax.forward(score, params=made.params, tables={"ads": made.ads})
    example = {"ads": IDS[:8], "x": X[:8]}
    return psnb.export(tmp_path_factory.mktemp("models") / "model", forward, example=example)


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.models.export.models import BATCH

    return psnb.export(
        tmp_path_factory.mktemp("models") / "bags", JaxModel().forward, example=BATCH
    )


def expected(model: Path) -> np.ndarray:
    found: np.ndarray = psnb.load_model(model).predict({"ads": IDS, "x": X})["score"]
    return found


def write_csv(path: Path, rows: slice) -> str:
    lines = ["x.0,x.1,x.2,ads.0,ads.1,other"]
    for x, ids in zip(X[rows], IDS[rows], strict=True):
        lines.append(",".join([*(repr(float(each)) for each in x), *map(str, ids), "text"]))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_csv_files_are_scored_in_order(model: Path, tmp_path: Path) -> None:
    files = [
        write_csv(tmp_path / "b.csv", slice(0, 600)),
        write_csv(tmp_path / "a.csv", slice(600, COUNT)),
    ]
    out = tmp_path / "scores.csv"
    assert main(["predict", str(model), *files, "--to", str(out), "--batch-size", "256"]) == 0
    lines = out.read_text().splitlines()
    assert lines[0] == "row.0,row.1,row.2,score"
    found = np.array([float(line.rpartition(",")[2]) for line in lines[1:]])
    np.testing.assert_allclose(found, expected(model), atol=1e-6)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_parquet_and_json_lines_are_read_and_written(bags: Path, tmp_path: Path) -> None:
    table = {"ads": IDS.tolist(), "words": WORDS, "x": X.tolist()}
    types = [
        ("ads", pa.list_(pa.int64())),
        ("words", pa.list_(pa.int64())),
        ("x", pa.list_(pa.float32())),
    ]
    pq.write_table(pa.table(table, schema=pa.schema(types)), tmp_path / "in.parquet")
    lines = [
        json.dumps(dict(zip(table, row, strict=True))) for row in zip(*table.values(), strict=True)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    found = {}
    for kind in ("parquet", "jsonl"):
        source, out = str(tmp_path / f"in.{kind}"), str(tmp_path / f"out.{kind}")
        assert main(["predict", str(bags), source, "--to", out, "--format", kind]) == 0
        if kind == "parquet":
            found[kind] = pq.read_table(out).column("score").to_numpy()
        else:
            rows = [json.loads(line) for line in Path(out).read_text().splitlines()]
            found[kind] = np.array([row["score"] for row in rows])
    words = psnb.data.Ragged.from_rows(WORDS, np.int64)
    whole = psnb.load_model(bags).predict({"ads": IDS, "words": words, "x": X})["score"]
    for each in found.values():
        np.testing.assert_allclose(each, whole, atol=1e-6)


def test_json_lines_may_write_whole_floats_and_large_ids(
    bags: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line is alone with the types of its numbers; a mark may begin the file."""
    ids = np.array([[1, 2], [2**63 + 5, 7], [2**64 - 5, 2**63]], np.uint64)
    x, words = [[1, 0, 2], [0.5, 1, 2], [True, 3, 4.5]], [[], [3, 1], []]
    rows = zip(ids.tolist(), x, words, strict=True)
    lines = [json.dumps({"ads": a, "x": b, "words": c}) for a, b, c in rows]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\ufeff" + "\n".join(lines))
    assert main(["predict", str(bags), str(source), "--to", str(out)]) == 0, capsys.readouterr()
    found = [json.loads(line)["score"] for line in out.read_text().splitlines()]
    batch = {"ads": ids, "x": np.float32(x), "words": psnb.data.Ragged.from_rows(words, np.int64)}
    whole = psnb.load_model(bags).predict(batch)["score"]
    np.testing.assert_allclose(found, whole, atol=1e-6)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_without_rows_there_is_a_file_with_the_columns(
    model: Path, tmp_path: Path, kind: str
) -> None:
    out = tmp_path / f"out.{kind}"
    assert (
        main(["predict", str(model), write_csv(tmp_path / "a.csv", slice(0)), "--to", str(out)])
        == 0
    )
    if kind == "parquet":
        table = pq.read_table(out)
        types = {
            field.name: str(getattr(field.type, "value_type", field.type)) for field in table.schema
        }
        assert (types, len(table)) == ({"row": "float", "score": "float"}, 0)
    else:
        assert out.read_text() == ("row.0,row.1,row.2,score\n" if kind == "csv" else "")


def test_files_without_rows_are_passed_over(model: Path, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    files = [
        str(tmp_path / "none.jsonl"),
        write_csv(tmp_path / "header.csv", slice(0)),
        write_csv(tmp_path / "some.csv", slice(0, 3)),
    ]
    out = tmp_path / "scores.csv"
    assert main(["predict", str(model), *files, "--to", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 1 + 3


def test_csv_keeps_all_bits_of_ids(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    ids = [[-1, 2**64 - 1], [2**63 + 5, int(IDS[0, 1])]]
    lines = [f"1,2,3,{first},{second}" for first, second in ids]
    file.write_text("\n".join(["x.0,x.1,x.2,ads.0,ads.1", *lines]) + "\n")
    batches_ = [*batches(psnb.load_model(model).feeds, [str(file)], 2)]
    found = np.concatenate([bits_of(np.asarray(each["ads"])) for each in batches_])
    assert found.tolist() == [[n % 2**64 for n in row] for row in ids]


def test_what_fails_leaves_no_file(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = write_csv(tmp_path / "whole.csv", slice(0, 600)), tmp_path / "scores.csv"
    (tmp_path / "bad.csv").write_text("x.0,x.1,x.2,ads.0,ads.1\n1,2,3,4,five\n")
    out.write_text("before")
    assert main(["predict", str(model), whole, str(tmp_path / "bad.csv"), "--to", str(out)]) == 1
    assert "bad.csv" in capsys.readouterr().err
    assert out.read_text() == "before"
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "bad.csv",
        "scores.csv",
        "whole.csv",
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("in.txt", "", "expected a file that ends with .csv"),
        ("in.csv", "x.0,x.1,x.2,ads.0\n1,2,3,4\n", "ads.1"),
        ("in.csv", "x.0,x.1,x.2,ads.0,ads.1\n1,2,3,4,4.5\n", "column 'ads.1', row 1: '4.5'"),
        ("in.csv", "x.0,x.1,x.2,ads.0,ads.1\n1,2,3,4,Rome\n", "hash_ids makes ids of texts"),
        ("in.csv", f"x.0,x.1,x.2,ads.0,ads.1\n1,2,3,4,{2**64}\n", "does not fit 64 bits"),
        ("in.jsonl", '{"x": [1, 2, 3]}\n', "'ads'"),
        ("in.jsonl", '{"x": [1, 2, 3], "ads": [1, 0.5]}\n', "expected integers"),
        ("in.jsonl", '{"x": [1, "no", 3], "ads": [1, 2]}\n', "numbers of float32"),
        ("in.jsonl", '{"x": [1, 2, 3], "ads": [1, null]}\n', "missing values"),
        ("in.csv", "x.0,x.1,x.2,ads.0,ads.1\n1,2,3,4,\n", "'' is not an integer: fill it"),
        ("in.csv", "x.0,x.1,x.2,ads.0,ads.1\n1,2,3,4,5e1\n", "without a point or an exponent"),
        ("in.jsonl", '{"x": [1, 2, 3], "ads": [1]}\n', "expected 2 numbers in each row, found 1"),
    ],
)
def test_files_that_do_not_fit_are_reported(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str,
    said: str,
) -> None:
    (tmp_path / name).write_text(content)
    assert main(["predict", str(model), str(tmp_path / name)]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("in.csv", "x.0,x.1,x.2,ads.0,ads.1\n1,,3,4,5\n"),
        ("in.jsonl", '{"x": [1, null, 3], "ads": [4, 5]}\n'),
    ],
)
def test_a_missing_float_is_nan_in_each_format(
    model: Path, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    (batch,) = batches(psnb.load_model(model).feeds, [str(tmp_path / name)], 2)
    np.testing.assert_array_equal(batch["x"], [[1, np.nan, 3]])


def test_bags_do_not_fit_csv(
    bags: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(bags), write_csv(tmp_path / "in.csv", slice(0, 2))]) == 1
    assert "which CSV cannot hold" in capsys.readouterr().err


def test_without_a_file_predictions_are_printed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_csv(tmp_path / "in.csv", slice(0, 2))
    assert main(["predict", str(model), source]) == 0
    printed = capsys.readouterr().out
    scores = [float(line.rpartition(",")[2]) for line in printed.splitlines()[1:]]
    np.testing.assert_allclose(scores, expected(model)[:2], atol=1e-6)
    assert printed.startswith("row.0,row.1,row.2,score\n")
    assert "\r" not in printed
