"""QueryMetric: how well scores order the candidates of each query. Pure.

All of them are the mean, over the queries with a relevant candidate, of what is expected if
candidates of equal scores come in random order. So neither the order of a batch nor a constant
score gains anything.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from psnb._src.metrics.checks import column, numbers, weights_of
from psnb._src.metrics.forms import UNIT
from psnb._src.metrics.groups import CAPACITY, GroupMetric, starts
from psnb._src.metrics.means import Slicing, WeightedMean
from psnb._src.metrics.metric import MetricState
from psnb._src.metrics.slices import SLICES
from psnb._src.utils.checks import integer
from psnb.errors import ConfigurationError


class Candidates(NamedTuple):
    """Candidates, sorted by query, score and label.

    Attributes
    ----------
    query : numpy.ndarray
        Which each is of.
    score, label : numpy.ndarray
        float64; labels are 0 or more.
    copies : numpy.ndarray
        How many there are alike.
    """

    query: np.ndarray
    score: np.ndarray
    label: np.ndarray
    copies: np.ndarray


class Levels(NamedTuple):
    """Candidates by levels of equal scores: in each query the highest first.

    Attributes
    ----------
    first : numpy.ndarray
        Of each query, its first level.
    sizes, relevant, gains : numpy.ndarray
        Of each level: its candidates, those with a label above 0, and the sum of the labels.
    before : numpy.ndarray
        Of each level, the candidates of its query that come before it.
    """

    first: np.ndarray
    sizes: np.ndarray
    relevant: np.ndarray
    gains: np.ndarray
    before: np.ndarray

    def deciding(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ``before``, ``sizes`` and ``relevant`` of each query's first relevant level."""
        found = np.flatnonzero(self.relevant)
        query = np.searchsorted(self.first, found, "right") - 1
        found = found[starts(query)]
        return self.before[found], self.sizes[found], self.relevant[found]


def _levels(given: Candidates) -> tuple[np.ndarray, Levels]:
    """Return the queries with a relevant candidate, and their levels."""
    query, score, label, count = (each[::-1] for each in given)
    group, level = starts(query), starts(query, score)
    many = np.add.reduceat(np.where(label > 0, count, 0), group) if query.size else group
    if not many.all():  # queries without a relevant candidate have no best order
        held = np.repeat(many > 0, np.diff(group, append=query.size))
        query, score, label, count = (each[held] for each in (query, score, label, count))
        group, level = starts(query), starts(query, score)
    if not query.size:
        none = np.zeros(0, np.int64)
        return query, Levels(*[none] * 5)
    sizes = np.add.reduceat(count, level)
    relevant = np.add.reduceat(np.where(label > 0, count, 0), level)
    first = np.searchsorted(level, group)
    earlier = np.cumsum(sizes) - sizes
    before = earlier - np.repeat(earlier[first], np.diff(first, append=level.size))
    return query[group], Levels(
        first, sizes, relevant, np.add.reduceat(count * label, level), before
    )


@dataclass(frozen=True)
class QueryMetric(WeightedMean):
    """A mean over queries."""

    k: int | None = 10
    capacity: int = CAPACITY
    best = math.inf

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.k is not None:
            integer(f"{name}: k", self.k, 1)
        Grouped(self.capacity, metric=self)  # checks it

    @abstractmethod
    def of_queries(self, given: Candidates) -> tuple[np.ndarray, np.ndarray]:
        """Return the queries with a relevant candidate, and the value of each."""

    def __call__(
        self,
        labels: Any,
        scores: Any,
        weights: Any = None,
        *,
        groups: Any = None,
        by: Any = None,
        slices: int = SLICES,
    ) -> MetricState:
        """Return the state of a batch.

        Parameters
        ----------
        labels : array_like
            0 or more, and above 0 for what is relevant. Of shape ``(queries, candidates)``; or of
            shape ``(examples,)`` with ``groups``.
        scores : array_like
            Finite numbers of the same shape.
        weights : array_like, optional
            How much each query counts, 0 or more; of shape ``(queries,)``. Not with ``groups``.
        groups : array_like, optional
            The query of each example: integers, bools or texts, of shape ``(examples,)``. The
            examples of a query may be in any batch of any worker: the state holds them, as that of
            `GroupAUC` does, up to ``capacity``.
        by : array_like, optional
            A key for each query, or for each example with ``groups``, by which the metric is taken
            too: see `MetricState.slices`.
        slices : int
            How many slices have a value of their own, at most; from 1 to 1,000.

        Raises
        ------
        ConfigurationError
            If the shapes, dtypes or numbers are not as described, or a group is missing.
        """
        name = type(self).__name__
        label, score = numbers("labels", labels), numbers("scores", scores)
        if label.size and label.min() < 0:
            raise ConfigurationError(f"{name}: labels must be 0 or more, found {label.min()}")
        if groups is not None:
            if weights is not None:
                raise ConfigurationError(f"{name}: with groups= each query counts 1: no weights=")
            label = column("labels", label).astype(np.float64)
            score = column("scores", score, label.size).astype(np.float64) + 0.0
            grouped = Grouped(self.capacity, metric=self)
            return grouped.state_of(groups, score, label, None, by, slices)
        if label.ndim != 2 or label.shape != score.shape:
            raise ConfigurationError(
                f"{name}: labels and scores must both have the shape (queries, candidates), or "
                f"(examples,) with groups=; found {label.shape} and {score.shape}"
            )
        queries, candidates = label.shape
        query = np.repeat(np.arange(queries), candidates)
        label, score = label.reshape(-1).astype(np.float64), score.reshape(-1).astype(np.float64)
        order = np.lexsort((label, score, query))
        ones = np.ones(query.size, np.int64)
        found, values = self.of_queries(Candidates(query, score[order], label[order], ones))
        terms, counts = np.zeros(queries), np.zeros(queries)
        checked = weights_of(weights, queries)
        terms[found], counts[found] = values, 1.0 if checked is None else checked[found]
        return self.mean_of("values", terms, counts, Slicing(by, slices))

    def evaluate(self, array: np.ndarray) -> float | str:
        """Return the mean."""
        mean = super().evaluate(array)
        return NO_RELEVANT if isinstance(mean, str) else mean


NO_RELEVANT = "no query has a candidate with a label above 0"


@dataclass(frozen=True)
class Grouped(GroupMetric):
    """A metric of queries whose examples may be in any batch.

    Parameters
    ----------
    capacity : int
        As for `GroupMetric`.
    metric : QueryMetric
        The metric.
    """

    metric: QueryMetric = field(kw_only=True)
    without_value = NO_RELEVANT

    def of_groups(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of each query, which counts 1."""
        count = rows["count"][:, 0] // UNIT
        given = Candidates(rows["group"], rows["score"], rows["label"], count)
        _, values = self.metric.of_queries(given)
        return values, np.ones(values.size)


@dataclass(frozen=True)
class NDCG(QueryMetric):
    r"""The normalized discounted cumulative gain of the first ``k`` candidates of each query.

    .. math::

        \mathrm{DCG@}k = \sum_{i=1}^{k} \frac{y_i}{\log_2(i + 1)} \qquad
        \mathrm{NDCG@}k = \frac{\mathrm{DCG@}k}{\text{that of the best order}}

    :math:`y_i` is the label of the candidate with the ``i``-th highest score: the gain itself, as
    in scikit-learn's ``ndcg_score``. (For :math:`2^y - 1` give that as labels.) Candidates of equal
    scores share the mean of their gains, as there. Queries without a label above 0 are left out;
    scikit-learn counts them as 0.

    Järvelin, Kekäläinen, *Cumulated gain-based evaluation of IR techniques*, TOIS 20, 2002; of
    equal scores McSherry, Najork, *Computing information retrieval performance measures efficiently
    in the presence of tied scores*, ECIR 2008.

    Parameters
    ----------
    k : int or None
        1 or more; None for all candidates.
    capacity : int
        With ``groups``, how many scores a state holds, as for `GroupAUC`.

    Raises
    ------
    ConfigurationError
        If they are not such numbers.

    Examples
    --------
    >>> import psnb
    >>> ndcg = psnb.metrics.NDCG(k=2)
    >>> state = ndcg([[1, 0, 2], [0, 1, 0]], [[0.3, 0.2, 0.9], [0.5, 0.4, 0.1]])
    >>> round(float(state), 4)  # (1 + 0.6309) / 2
    0.8155
    """

    def of_queries(self, given: Candidates) -> tuple[np.ndarray, np.ndarray]:
        """Return the gain of each query in relation to the best order's."""
        queries, levels = _levels(given)
        if not queries.size:
            return queries, np.zeros(0)
        most = int(given.copies.sum()) if self.k is None else self.k
        longest = min(most, int((levels.before + levels.sizes).max()))
        discounts = np.append(0.0, np.cumsum(1 / np.log2(np.arange(2, longest + 2))))

        def discounted(before: np.ndarray, sizes: np.ndarray) -> np.ndarray:
            ends = np.minimum(before + sizes, longest)
            return discounts[ends] - discounts[np.minimum(before, longest)]

        share = levels.gains / levels.sizes * discounted(levels.before, levels.sizes)
        found = np.add.reduceat(share, levels.first)
        order = np.lexsort((-given.label, given.query))
        query, label, count = (each[order] for each in (given.query, given.label, given.copies))
        group = starts(query)
        earlier = np.cumsum(count) - count
        before = earlier - np.repeat(earlier[group], np.diff(group, append=query.size))
        best = np.add.reduceat(label * discounted(before, count), group)
        # Queries come from the last one to the first; those without a relevant one have no gain.
        return queries, found / best[best > 0][::-1]


@dataclass(frozen=True)
class HitRate(QueryMetric):
    r"""The share of queries of which one of the first ``k`` candidates at least is relevant.

    :math:`\sum_q [r_q \le k] / Q`, where :math:`r_q` is the rank of the first candidate with a
    label above 0, by scores from the highest on. With one relevant candidate a query, as in
    leave-one-out evaluation, it is the recall at ``k``. Where equal scores go on beyond ``k``, it
    is the chance of a hit in a random order of them. Queries without a relevant candidate are left
    out.

    He et al., *Neural Collaborative Filtering*, WWW 2017.

    Parameters
    ----------
    k : int or None
        1 or more; None for all candidates.
    capacity : int
        With ``groups``, how many scores a state holds, as for `GroupAUC`.

    Raises
    ------
    ConfigurationError
        If they are not such numbers.

    Examples
    --------
    >>> import psnb
    >>> hit_rate = psnb.metrics.HitRate(k=1)
    >>> float(hit_rate([[1, 0, 0], [0, 1, 0]], [[0.9, 0.2, 0.1], [0.5, 0.4, 0.1]]))
    0.5
    >>> round(float(hit_rate([[1, 0, 0, 0]], [[0.5, 0.5, 0.5, 0.5]])), 4)
    0.25
    """

    def of_queries(self, given: Candidates) -> tuple[np.ndarray, np.ndarray]:
        """Return the chance of a hit in each query."""
        queries, levels = _levels(given)
        before, sizes, relevant = levels.deciding()
        most = sizes + before if self.k is None else self.k
        places = np.clip(most - before, 0, sizes)  # those of the level that are among the first
        others = sizes - relevant
        logs = _log_factorials(sizes)
        rest = np.maximum(others - places, 0)
        missed = np.exp(logs[others] - logs[rest] - logs[sizes] + logs[sizes - places])
        return queries, np.where(places > others, 1.0, 1.0 - missed)


@dataclass(frozen=True)
class MRR(QueryMetric):
    r"""The mean reciprocal rank of the first relevant candidate.

    :math:`\frac{1}{Q} \sum_q [r_q \le k] / r_q`, where :math:`r_q` is the rank of the first
    candidate with a label above 0, by scores from the highest on. Of equal scores it is the mean
    over all of their orders. Queries without a relevant candidate are left out.

    Voorhees, *The TREC-8 Question Answering Track Report*, 1999.

    Parameters
    ----------
    k : int or None
        1 or more: later ranks count 0; None for all candidates.
    capacity : int
        With ``groups``, how many scores a state holds, as for `GroupAUC`.

    Raises
    ------
    ConfigurationError
        If they are not such numbers.

    Examples
    --------
    >>> import psnb
    >>> mrr = psnb.metrics.MRR()
    >>> float(mrr([[1, 0, 0], [0, 1, 0]], [[0.9, 0.2, 0.1], [0.5, 0.4, 0.1]]))
    0.75
    """

    def of_queries(self, given: Candidates) -> tuple[np.ndarray, np.ndarray]:
        """Return the expected reciprocal rank in each query."""
        queries, levels = _levels(given)
        before, sizes, relevant = levels.deciding()
        if not queries.size:
            return queries, np.zeros(0)
        # The first relevant one may have each place of its level but the last ones.
        many = sizes - relevant + 1
        first = np.cumsum(many) - many
        place = np.arange(many.sum()) - np.repeat(first, many) + 1
        p, t, r = (np.repeat(each, many) for each in (before, sizes, relevant))
        logs = _log_factorials(sizes)
        ways = logs[t - place] - logs[r - 1] - logs[t - place - r + 1]
        chances = np.exp(ways - (logs[t] - logs[r] - logs[t - r]))
        reciprocal = chances / (p + place)
        if self.k is not None:
            reciprocal[p + place > self.k] = 0.0
        return queries, np.add.reduceat(reciprocal, first)


def _log_factorials(sizes: np.ndarray) -> np.ndarray:
    """Return the logarithms of the factorials of 0 up to the largest size."""
    return np.append(0.0, np.cumsum(np.log(np.arange(1, sizes.max(initial=0) + 1))))
