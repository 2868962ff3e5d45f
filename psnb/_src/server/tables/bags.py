"""Bags of ids: the sums of their members' rows, and the gradients of ids from those of bags. Pure.

Where bags have many members, their sums are fewer bytes than the rows. So tables can sum them, and
a row a bag travels, with the members of each (`BagMembers`). The ids of an operation are distinct
all the same: it counts as one occurrence of each. A push of bags becomes one of ids before anything
else is done with it, so optimizers and rounds only know the sum of an id's gradients.
"""

from __future__ import annotations

import msgspec
import numpy as np

from psnb._src.server import kernels
from psnb._src.server.kernels import read_only
from psnb._src.server.memory import scratch
from psnb._src.server.tables import operations as ops
from psnb._src.server.tables.checks import (
    POSITION,
    check_array,
    check_flat,
    check_ids,
    check_offsets,
    check_within,
    form,
)

MEMBER = np.dtype(np.int32)
"""Of the positions of members: half the bytes of int64, and no table has more ids than it can tell
apart."""


def check_bags(bags: ops.BagMembers, count: int, dtype: np.dtype) -> None:
    """Raise ConfigurationError unless these are bags of ``count`` ids, with factors of a dtype."""
    what = "members of bags"
    members = check_flat(what, form(what, bags.position), MEMBER)
    check_within(what, bags.position, 0, count - 1)
    what = "bounds of bags"
    bounds = check_flat(what, form(what, bags.bounds), POSITION)
    check_offsets(what, bags.bounds, max(0, bounds - 1), members)
    what = "factors in bags"
    if check_flat(what, form(what, bags.factors), dtype):
        check_array(what, bags.factors, dtype, (members,))


def sum_rows(bags: ops.BagMembers, rows: np.ndarray, out: np.ndarray) -> None:
    """Write the sum of each bag to ``out``, from the rows of its ids."""
    kernels.add_rows_to_bags(read_only(rows), *_read_only(bags), out)


def sum_by_id(bags: ops.BagMembers, gradients: np.ndarray, out: np.ndarray) -> None:
    """Write the gradient of each id's row to ``out``, from those of the bags' sums."""
    kernels.add_bags_to_rows(read_only(gradients), *_read_only(bags), out)


def push_by_id(push: ops.PushRows, dtype: np.dtype, dim: int) -> ops.PushRows:
    """Return the same push as one of gradients of ids, after checks if it is one of bags.

    Raises
    ------
    MemoryError
        If there is none for the sums.
    """
    if (bags := push.bags) is None:
        return push
    check_ids("ids of bags", push.ids)
    check_bags(bags, push.ids.size, dtype)
    check_array("gradients of bags", push.gradients, dtype, (bags.bounds.size - 1, dim))
    sums = scratch((push.ids.size, dim), dtype)
    sum_by_id(bags, push.gradients, sums)
    return msgspec.structs.replace(push, gradients=sums, bags=None)


def _read_only(bags: ops.BagMembers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return read_only(bags.position), read_only(bags.bounds), read_only(bags.factors)
