"""What is changed of Jupyter, on which comms and servers, and what IPython calls cells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ipykernel.comm.comm import BaseComm
from IPython.core.interactiveshell import InteractiveShell

from psnb._src.jupyter_compat import (
    cell_of,
    current_cell,
    handle_beside_cells,
    must_wait,
    send_at_once,
)

MESSAGE = {"content": {"comm_id": "1", "data": {}}}


def new_comm() -> Any:
    return BaseComm(target_name="psnb-test")


def widget(comm: Any, handle: Any = print) -> Any:
    return SimpleNamespace(comm=comm, _handle_msg=handle)


def test_messages_go_where_the_page_sends_them() -> None:
    mine, other = new_comm(), new_comm()
    for each in (mine, other):
        each._reply_subshell_id = "the shell that published last"
    handle_beside_cells(widget(mine))
    assert mine._reply_subshell_for({}, "the page's") == "the page's"
    assert other._reply_subshell_for({}, "the page's") == "the shell that published last"


def test_the_hook_of_this_ipykernel_is_the_one_that_is_replaced() -> None:
    assert hasattr(BaseComm, "_reply_subshell_for"), (
        "ipykernel routes comm messages in another way: see psnb._src.jupyter_compat"
    )


def test_a_message_fires_no_events_of_a_cell() -> None:
    shell = InteractiveShell.instance()
    fired: list[str] = []
    got: list[dict[str, Any]] = []
    notes = {
        name: (lambda name=name: fired.append(name)) for name in ("pre_execute", "post_execute")
    }
    for name, note in notes.items():
        shell.events.register(name, note)
    try:
        plain, mine = new_comm(), new_comm()
        plain.on_msg(got.append)
        plain.handle_msg(MESSAGE)
        assert fired == ["pre_execute", "post_execute"], (
            "comms fire no events: it is needed no more"
        )
        handle_beside_cells(widget(mine, got.append))
        mine.handle_msg(MESSAGE)
    finally:
        for name, note in notes.items():
            shell.events.unregister(name, note)
        InteractiveShell.clear_instance()
    assert fired == ["pre_execute", "post_execute"]
    assert got == [MESSAGE, MESSAGE]


def test_a_comm_without_the_hook_is_taken_as_it_is() -> None:
    bare = SimpleNamespace()
    handle_beside_cells(widget(bare))
    assert vars(bare) == {"handle_msg": print}


def test_a_kernel_without_subshells_lets_messages_wait() -> None:
    old = SimpleNamespace(kernel=SimpleNamespace(kernel_info={"supported_features": ["debugger"]}))
    new = SimpleNamespace(
        kernel=SimpleNamespace(kernel_info={"supported_features": ["kernel subshells"]})
    )
    assert must_wait(widget(old))
    assert not must_wait(widget(new))


def test_a_server_without_the_setting_is_taken_as_it_is() -> None:
    settings: dict[str, Any] = {}
    send_at_once(settings)
    assert settings == {}


def test_a_cell_is_called_as_ipython_calls_it() -> None:
    name = InteractiveShell.instance().compile.cache("1 + 1", 7)
    assert cell_of(name) == "Cell In[7]"
    assert cell_of(__file__) == ""


def test_the_cell_that_runs_is_found_by_its_code() -> None:
    shell = InteractiveShell.instance()
    shell.user_ns["where"] = current_cell
    name = shell.compile.cache("found = where()", 8)
    exec(compile("found = where()", name, "exec"), shell.user_ns)
    assert shell.user_ns["found"] == "Cell In[8]"
    assert current_cell() == ""
