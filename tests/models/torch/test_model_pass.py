"""Tests of the rows of a step in PyTorch; servers in this process."""

from __future__ import annotations

import numpy as np
import torch

from psnb._src.models.torch.model_pass import ModelPass
from tests.models.placing import InProcessStrategy


def test_rows_of_all_tables_go_to_a_device_in_one_copy() -> None:
    strategy = InProcessStrategy()
    tables = {name: strategy.embedding(name, dim, 10) for name, dim in (("a", 2), ("b", 3))}
    # A device that every machine has: it keeps shapes alone.
    found = ModelPass(tables, torch.device("meta"), training=True, learns=True)
    found.expect_ids("a", [torch.arange(4)])
    found.expect_ids("b", [torch.arange(5)])
    found.fetch(())
    leaves = dict(found.leaves())
    assert [tuple(leaves[name].shape) for name in tables] == [(4, 2), (5, 3)]
    assert len({each.untyped_storage()._cdata for each in leaves.values()}) == 1
    assert all(each.is_leaf and each.requires_grad for each in leaves.values())


def test_tables_of_several_dtypes_keep_theirs() -> None:
    strategy = InProcessStrategy()
    tables = {kind: strategy.embedding(kind, 2, 10, dtype=np.dtype(kind)) for kind in ("f4", "f8")}
    found = ModelPass(tables, torch.device("meta"), training=True, learns=True)
    for name in tables:
        found.expect_ids(name, [torch.arange(3)])
    found.fetch(())
    assert {name: leaf.dtype for name, leaf in found.leaves()} == {
        "f4": torch.float32,
        "f8": torch.float64,
    }
