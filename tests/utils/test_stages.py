"""Snapshots of stages: together, as a table, and what they say."""

from __future__ import annotations

from psnb._src.utils.stages import Stages, StageStatistics, merged, merged_chains, starved

SOURCE = StageStatistics("range(10)", 10, 0.25, place=1)
PARSE = StageStatistics("map(parse)", 8, 0.75, level=1, limit=4, place=2)
AHEAD = StageStatistics("prefetch(4)", 6, 9.0, waits=True, level=0, limit=4, place=3)
CHAIN = Stages([SOURCE, PARSE, AHEAD])


def test_the_slowest_is_the_one_with_the_most_time_of_its_own_not_the_one_that_waits() -> None:
    assert CHAIN.slowest is PARSE
    assert Stages([AHEAD]).slowest is None
    assert Stages().slowest is None


def test_chains_of_several_workers_add_up_place_by_place() -> None:
    begun = Stages([SOURCE])  # one that has not come further
    source, parse, ahead = merged([begun, CHAIN, CHAIN])
    assert (source.elements, source.seconds, source.level) == (30, 0.75, None)
    assert (parse.elements, parse.level, parse.limit) == (16, 2, 8)
    assert ahead.waits


def test_other_chains_stay_apart_and_are_numbered() -> None:
    found = merged_chains([{"a": CHAIN}, {"b": Stages([SOURCE]), "a": CHAIN}])
    assert [(each.chain, each.elements) for each in found] == [(0, 20), (0, 16), (0, 12), (1, 10)]


def test_a_table_shows_shares_of_the_time_and_what_is_in_buffers() -> None:
    assert repr(CHAIN).splitlines() == [
        "stage        elements  own time         buffer",
        "range(10)          10   0.250 s    25%",
        "map(parse)          8   0.750 s    75%  1 of 4",
        "prefetch(4)         6   9.000 s  waits  0 of 4",
    ]
    both = merged_chains([{"a": CHAIN, "b": CHAIN}])
    assert repr(both) == f"{CHAIN}\n\n{CHAIN}"
    assert repr(Stages()) == "no stages"


def test_workers_starve_if_they_read_for_a_fifth_of_their_time() -> None:
    assert starved(0.38, CHAIN) == "workers wait 38% of their time for map(parse)"
    assert starved(0.38, Stages()) == "workers wait 38% of their time for data"
    assert starved(0.19, CHAIN) == ""
