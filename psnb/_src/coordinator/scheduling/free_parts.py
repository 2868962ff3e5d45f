"""FreeParts: the parts of an epoch that nobody reads, in order, and in lists of some of them. Pure.

A part is in the lists that its split belongs to: of workers that have its data, of a slot. A list
has places in the order, and its end is the first of them: so the first one is taken, or one put
before all others, in a constant time. Others cost a move of what lies behind them in an array of
numbers, some microseconds for 10,000 parts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_FEW = 64
"""Up to so many changes are made to a list one by one; for more, the list is made anew."""


@dataclass(frozen=True, slots=True)
class SplitRange:
    """A part of a split that is to be read.

    Attributes
    ----------
    split : int
        Which split.
    state : object
        Where to begin: what the split's iterator returned as its state; None for the beginning.
    count : int or None
        How many elements; None for all up to the split's end.
    """

    split: int
    state: Any = None
    count: int | None = None


class FreeParts:
    """Parts of splits; `len` is their number, and `iter` goes through them in order.

    Parameters
    ----------
    lists : mapping of int to tuple
        By split, the names of the lists that its parts are in.
    """

    def __init__(self, lists: Mapping[int, tuple[Hashable, ...]]) -> None:
        self._names = dict(lists)
        self._parts: dict[int, SplitRange] = {}  # by place: the highest comes first
        self._places: dict[int, list[int]] = {}  # by split
        self._order: list[int] = []  # of all, the first one last
        self._lists: defaultdict[Hashable, list[int]] = defaultdict(list)  # likewise; none is empty

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[SplitRange]:
        return (self._parts[place] for place in reversed(self._order))

    def names(self) -> Collection[Hashable]:
        """Return the names of the lists in which there is something."""
        return self._lists.keys()

    def count(self, name: Hashable) -> int:
        """Return how many parts a list has."""
        return len(self._lists.get(name, ()))

    def of(self, name: Hashable) -> Iterator[SplitRange]:
        """Iterate over the parts of a list, in order."""
        return (self._parts[place] for place in reversed(self._lists.get(name, ())))

    def first(self, name: Hashable) -> SplitRange | None:
        """Return the first part of a list, if there is one."""
        return next(self.of(name), None)

    def last(self, name: Hashable) -> SplitRange:
        """Return the last part of a list that has one."""
        return self._parts[self._lists[name][0]]

    def add_first(self, parts: Collection[SplitRange]) -> None:
        """Put parts before all others."""
        top = self._order[-1] if self._order else 0
        places = range(top + 1, top + 1 + len(parts))
        self._order += places
        self._add(reversed([*parts]), places)

    def add_last(self, parts: Collection[SplitRange]) -> None:
        """Put parts behind all others."""
        bottom = self._order[0] if self._order else 0
        places = range(bottom - len(parts), bottom)
        self._order[:0] = places
        self._add(reversed([*parts]), places)

    def remove(self, part: SplitRange) -> None:
        """Take out a part that is here."""
        split = part.split
        place = next(each for each in self._places[split] if self._parts[each] == part)
        for name in self._names[split]:
            self._take_out(name, {place})
        self._places[split].remove(place)
        if not self._places[split]:
            del self._places[split]
        del self._parts[place], self._order[bisect_left(self._order, place)]

    def put_in(self, lists: Mapping[int, tuple[Hashable, ...]]) -> None:
        """Have the parts of some splits in other lists than before."""
        for name, places in self._by_list(lists).items():
            self._take_out(name, places)
        self._names.update(lists)
        self._enlist(self._by_list(lists))

    def _add(self, parts: Iterable[SplitRange], places: Iterable[int]) -> None:
        added: defaultdict[Hashable, set[int]] = defaultdict(set)
        for place, part in zip(places, parts, strict=True):
            self._parts[place] = part
            self._places.setdefault(part.split, []).append(place)
            for name in self._names[part.split]:
                added[name].add(place)
        self._enlist(added)

    def _enlist(self, added: Mapping[Hashable, Collection[int]]) -> None:
        for name, places in added.items():
            found = self._lists[name]
            if len(places) <= _FEW:
                for place in places:
                    insort(found, place)
            else:
                found += places
                found.sort()

    def _by_list(self, splits: Iterable[int]) -> dict[Hashable, set[int]]:
        found: defaultdict[Hashable, set[int]] = defaultdict(set)
        for split in splits:
            if places := self._places.get(split):
                for name in self._names[split]:
                    found[name].update(places)
        return found

    def _take_out(self, name: Hashable, places: set[int]) -> None:
        found = self._lists[name]
        if len(places) <= _FEW:
            for place in places:
                del found[bisect_left(found, place)]
        else:
            found[:] = [each for each in found if each not in places]
        if not found:
            del self._lists[name]
