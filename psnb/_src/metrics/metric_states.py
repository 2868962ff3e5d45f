"""MetricStates: the states of several metrics by name, at one moment. Immutable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from psnb._src.metrics.metric_state import MetricState, joined


class MetricStates(Mapping[str, MetricState]):
    """What closures have reported up to a moment, merged; a mapping from names to `MetricState`.

    It never changes, so it marks a moment: `since` tells what came after it, exactly. Any thread
    may use it, and any number of marks can be kept; they do not know of each other.

    Parameters
    ----------
    states : mapping of str to MetricState
        What was merged under each name.

    Examples
    --------
    >>> import psnb
    >>> auc = psnb.metrics.AUC()
    >>> first = auc([0, 1], [0.2, 0.9])
    >>> mark = psnb.metrics.MetricStates({"auc": first})
    >>> now = psnb.metrics.MetricStates({"auc": first + auc([0, 1], [0.6, 0.1])})
    >>> now.results()
    {'auc': 0.5}
    >>> now.since(mark).results()
    {'auc': 0.0}
    """

    __slots__ = ("_states",)

    def __init__(self, states: Mapping[str, MetricState]) -> None:
        self._states = dict(states)

    def __getitem__(self, name: str) -> MetricState:
        return self._states[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def results(self) -> dict[str, float]:
        """Return the value of each metric; NaN for one that has none."""
        return {name: state.result() for name, state in self._states.items()}

    def since(self, earlier: Mapping[str, MetricState]) -> MetricStates:
        """Return what was merged after an earlier moment; names without news are left out.

        Parameters
        ----------
        earlier : mapping of str to MetricState
            From the same coordinator. A metric that is another one by now counts from its start.
        """
        later = {}
        for name, state in self._states.items():
            before = earlier.get(name)
            known = before is not None and before.metric == state.metric
            news = state - before if known and before is not None else state
            if news != state.metric.empty():
                later[name] = news
        return MetricStates(later)

    def __repr__(self) -> str:
        results = ", ".join(f"{name} {value:.4g}" for name, value in self.results().items())
        return f"<psnb.MetricStates {results or 'nothing reported'}>"


def united(earlier: Mapping[str, MetricState], later: Mapping[str, MetricState]) -> MetricStates:
    """Return what was reported earlier or later; a metric that is another one now, only later."""
    found = dict(earlier)
    for name, state in later.items():
        known = name in found and found[name].metric == state.metric
        found[name] = joined([found[name], state]) if known else state
    return MetricStates(found)
