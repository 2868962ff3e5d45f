"""When a bound is said to be too small."""

from psnb._src.strategy.gone_rows import MOST, WINDOW, GoneRows


def test_it_is_said_once_until_fewer_rows_are_gone() -> None:
    rows, gone, pushed, said = GoneRows(), 0, 0, []
    for share in (0.0, MOST, 0.02, 0.03, 0.007, 0.02, 0.001, 0.02):
        pushed += WINDOW
        gone += round(share * WINDOW)
        said.append(rows.news("users", 1000, gone, pushed))
    assert [bool(each) for each in said] == [at in (2, 7) for at in range(8)]
    assert "'users': max_rows=1,000 is too small: of the last 10,000 pushed ids 2 %" in said[2]


def test_few_pushes_are_counted_until_there_are_enough() -> None:
    rows = GoneRows()
    assert not rows.news("users", 1000, 500, WINDOW - 1)
    assert rows.news("users", 1000, 500, WINDOW)


def test_counts_that_began_anew_are_no_share() -> None:
    rows = GoneRows()
    assert not rows.news("users", 1000, 0, 3 * WINDOW)
    assert not rows.news("users", 1000, 200, WINDOW)  # of a shard that was lost
    assert not rows.news("users", 1000, 200, 2 * WINDOW)
    assert rows.news("users", 1000, 600, 3 * WINDOW)
