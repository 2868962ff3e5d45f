"""Names of workers: readable, kept, and each of one worker at a time."""

from __future__ import annotations

from psnb._src.cluster.roles import WorkerNames

A, B, C = "tcp://10.0.0.1:4", "tcp://10.0.0.2:5", "tcp://10.0.0.3:6"


def test_a_worker_without_a_name_gets_the_first_number_that_is_free() -> None:
    names = WorkerNames()
    assert names.of({A: A, B: "worker-0", C: C}) == {
        A: "worker-1",
        B: "worker-0",
        C: "worker-2",
    }


def test_a_given_name_stays() -> None:
    assert WorkerNames().of({A: "gpu box", B: "1"}) == {A: "gpu box", B: "worker-1"}


def test_a_worker_keeps_its_name_while_others_come_and_go() -> None:
    names = WorkerNames()
    names.of({A: A, B: B})
    assert names.of({B: B}) == {B: "worker-1"}
    assert names.of({B: B, C: C}) == {B: "worker-1", C: "worker-0"}


def test_workers_are_listed_in_the_order_of_their_names() -> None:
    workers = {A: "worker-10", B: "worker-9", C: "gpu box"}
    assert [*WorkerNames().of(workers).values()] == ["gpu box", "worker-9", "worker-10"]


def test_two_never_have_one_name() -> None:
    names = WorkerNames()
    names.of({A: A})
    assert names.of({A: A, B: "worker-0", C: "0"}) == {
        A: "worker-0",
        B: "worker-1",
        C: "worker-2",
    }


def test_a_worker_that_ends_what_it_has_keeps_its_name() -> None:
    names = WorkerNames()
    names.of({A: A, B: B}, connected=[])
    assert names.of({B: B, C: C}, connected=[A, B]) == {B: "worker-1", C: "worker-2"}
    assert names.of({B: B, C: C}) == {B: "worker-1", C: "worker-2"}
    assert names.of({B: B, "tcp://d": "tcp://d"}) == {B: "worker-1", "tcp://d": "worker-2"}
    assert names.of({"tcp://e": "tcp://e"}, connected=[]) == {"tcp://e": "worker-0"}
