import pytest

from tests.browser.conftest import OpenNotebook

pytestmark = pytest.mark.slow


def test_a_cell_runs(notebook: OpenNotebook) -> None:
    page = notebook("print(6 * 7)", "import threading; threading.Event().wait(60)")
    page.run(0)
    assert page.printed(0) == "42\n"
    page.start(1)
    page.save()
