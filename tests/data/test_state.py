from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from psnb.data import AUTOTUNE, Dataset
from psnb.errors import DatasetError
from tests.data.chains import MEMORY, fails_at_five, on_disk
from tests.data.elements import plain, values

Make = Callable[[], Dataset]


def check_every_state(make: Make, forget: Callable[[], None] = lambda: None) -> None:
    with make().iterator() as iterator:
        states, elements = [json.dumps(iterator.state())], []
        for element in iterator:
            elements.append(plain(element))
            states.append(json.dumps(iterator.state()))
    assert 0 < len(elements) < 60
    for taken, state in enumerate(states):
        forget()
        with make().iterator(json.loads(state)) as restored:
            assert values(restored) == elements[taken:], f"after {taken} elements"


@pytest.mark.parametrize("make", MEMORY.values(), ids=MEMORY)
def test_a_restored_iterator_goes_on_at_the_very_next_element(make: Make) -> None:
    check_every_state(make)


@pytest.mark.parametrize("name", ["npy", "npy, several", "list_files", "load", "load, shuffled"])
def test_so_does_one_over_files(name: str, tmp_path: Path) -> None:
    check_every_state(on_disk(tmp_path)[name])


def test_so_does_one_over_a_cache_in_files_that_may_be_gone(tmp_path: Path) -> None:
    make = on_disk(tmp_path)["cache in files"]
    check_every_state(make)
    shutil.rmtree(tmp_path / "cache")
    check_every_state(make, lambda: shutil.rmtree(tmp_path / "cache", ignore_errors=True))


@pytest.mark.parametrize("make", MEMORY.values(), ids=MEMORY)
def test_states_of_restored_iterators_are_as_good(make: Make) -> None:
    with make().iterator() as iterator:
        state, elements = iterator.state(), values(iterator)
    found = []
    for _ in range(len(elements)):
        with make().iterator(json.loads(json.dumps(state))) as iterator:
            found.append(plain(next(iterator)))
            state = iterator.state()
    assert found == elements


def test_of_a_parallel_map_in_any_order_none_is_lost_nor_twice() -> None:
    def make() -> Dataset:
        return Dataset.range(20).map(lambda x: x + 1, num_parallel_calls=4, deterministic=False)

    with make().iterator() as iterator:
        first = [plain(next(iterator)) for _ in range(7)]
        state = json.loads(json.dumps(iterator.state()))
    with make().iterator(state) as iterator:
        rest = values(iterator)
    assert sorted(first + rest) == list(range(1, 21))


def test_the_number_of_ignored_errors_is_in_the_state() -> None:
    make = MEMORY["ignore_errors"]
    with make().iterator() as iterator:
        for _ in range(7):
            next(iterator)
        assert iterator.errors_ignored == 1
        state = iterator.state()
    with make().iterator(state) as iterator:
        assert iterator.errors_ignored == 1
        values(iterator)
        assert iterator.errors_ignored == 1


@pytest.mark.parametrize("name", [name for name in MEMORY if name.startswith("ignore_errors")])
def test_no_error_is_met_twice_nor_lost(name: str) -> None:
    make = MEMORY[name]
    with make().iterator() as iterator:
        states = [iterator.state()]
        states += [iterator.state() for _ in iterator]
    for state in states:
        with make().iterator(json.loads(json.dumps(state))) as iterator:
            values(iterator)
            assert iterator.errors_ignored == 1


def test_errors_that_a_prefetch_ignores_ahead_are_counted_once() -> None:
    def make() -> Dataset:
        failing = Dataset.range(12).map(fails_at_five).ignore_errors()
        return failing.repeat(2).prefetch(20)

    with make().iterator() as iterator:
        for _ in range(14):
            next(iterator)
        state = json.loads(json.dumps(iterator.state()))
    with make().iterator(state) as iterator:
        assert len(values(iterator)) == 8
        assert iterator.errors_ignored == 2


def test_a_shuffle_is_brought_back_to_where_it_was_after_many_draws() -> None:
    make = lambda: Dataset.range(300_000).shuffle(1000, seed=1)  # noqa: E731
    with make().skip(200_000).iterator() as iterator:
        expected = plain(next(iterator))
    with make().batch(1000).iterator() as iterator:
        for _ in range(200):
            next(iterator)
        state = iterator.state()
    with make().batch(1000).iterator(state) as iterator:
        assert plain(next(iterator))[0] == expected


def test_a_state_stays_small_while_much_is_held() -> None:
    dataset = Dataset.range(100_000).map(lambda x: x).shuffle(1000).batch(10).prefetch(4)
    with dataset.iterator() as iterator:
        for _ in range(200):
            next(iterator)
        assert len(json.dumps(iterator.state())) < 500


def test_a_state_of_another_chain_is_refused_with_this_one_drawn() -> None:
    state = Dataset.range(5).batch(2).iterator().state()
    with pytest.raises(DatasetError, match=r"(?s)another dataset.*range.*batch\(batch_size=3\)"):
        Dataset.range(5).batch(3).iterator(state)


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(DatasetError, match="not a state"):
        Dataset.range(5).iterator({"version": 1})
    state = Dataset.range(5).iterator().state() | {"version": 99}
    with pytest.raises(DatasetError, match="version 99"):
        Dataset.range(5).iterator(state)


def test_a_tuned_prefetch_takes_the_state_of_a_fixed_one_for_another_chain() -> None:
    state = Dataset.range(5).prefetch(2).iterator().state()
    with pytest.raises(DatasetError, match="another dataset"):
        Dataset.range(5).prefetch(AUTOTUNE).iterator(state)


@pytest.mark.parametrize("rare", [0, 700])
def test_a_bucket_may_hold_an_old_element(rare: int) -> None:
    def make() -> Dataset:
        lengths = Dataset.range(9000).map(lambda n: 0 if n in (rare, 8000) else 1 + n % 5)
        chain = lengths.enumerate().filter(lambda n, _: n % 3)
        return chain.bucket_by_sequence_length(lambda _, length: length, [1, 3], [2, 30, 40])

    with make().iterator() as iterator:
        states, elements = [iterator.state()], []
        for element in iterator:
            elements.append(plain(element))
            states.append(json.loads(json.dumps(iterator.state())))
    for taken in range(0, len(states), len(states) // 6):
        with make().iterator(states[taken]) as restored:
            assert values(restored) == elements[taken:]
            assert len(json.dumps(states[taken])) < 500
