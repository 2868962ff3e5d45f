"""How far training is, and how long it takes yet."""

from __future__ import annotations

import pytest

from psnb._src.monitor.statistics import TrainingProgress
from psnb._src.monitor.training_clock import EpochCount, TrainingClock


class Training:
    """A clock over an epoch whose figures tests set."""

    def __init__(self, epochs: int | None) -> None:
        self.now, self.count = 100.0, EpochCount(0)
        self.clock = TrainingClock(epochs, lambda: self.now)

    def begin(self, epoch: int | None, count: EpochCount) -> None:
        self.count = count
        self.clock.begin(epoch, lambda: self.count)

    def at(self, now: float, count: EpochCount) -> TrainingProgress:
        self.now, self.count = now, count
        found = self.clock.progress()
        assert found is not None
        return found


def test_there_is_none_before_an_epoch_begins() -> None:
    assert TrainingClock().progress() is None


def test_time_left_is_that_of_all_epochs() -> None:
    training = Training(100)
    training.begin(1, EpochCount(0, 10))
    training.at(101.0, EpochCount(1, 10))  # from here on: the first batch compiles
    assert training.at(110.0, EpochCount(10, 10)) == TrainingProgress(1, 100, 10, 10, 990.0)


def test_epochs_long_past_say_nothing_of_the_speed_of_now() -> None:
    training = Training(4)
    training.begin(1, EpochCount(0, 10))
    training.at(1000.0, EpochCount(10, 10))
    training.begin(2, EpochCount(0, 10))
    training.at(1010.0, EpochCount(10, 10))
    training.begin(3, EpochCount(0, 10))
    assert training.at(1020.0, EpochCount(10, 10)).left == 10.0


def test_without_its_length_an_epoch_says_only_how_many_batches_were_used() -> None:
    training = Training(5)
    training.begin(1, EpochCount(0))
    assert training.at(110.0, EpochCount(120)) == TrainingProgress(1, 5, 120, None, None)


def test_parts_of_the_dataset_stand_in_for_a_length_that_is_not_known() -> None:
    training = Training(2)
    training.begin(1, EpochCount(0, parts=(0, 8)))
    assert training.at(101.0, EpochCount(10, parts=(0, 8))).left is None
    assert training.at(111.0, EpochCount(50, parts=(4, 8))).left == 30.0


def test_an_epoch_of_run_epoch_has_no_number() -> None:
    training = Training(None)
    training.begin(None, EpochCount(0, 4))
    training.at(101.0, EpochCount(1, 4))
    assert training.at(103.0, EpochCount(3, 4)) == TrainingProgress(None, None, 3, 4, 1.0)


def test_what_another_run_has_trained_took_no_time_here() -> None:
    training = Training(10)
    training.begin(9, EpochCount(5, 10))
    training.at(102.0, EpochCount(6, 10))
    assert training.at(110.0, EpochCount(10, 10)).left == pytest.approx(20.0)


def trained(epochs: int) -> Training:
    """One whose first epoch has taken 10 s, the first batch aside, and is to be validated."""
    training = Training(epochs)
    training.begin(1, EpochCount(0, 10))
    training.at(101.0, EpochCount(1, 10))
    training.at(110.0, EpochCount(10, 10))
    return training


def test_validation_tells_its_parts_and_the_time_left_stands() -> None:
    training, whole = trained(3), EpochCount(10, 10)
    with training.clock.validating():
        assert training.at(111.0, whole) == TrainingProgress(1, 3, 10, 10, 20.0, (0, 0))
        training.clock.count_parts(lambda: (3, 16))
        assert training.at(170.0, whole) == TrainingProgress(1, 3, 10, 10, 20.0, (3, 16))
    assert training.at(170.0, whole).validating is None


def test_validations_to_come_take_as_long_as_the_last_one_and_slow_no_epoch() -> None:
    training, whole = trained(3), EpochCount(10, 10)
    with training.clock.validating():
        training.now = 115.0
    assert training.at(115.0, whole).left == pytest.approx(20.0 + 2 * 5.0)
    training.begin(2, EpochCount(0, 10))
    assert training.at(115.0, EpochCount(0, 10)).left == pytest.approx(20.0 + 2 * 5.0)
    training.now = 125.0
    training.count = whole
    with training.clock.validating():
        lefts = [training.at(125.0 + each, whole).left for each in range(10)]
    assert lefts[0] == pytest.approx(10.0 + 2 * 5.0)
    assert lefts == sorted(lefts, key=lambda left: -(left or 0.0))
    assert lefts[-1] == pytest.approx(10.0 + 5.0)


def test_validations_of_every_second_epoch_are_expected_so() -> None:
    training, whole = Training(6), EpochCount(10, 10)
    training.begin(1, EpochCount(0, 10))
    training.now = 110.0
    training.begin(2, EpochCount(0, 10))
    training.at(120.0, whole)
    with training.clock.validating():
        training.now = 124.0
    assert training.at(124.0, whole).left == pytest.approx(4 * 10.0 + 2 * 4.0)


def test_of_the_first_validation_after_the_last_epoch_nobody_knows_the_time() -> None:
    training = trained(1)
    with training.clock.validating():
        assert training.at(111.0, EpochCount(10, 10)).left is None


def test_an_interrupted_validation_is_over() -> None:
    training = trained(2)
    with pytest.raises(KeyboardInterrupt), training.clock.validating():
        raise KeyboardInterrupt
    assert training.at(111.0, EpochCount(10, 10)).validating is None
    training.clock.end()


@pytest.mark.parametrize("epochs", [None, 3])
def test_when_training_has_ended_it_stays_where_it_is_and_nothing_is_left(
    epochs: int | None,
) -> None:
    training = Training(epochs)
    number = None if epochs is None else 1
    training.begin(number, EpochCount(0, 10))
    training.count = EpochCount(6, 10)
    training.clock.end()
    training.count = EpochCount(0, 10)
    assert training.clock.progress() == TrainingProgress(number, epochs, 6, 10, None)
