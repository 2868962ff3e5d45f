"""Predictions for the rows of a Dask DataFrame."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import psnb
import psnb.jax
from psnb._src.models.export import loaded
from psnb.errors import ConfigurationError, ExportError
from tests.models.export.models import JaxModel

COUNT = 103


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = JaxModel()

    def score(params: object, rows: Any, batch: dict[str, np.ndarray]) -> object:
        both = rows["ads"].sum(1) + batch["x"]
        return {"score": rows["ads"].sum(1) + batch["x"], "row": rows["ads"] + both[:, None]}

    forward = psnb.jax.forward(score, params=made.params, tables={"ads": made.ads})
    example = {"ads": np.arange(8), "x": np.zeros(8, np.float32)}
    return psnb.export(tmp_path_factory.mktemp("models") / "model", forward, example=example)


def rows() -> pd.DataFrame:
    numbers = {"ads": np.arange(COUNT), "x": np.linspace(0, 1, COUNT), "other": "text"}
    return pd.DataFrame(numbers, index=np.arange(COUNT) + 7)


@pytest.fixture(autouse=True)
def _here() -> Any:
    with dask.config.set(scheduler="synchronous"):
        yield


def test_predictions_have_the_partitions_and_the_index_of_their_frame(model: Path) -> None:
    frame = dd.from_pandas(rows(), npartitions=4)
    made = psnb.load_model(model)
    found = made.predict_dask(frame, batch_size=10)
    assert (found.npartitions, list(found.columns)) == (4, ["row_0", "row_1", "row_2", "score"])
    done = found.compute()
    assert list(done.dtypes) == list(found.dtypes)
    assert done.index.tolist() == rows().index.tolist()
    expected = made.predict({name: rows()[name].to_numpy() for name in ("ads", "x")})
    np.testing.assert_allclose(done["score"], expected["score"], rtol=1e-6)
    np.testing.assert_allclose(done[["row_0", "row_1", "row_2"]], expected["row"], rtol=1e-6)


def test_features_make_the_feeds_of_columns_and_empty_partitions_have_no_rows(model: Path) -> None:
    frame = dd.from_pandas(rows().rename(columns={"ads": "id"}), npartitions=3)
    made = psnb.load_model(model)

    def features(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"ads": columns["id"], "x": columns["x"] * 2}

    found = made.predict_dask(frame[frame.id < 5], features).compute()
    expected = made.predict({"ads": np.arange(5), "x": rows()["x"].to_numpy()[:5] * 2})
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-6)


def test_what_it_cannot_predict_for_is_refused(model: Path, tmp_path: Path) -> None:
    made = psnb.load_model(model)
    with pytest.raises(ConfigurationError, match="predict_dask takes a Dask DataFrame"):
        made.predict_dask(rows())
    with pytest.raises(ConfigurationError, match=r"the frame lacks \['x'\]"):
        made.predict_dask(dd.from_pandas(rows()[["ads"]], npartitions=1))


def test_a_model_that_was_replaced_meanwhile_is_refused(model: Path, tmp_path: Path) -> None:
    made, place = JaxModel(), tmp_path / "model"
    frame = dd.from_pandas(pd.DataFrame({"x": np.zeros(4, np.float32)}), npartitions=1)
    for factor in (1, 2):

        def score(params: Any, rows: Any, batch: Any, factor: int = factor) -> Any:
            return batch["x"] * factor + params["b"]

        forward = psnb.jax.forward(score, params=made.params)
        shutil.rmtree(place, ignore_errors=True)
        psnb.export(place, forward, example={"x": np.zeros(4, np.float32)}, metadata={"n": factor})
        if factor == 1:
            predictions = psnb.load_model(place).predict_dask(frame)
            assert predictions["prediction"].compute().tolist() == [1.0] * 4
    loaded._models.clear()  # as in a process that has not loaded it before
    with pytest.raises(ExportError, match="is not the one that predictions began with"):
        predictions.compute()
