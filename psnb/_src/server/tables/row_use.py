"""How a table records the use of its rows: shows, clicks, days unseen. Pure.

After PaddlePaddle's ``CtrCommonAccessor``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from psnb._src.server import kernels
from psnb._src.server.disk import DiskSpace
from psnb._src.server.kernels import read_only
from psnb._src.server.tables.checks import ROW_USE
from psnb._src.server.tables.growing_array import GrowingArray
from psnb._src.utils.checks import is_number
from psnb._src.utils.config import Described
from psnb._src.utils.text import shown
from psnb.errors import ConfigurationError


@dataclass(frozen=True)
class CtrAccessor(Described):
    """How rows of click-through-rate tables are scored, decayed and deleted.

    The names and defaults of Paddle's ``CtrCommonAccessor``. Differences: decay and the count of
    days are `Embedding.end_day`, deletion is `Embedding.shrink` (Paddle decays while it shrinks,
    and counts days while it saves); gradients are summed, not divided by shows (``show_scale``); a
    row is made as a whole (``embedx_threshold``); checkpoints have all rows (``base_threshold``,
    ``delta_threshold``, ``delta_keep_days``).

    A row's score is ``nonclk_coeff * (show - click) + click_coeff * click``.

    Parameters
    ----------
    nonclk_coeff : float
        What a show without a click counts.
    click_coeff : float
        What a click counts.
    show_click_decay_rate : float
        The factor on shows and clicks at the end of a day, 0 to 1.
    delete_threshold : float
        `Embedding.shrink` removes rows with a lower score.
    delete_after_unseen_days : float
        It also removes rows that were not pushed for more days than this.

    Raises
    ------
    ConfigurationError
        If a parameter is not a number in its range.
    """

    nonclk_coeff: float = 0.1
    click_coeff: float = 1.0
    show_click_decay_rate: float = 0.98
    delete_threshold: float = 0.8
    delete_after_unseen_days: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not is_number(value) or value < 0:
                raise ConfigurationError(f"{shown(self)}: {name} must be a number and not below 0")
        if self.show_click_decay_rate > 1:
            raise ConfigurationError(f"{shown(self)}: show_click_decay_rate must be 1 at most")

    def score(self, show: np.ndarray, click: np.ndarray) -> np.ndarray:
        """Return the score of rows with these shows and clicks."""
        scores: np.ndarray = self.nonclk_coeff * (show - click) + self.click_coeff * click
        return scores


class RowUse(GrowingArray):
    """Shows, clicks and days unseen of a table's rows: 12 bytes a row. Not thread-safe.

    Parameters
    ----------
    accessor : CtrAccessor
        How they are scored and decayed.
    disk : DiskSpace, optional
        Where they are; by default in memory.
    """

    def __init__(self, accessor: CtrAccessor, disk: DiskSpace | None = None) -> None:
        super().__init__(3, np.dtype(np.float32), disk=disk)
        self.accessor = accessor

    def grow(self, count: int) -> None:
        """Add rows until there are ``count``; new ones are all zeros."""
        before = len(self.rows)
        super().grow(count)
        self.rows[before:] = 0

    def record(self, rows: np.ndarray, shows: np.ndarray, clicks: np.ndarray) -> None:
        """Add shows and clicks to rows, which may repeat; they are seen today. Not to -1."""
        kernels.record_use(self.rows, read_only(rows), read_only(shows), read_only(clicks))

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return show, click and days unseen of rows, float32 ``(n, 3)``; zeros for -1."""
        found = np.zeros((rows.size, 3), np.float32)
        there = rows >= 0
        found[there] = self.rows[rows[there]]
        return found

    def end_day(self) -> None:
        """Let shows and clicks decay, and count a day unseen."""
        self.rows[:, :2] *= self.accessor.show_click_decay_rate
        self.rows[:, 2] += 1

    def kept(self, threshold: float, days: float) -> np.ndarray:
        """Return which rows `Embedding.shrink` keeps, bool ``(count,)``."""
        show, click, unseen = self.rows.T
        kept: np.ndarray = (self.accessor.score(show, click) >= threshold) & (unseen <= days)
        return kept

    def column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        """Return ``show``, ``click`` or ``unseen_days``."""
        return self.rows[rows, ROW_USE.index(name)].copy()

    def load(self, rows: np.ndarray, state: Mapping[str, np.ndarray]) -> None:
        """Take over a record for each of these rows."""
        for i, name in enumerate(ROW_USE):
            self.rows[rows, i] = state[name]
