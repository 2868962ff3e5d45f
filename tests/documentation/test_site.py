"""What pages may have so that they are shown whole; what `make docs` builds needs Sphinx."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documentation.test_names import ROOT

COMPARISONS = sorted((ROOT / "docs" / "coming-from").glob("*.md"))

WIDTH = 66
"""Characters that a comparison has room for in a window of 1,400 pixels."""


@pytest.mark.parametrize("page", COMPARISONS, ids=lambda page: page.stem)
def test_code_that_stands_beside_other_code_is_not_cut(page: Path) -> None:
    grids = re.findall(r"^::::\{grid\}.*?^::::$", page.read_text(), re.MULTILINE | re.DOTALL)
    code = re.findall(r"^```.*?\n(.*?)^```$", "\n".join(grids), re.MULTILINE | re.DOTALL)
    assert [line for line in "\n".join(code).splitlines() if len(line) > WIDTH] == []
