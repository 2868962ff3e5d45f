"""FreeParts: the free parts of an epoch in order, all of them and those of each list."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from psnb._src.coordinator.scheduling.free_parts import FreeParts, SplitRange


@given(st.integers(0, 2**32), st.integers(1, 8), st.sampled_from([1, 300]))
def test_lists_have_what_plain_ones_would_have(seed: int, splits: int, most: int) -> None:
    chance = random.Random(seed)
    lists = {split: lists_by_chance(chance) for split in range(splits)}
    parts, plain = FreeParts(lists), list[SplitRange]()
    for number in range(30):
        split = chance.randrange(splits)
        several = [SplitRange(split, (number, k)) for k in range(chance.randint(0, most))]
        match chance.choice(["first", "last", "remove", "move"]):
            case "first":
                parts.add_first(several)
                plain = [*several, *plain]
            case "last":
                parts.add_last(several)
                plain += several
            case "remove" if plain:
                one = chance.choice([plain[0], plain[-1], chance.choice(plain)])
                parts.remove(one)
                plain.remove(one)
            case "move":
                moved = {split: lists_by_chance(chance) for split in range(splits) if split % 2}
                parts.put_in(moved)
                lists |= moved
        assert (list(parts), len(parts)) == (plain, len(plain))
        for name in ("a", "b", None, 7):
            expected = [each for each in plain if name in lists[each.split]]
            assert list(parts.of(name)) == expected
            assert (parts.count(name), name in parts.names()) == (len(expected), bool(expected))
            assert parts.first(name) == next(iter(expected), None)
            assert not expected or parts.last(name) == expected[-1]


def lists_by_chance(chance: random.Random) -> tuple[object, ...]:
    return chance.choice([(), ("a",), ("b",), ("a", "b"), (None,), (None, 7)])
