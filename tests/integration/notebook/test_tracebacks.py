"""What IPython shows of errors, to the letter."""

from __future__ import annotations

import re
import textwrap

import pytest

from tests.integration.notebook.cells import shown_by

CELLS = {
    "start": """
        import psnb
        client = psnb.local_cluster(workers=1)
        strategy = psnb.ParameterServerStrategy(client)
        coordinator = psnb.ClusterCoordinator(strategy)
        """,
    "define": """
        def inner(x):
            return 1 // x

        def outer(x):
            return inner(x) + 1

        remote = coordinator.schedule(outer, (0,))
        """,
    "fetch": "remote.fetch()",
    "join": "coordinator.join()",
    "full": "print(coordinator.failures()[0].full)",
    "library": """
        import json
        coordinator.schedule(lambda: json.loads("{"))
        coordinator.join()
        """,
    "caused": """
        def lookup():
            try:
                return {}["name"]
            except KeyError as error:
                raise RuntimeError("no such row") from error
        coordinator.schedule(lookup).fetch()
        """,
    "clear caused": "coordinator.join()",
    "dependent": """
        coordinator.pause()
        first = coordinator.schedule(outer, (0,))
        second = coordinator.schedule(outer, (first,))
        coordinator.resume()
        second.fetch()
        """,
    "clear dependent": "coordinator.join()",
    "per-worker": """
        def make():
            raise ValueError("no such thing")
        iterator = iter(coordinator.create_per_worker_dataset(make))
        coordinator.schedule(next, (iterator,))
        coordinator.join()
        """,
    "per-worker fetch": "coordinator.create_per_worker_resource(make).fetch()",
    "file": """
        def lines():
            return psnb.data.Dataset.text_lines(["/no/such/file"])
        iterator = iter(coordinator.create_per_worker_dataset(lines))
        coordinator.schedule(next, (iterator,)).fetch()
        """,
    "clear file": "coordinator.join()",
    "address": "psnb.connect('tcp://127.0.0.1:9')",
    "argument": "coordinator.schedule(5)",
    "timeout": """
        coordinator.pause()
        coordinator.schedule(print)
        coordinator.join(timeout=0)
        """,
    "interrupt": """
        import _thread
        import threading
        threading.Timer(0.5, _thread.interrupt_main).start()
        coordinator.join()
        """,
    "end": "strategy.close(); client.close()",
}


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    """What each cell showed, below the line that separates it from the cell."""
    outputs = shown_by([textwrap.dedent(cell).strip() for cell in CELLS.values()])
    # Above it is what psnb logs of a failed closure.
    return {
        name: re.sub(r"^(closure .* failed on worker .*\n)*-{75}\n", "", output).rstrip()
        for name, output in zip(CELLS, outputs, strict=True)
    }


def number(name: str) -> int:
    return list(CELLS).index(name) + 1


def test_the_error_of_a_closure_shows_the_users_lines_and_where_it_ran(
    shown: dict[str, str],
) -> None:
    assert shown["fetch"] == textwrap.dedent(
        """\
        ZeroDivisionError                         Traceback (most recent call last)
        Cell In[3], line 1
        ----> 1 remote.fetch()

        ZeroDivisionError: integer division or modulo by zero
        in closure outer(0) on worker 'worker-0', attempt 1
          Cell In[2], line 5, in outer
            return inner(x) + 1
          Cell In[2], line 2, in inner
            return 1 // x"""
    )


def test_the_same_error_says_that_it_was_seen_when_join_raises_it(shown: dict[str, str]) -> None:
    head, note, where, *_ = shown["join"].partition("\n\n")[2].splitlines()
    assert head == "ZeroDivisionError: integer division or modulo by zero"
    assert re.fullmatch(
        r"this is the error that fetch\(\) raised at \d\d:\d\d:\d\d in Cell In\[3\]; "
        "nothing new has failed, and it is cleared now",
        note,
    )
    assert where == "in closure outer(0) on worker 'worker-0', attempt 1"


def test_all_frames_are_in_the_failure(shown: dict[str, str]) -> None:
    full = shown["full"]
    assert full.startswith("Traceback (most recent call last):\n")
    assert "worker/runner.py" in full
    assert re.search(r'  File "<ipython-input.*", line 2, in inner\n    return 1 // x\nZero', full)


def test_of_a_library_the_last_line_is_shown(shown: dict[str, str]) -> None:
    assert re.fullmatch(
        re.escape(
            "JSONDecodeError                           Traceback (most recent call last)\n"
            "Cell In[6], line 3\n"
            "      1 import json\n"
            '      2 coordinator.schedule(lambda: json.loads("{"))\n'
            "----> 3 coordinator.join()\n"
            "\n"
            "JSONDecodeError: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)\n"
            "in closure <lambda>() on worker 'worker-0', attempt 1\n"
            "  Cell In[6], line 2, in <lambda>\n"
            '    coordinator.schedule(lambda: json.loads("{"))\n'
        )
        + r"  File .*decoder\.py, line \d+, in raw_decode",
        shown["library"],
    )


def test_a_cause_shows_the_users_lines_too(shown: dict[str, str]) -> None:
    end = shown["caused"].partition("RuntimeError: ")[2]
    assert end == textwrap.dedent(
        """\
        no such row
        in closure lookup() on worker 'worker-0', attempt 1
          Cell In[7], line 5, in lookup
            raise RuntimeError("no such row") from error
        caused by KeyError: 'name'
          Cell In[7], line 3, in lookup
            return {}["name"]"""
    )


def test_an_input_that_failed_is_shown_where_it_failed(shown: dict[str, str]) -> None:
    assert shown["dependent"] == textwrap.dedent(
        """\
        ZeroDivisionError                         Traceback (most recent call last)
        ZeroDivisionError: integer division or modulo by zero
        in closure outer(0) on worker 'worker-0', attempt 1
          Cell In[2], line 5, in outer
            return inner(x) + 1
          Cell In[2], line 2, in inner
            return 1 // x

        The above exception was the direct cause of the following exception:

        ClosureInputError                         Traceback (most recent call last)
        Cell In[9], line 5
              3 second = coordinator.schedule(outer, (first,))
              4 coordinator.resume()
        ----> 5 second.fetch()

        ClosureInputError: a remote value among the closure's arguments has no value: """
        """ZeroDivisionError: integer division or modulo by zero"""
    )


@pytest.mark.parametrize(
    ("name", "function"), [("per-worker", "next"), ("per-worker fetch", "read_value")]
)
def test_a_per_worker_value_that_cannot_be_made_is_reported_once(
    shown: dict[str, str], name: str, function: str
) -> None:
    end = shown[name].partition("\n\n")[2]
    assert end == textwrap.dedent(
        f"""\
        ClosureInputError: a per-worker value that the closure uses could not be made: """
        f"""ValueError: no such thing
        in closure {function}(...) on worker 'worker-0', attempt 1
          Cell In[{number("per-worker")}], line 2, in make
            raise ValueError("no such thing")"""
    )


def test_a_missing_file_takes_a_few_lines(shown: dict[str, str]) -> None:
    *_, message, where = shown["file"].splitlines()
    assert "/no/such/file: no such file on " in message
    assert "each machine that reads it needs it at that path" in message
    assert where.startswith("in closure next(<iterator ")
    assert len(shown["file"].splitlines()) < 12


def test_a_wrong_address_takes_a_few_lines(shown: dict[str, str]) -> None:
    head, _, message = shown["address"].partition("\n\n")
    assert head.splitlines()[1:] == [
        f"Cell In[{number('address')}], line 1",
        "----> 1 psnb.connect('tcp://127.0.0.1:9')",
    ]
    assert message.startswith("ClusterError: no Dask scheduler answers at 'tcp://127.0.0.1:9': ")
    assert len(message.splitlines()) == 1


def test_an_interrupt_shows_the_line_that_it_ended(shown: dict[str, str]) -> None:
    assert shown["interrupt"] == textwrap.dedent(
        f"""\
        KeyboardInterrupt                         Traceback (most recent call last)
        Cell In[{number("interrupt")}], line 4
              2 import threading
              3 threading.Timer(0.5, _thread.interrupt_main).start()
        ----> 4 coordinator.join()

        KeyboardInterrupt:"""
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("argument", "ConfigurationError: fn must be callable, found 5"),
        ("timeout", "TimeoutError: after 0 s: 1 closure queued and 0 in flight; all goes on"),
    ],
)
def test_what_psnb_itself_raises_shows_no_frames_of_psnb(
    shown: dict[str, str], name: str, message: str
) -> None:
    assert "psnb/_src" not in shown[name]
    assert shown[name].endswith(f"\n\n{message}")
