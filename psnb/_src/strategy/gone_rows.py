"""GoneRows: when so many pushed ids find no row that people should hear of it. Pure."""

from __future__ import annotations

MOST, AGAIN = 0.01, 0.005
"""Shares of the pushed ids: above the first it is said, once until they were below the second."""

WINDOW = 10_000
"""Pushed ids, at least, of which a share is taken."""


class GoneRows:
    """Says it once of a table with a bound, until fewer are gone again."""

    def __init__(self) -> None:
        self._before, self._said = (0, 0), False

    def news(self, name: str, bound: int, gone: int, pushed: int) -> str:
        """Return what is to be said of a table now; empty if nothing is.

        Parameters
        ----------
        name : str
            The table's.
        bound : int
            How many rows it may have.
        gone, pushed : int
            How many ids were pushed so far, and how many of them had no row, with the table full.
        """
        gone_before, pushed_before = self._before
        if pushed < pushed_before or gone < gone_before:  # a shard was made anew
            self._before = gone, pushed
            return ""
        if (some := pushed - pushed_before) < WINDOW:
            return ""
        share, self._before = (gone - gone_before) / some, (gone, pushed)
        before, self._said = self._said, share > (AGAIN if self._said else MOST)
        if before or not self._said:
            return ""
        return (
            f"embedding {name!r}: max_rows={bound:,} is too small: of the last {some:,} pushed "
            f"ids {100 * share:.2g} % had lost their rows to others, and began anew. Make the "
            "table with a larger max_rows=, or admit fewer ids (admission=)"
        )
