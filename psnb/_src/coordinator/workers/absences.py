"""Absences: workers that closures wait for by name or index, and that are not here. Pure."""

from __future__ import annotations

from collections.abc import Collection


class Absences:
    """Tells of each absent worker once, until it comes or nothing waits for it any more.

    Times are seconds of one clock, whichever the caller uses.

    Parameters
    ----------
    patience : float
        Seconds that a worker may be absent before a warning names it; a nanny starts one again
        sooner.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[object, float] = {}
        self._told: set[object] = set()

    def told_now(
        self, awaited: Collection[object], here: Collection[object], now: float
    ) -> list[object]:
        """Return those that are to be told of now.

        Parameters
        ----------
        awaited : collection
            Names and indices of the workers that closures wait for.
        here : collection
            Likewise of those that are here.
        now : float
            The time.
        """
        absent = [each for each in awaited if each not in here]
        self._since = {each: self._since.get(each, now) for each in absent}
        self._told.intersection_update(absent)
        late = [
            each
            for each, since in self._since.items()
            if each not in self._told and now - since >= self._patience
        ]
        self._told.update(late)
        return late
