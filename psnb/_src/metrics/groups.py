"""GroupMetric: means over groups of examples, such as users, whichever worker has which. Pure.

The examples of a group may be in any batch of any worker. So a state holds them: a row for each
score and label of a group. It holds a bounded number, by the rule of `psnb._src.metrics.slices`:
the groups whose ranks are below the lowest that was left out, each with all of its examples.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from psnb._src.metrics.checks import NO_EXAMPLES, binary, weights_of
from psnb._src.metrics.checks import column as column_of
from psnb._src.metrics.forms import DIGIT_BITS, DIGITS, UNIT
from psnb._src.metrics.keys import KeyColumn
from psnb._src.metrics.metric import MergeableMetric, MetricState
from psnb._src.metrics.ranking import digits_of
from psnb._src.metrics.rows import NO_CUT, RowKind, summed
from psnb._src.metrics.slices import SLICES, TableForm, sliced, unsliced
from psnb._src.utils.checks import integer

CAPACITY = 1 << 18
"""Scores of groups that a state holds, unless the metric says another number."""

_MOST = 1 << 28

_LEFT_OUT = np.inf
"""The score, and so the row, of all groups of a slice that were left out."""


@dataclass(frozen=True)
class GroupRows(RowKind):
    """How often each group of a slice has each score and label.

    Parameters
    ----------
    capacity : int
        Rows in all, at most; those of what was left out come on top, one for each slice.
    """

    capacity: int
    cut = True
    dtype = np.dtype(
        [
            *(("slice", "<u4"), ("group", "<u8"), ("score", "<f8"), ("label", "<f8")),
            ("count", "<i8", (DIGITS,)),
        ]
    )

    def added(
        self, rows: np.ndarray, cuts: np.ndarray, count: int, share: int
    ) -> tuple[np.ndarray, np.ndarray]:
        most, cuts = max(1, self.capacity // share), cuts.copy()
        held, left = _cut(rows, cuts)
        held = _summed(held)
        ends = np.searchsorted(held["slice"], np.arange(count), "right")
        start = 0
        for number, end in enumerate(ends.tolist()):
            if end - start > most:
                cuts[number] = min(cuts[number], held["group"][start + most])  # they are sorted
            start = end
        held, more = _cut(held, cuts)
        left = _summed(np.concatenate([left, more]))
        whole = np.ones(count, bool)
        whole[left["slice"]] = False
        cuts[whole] = NO_CUT
        if left.size:
            both = np.concatenate([held, left])
            held = both[np.argsort(both["slice"], kind="stable")]
        return held, cuts

    def negative(self, rows: np.ndarray) -> np.ndarray:
        found = rows.copy()
        found["count"] *= -1
        return found

    def array(self, rows: np.ndarray, cut: np.uint64) -> np.ndarray:
        found = rows.copy()
        found["slice"] = 0
        return TableForm(self, 0).packed(unsliced(found, np.array([cut], "<u8")))


def _cut(rows: np.ndarray, cuts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of groups below the cut of their slice; and the others, of one group."""
    bounds = cuts[rows["slice"]]
    out = (rows["score"] == _LEFT_OUT) | ((bounds != NO_CUT) & (rows["group"] >= bounds))
    if not out.any():
        return rows, rows[:0]
    left = rows[out]
    left["group"], left["score"], left["label"] = NO_CUT, _LEFT_OUT, 0
    return rows[~out], left


def _summed(rows: np.ndarray) -> np.ndarray:
    return summed(rows, ("slice", "group", "score", "label"), ("count",))


def counts_of(digits: np.ndarray) -> np.ndarray:
    """Return counts or weights of digits ``(rows, DIGITS)``: float64."""
    found = np.zeros(len(digits))
    for digit in range(DIGITS - 1, -1, -1):
        found = found / (1 << DIGIT_BITS) + digits[:, digit]
    return found / UNIT


@dataclass(frozen=True)
class GroupMetric(MergeableMetric):
    """A mean over groups, of rows that the state holds."""

    capacity: int = CAPACITY

    def __post_init__(self) -> None:
        integer(f"{type(self).__name__}: capacity", self.capacity, 1, _MOST)

    @property
    def rows(self) -> GroupRows:
        """The groups."""
        return GroupRows(self.capacity)

    @property
    def form(self) -> TableForm:
        """A table without slices."""
        return TableForm(self.rows, 0)

    @abstractmethod
    def of_groups(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of each group that has one, and its weight in the mean.

        Rows are sorted by group, score and label, and of whole groups.
        """

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the mean."""
        rows = self.form.unpacked(array).rows
        held = rows[rows["score"] != _LEFT_OUT]
        values, weights = self.of_groups(held)
        if values.size:
            return float(np.average(values, weights=weights))
        if held.size < rows.size and not held.size:
            return (
                f"one group has more than capacity={self.capacity} scores: round them, or give "
                "the metric a larger capacity"
            )
        return self.without_value if held.size else NO_EXAMPLES

    without_value: ClassVar[str] = ""
    """Why there is no value though there are examples."""

    def coverage(self, array: np.ndarray) -> float:
        """Return the share of the examples that is held."""
        rows = self.form.unpacked(array).rows
        out = rows["score"] == _LEFT_OUT
        if not out.any():
            return 1.0
        counts = counts_of(rows["count"])
        return float(counts[~out].sum() / counts.sum())

    def state_of(
        self,
        groups: Any,
        scores: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray | None,
        by: Any,
        slices: int,
    ) -> MetricState:
        """Return the state of a batch of float64 scores and labels."""
        size = scores.size
        keys = KeyColumn("groups", groups, size)

        def rows(owners: np.ndarray | int) -> np.ndarray:
            made = np.zeros(size, self.rows.dtype)
            made["slice"], made["group"] = owners, keys.ranks
            made["score"], made["label"] = scores, labels
            for digit, each in enumerate(digits_of(weights)):
                made["count"][:, digit] = each
            return made

        if by is not None:
            return sliced(self, by, slices, size, weights, rows)
        held, cuts = self.rows.added(rows(0), self.form.no_cuts(1), 1, 1)
        examples = size if weights is None else int(np.count_nonzero(weights))
        return MetricState(self, self.form.packed(unsliced(held, cuts, examples)))


@dataclass(frozen=True)
class GroupAUC(GroupMetric):
    r"""The mean of the AUC within each group, weighted by the group's examples.

    .. math:: \frac{\sum_g w_g \, \mathrm{AUC}_g}{\sum_g w_g}

    :math:`w_g` is the number of examples of a group, such as a user, or the sum of their weights.
    Groups of one class, which have no AUC, are left out. So only the order of what one user was
    shown counts, and not which users click more. Scores may be any finite numbers. Paddle calls it
    WuAUC.

    Zhou et al., *Deep Interest Network for Click-Through Rate Prediction*, KDD 2018.

    The examples of a group may be in any batch of any worker: the state holds each score of each
    group, 52 bytes for each that is different, so **it grows**, up to ``capacity`` of them. Beyond
    it a state holds a sample of the groups, each with all of its examples: those whose ids have the
    lowest hashes, so the same groups on every worker and in every epoch. Then the value is that of
    the sample, and `MetricState.coverage` says of which share of the examples that is.

    Parameters
    ----------
    capacity : int
        How many scores of groups a state holds, from 1 to ``2**28``. By slices, each slice has
        an equal part of it.

    Raises
    ------
    ConfigurationError
        If it is not such a number.

    Examples
    --------
    >>> import psnb
    >>> group_auc = psnb.metrics.GroupAUC()
    >>> state = group_auc([1, 0, 1, 0, 0], [0.9, 0.1, 0.2, 0.4, 0.3], groups=[7, 7, 8, 8, 8])
    >>> float(state)  # (2 * 1.0 + 3 * 0.0) / 5
    0.4
    """

    without_value = "no group has both positive and negative examples"

    def __call__(
        self,
        labels: Any,
        scores: Any,
        weights: Any = None,
        *,
        groups: Any,
        by: Any = None,
        slices: int = SLICES,
    ) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels : array_like
            0 or 1, of shape ``(examples,)``.
        scores : array_like
            Finite numbers of the same shape.
        weights : array_like, optional
            How much each example counts, as for `AUC`.
        groups : array_like
            The group of each example: integers, bools or texts, of the same shape. Integers are 64
            bits, and never taken for each other; of texts, two of a million have one hash with a
            chance of 3 in 100 million.
        by : array_like, optional
            A key for each example, by which the metric is taken too: see `MetricState.slices`.
        slices : int
            How many slices have a value of their own, at most; from 1 to 1,000.

        Raises
        ------
        ConfigurationError
            If the shapes, dtypes or numbers are not as described, or a group is missing.
        """
        positive = binary(labels)
        array = (
            column_of("scores", scores, positive.size).astype(np.float64) + 0.0
        )  # no negative zero
        checked = weights_of(weights, positive.size)
        return self.state_of(groups, array, positive.astype(np.float64), checked, by, slices)

    def of_groups(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the AUC of each group of both classes, and its weight."""
        if not rows.size:
            return np.zeros(0), np.zeros(0)
        group, level = starts(rows["group"]), starts(rows["group"], rows["score"])
        first = np.searchsorted(level, group)  # the first level of each group
        levels = np.diff(first, append=level.size)
        digits = rows["count"]
        negative = np.where((rows["label"] == 0)[:, np.newaxis], digits, 0)
        # Whole digits are added up, so that no other group's weights round this one's.
        earlier = np.cumsum(negative, axis=0) - negative
        below = counts_of(earlier[level] - np.repeat(earlier[group], levels, axis=0))
        negatives = counts_of(np.add.reduceat(negative, level))
        positives = counts_of(np.add.reduceat(digits - negative, level))
        pairs = np.add.reduceat(positives * (below + negatives / 2), first)
        of_group = [np.add.reduceat(each, first) for each in (negatives, positives)]
        both = (of_group[0] > 0) & (of_group[1] > 0)
        auc = pairs[both] / of_group[1][both] / of_group[0][both]
        return auc, (of_group[0] + of_group[1])[both]


def starts(*keys: np.ndarray) -> np.ndarray:
    """Return where sorted columns differ from the row before; the first row, too."""
    new = np.ones(keys[0].size, bool)
    new[1:] = False
    for column in keys:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new)
