"""Where examples are after shuffles: a function of their numbers and the seeds alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from psnb._src.data.memory.shuffle_plan import ShufflePlan, numbered

PARTITIONS = 6


def numbers(source: int, count: int = 500) -> np.ndarray:
    return numbered(source, 0, count)


def test_numbers_are_those_of_no_other_example() -> None:
    found = np.concatenate([numbered(0, 0, 5), numbered(0, 5, 5), numbered(1, 0, 5)])
    assert len(set(found.tolist())) == 15


def test_before_a_shuffle_a_piece_is_its_source_in_order() -> None:
    layout = ShufflePlan(PARTITIONS)
    assert layout.destinations(3, numbers(3)).tolist() == [3] * 500
    assert layout.order(numbers(3)[::-1]).tolist() == list(range(500))[::-1]
    assert layout.sources([2, 4]) == [2, 4]


def test_a_global_shuffle_spreads_every_source_over_all_pieces_evenly() -> None:
    layout = ShufflePlan(PARTITIONS).shuffled(7)
    for source in range(PARTITIONS):
        counts = np.bincount(
            layout.destinations(source, numbers(source, 6000)), minlength=PARTITIONS
        )
        # Five standard deviations of a binomial.
        assert np.abs(counts - 1000).max() < 5 * np.sqrt(6000 / 6 * 5 / 6)
    assert layout.sources([1]) == list(range(PARTITIONS))


def test_order_within_a_piece_is_another_with_another_seed_and_the_same_with_the_same() -> None:
    first, again, other = (
        ShufflePlan(PARTITIONS).shuffled(seed).order(numbers(0)) for seed in (1, 1, 2)
    )
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()
    assert sorted(first.tolist()) == list(range(500))


def test_the_piece_of_an_example_tells_nothing_of_its_place_in_the_order() -> None:
    layout = ShufflePlan(2).shuffled(5)
    found = numbers(0, 20_000)
    places = np.empty(20_000)
    places[layout.order(found)] = np.arange(20_000)
    inside = layout.destinations(0, found) == 0
    assert abs(places[inside].mean() - places[~inside].mean()) < 5 * 20_000 / np.sqrt(12 * 5000)


def test_a_local_shuffle_stays_within_its_groups() -> None:
    groups = [(0, 3), (1, 2, 4), (5,)]
    layout = ShufflePlan(PARTITIONS).shuffled(1, groups)
    for group in groups:
        for source in group:
            assert set(layout.destinations(source, numbers(source)).tolist()) == set(group)
    assert layout.sources([4]) == [1, 2, 4]


def test_a_local_shuffle_after_a_global_one_moves_examples_from_where_they_were() -> None:
    before = ShufflePlan(PARTITIONS).shuffled(1)
    after = before.shuffled(2, [(0, 1), (2, 3), (4, 5)])
    was, now = (each.destinations(0, numbers(0)) for each in (before, after))
    assert (was // 2 == now // 2).all()
    assert (was != now).any()
    assert after.sources([5]) == list(range(PARTITIONS))


def test_a_shuffle_makes_those_before_it_that_decide_nothing_be_forgotten() -> None:
    layout = ShufflePlan(PARTITIONS).shuffled(1).shuffled(2, [(0, 1), (2, 3), (4, 5)])
    assert len(layout.stages) == 2
    assert len(layout.shuffled(3, [(0, 1), (2, 3), (4, 5)]).stages) == 2
    assert layout.shuffled(3) == ShufflePlan(PARTITIONS).shuffled(3)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=5))
def test_moving_step_by_step_ends_where_the_layout_says(shuffles: list[tuple[int, bool]]) -> None:
    layout, found = ShufflePlan(PARTITIONS), numbers(2, 50)
    partitions = layout.destinations(2, found)
    for seed, everywhere in shuffles:
        layout = layout.shuffled(seed, None if everywhere else [(0, 1, 2), (3, 4, 5)])
        partitions = layout.stages[-1].destinations(partitions, found)
        assert partitions.tolist() == layout.destinations(2, found).tolist()


def test_layouts_that_differ_have_different_fingerprints() -> None:
    layouts = [
        ShufflePlan(2),
        ShufflePlan(3),
        ShufflePlan(2).shuffled(1),
        ShufflePlan(2).shuffled(1, [(0,), (1,)]),
    ]
    assert len({layout.fingerprint for layout in layouts}) == 4
