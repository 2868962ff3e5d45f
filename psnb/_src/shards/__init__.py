"""Shards of a parameter: which rows and ids each has, what its state must be; without Dask."""

from psnb._src.shards.array_checks import (
    Form,
    check_array,
    check_form,
    check_ids,
    check_positions,
    check_within,
    form,
    forms,
)
from psnb._src.shards.division import row_ranges, shard_of_ids
from psnb._src.shards.expecting import ROW_USE, Expected, ExpectedRows
from psnb._src.shards.last_values import LastValues
from psnb._src.shards.saved_shard import SavedShard, check_saved_rows, check_saved_slice

__all__ = [
    "ROW_USE",
    "Expected",
    "ExpectedRows",
    "Form",
    "LastValues",
    "SavedShard",
    "check_array",
    "check_form",
    "check_ids",
    "check_positions",
    "check_saved_rows",
    "check_saved_slice",
    "check_within",
    "form",
    "forms",
    "row_ranges",
    "shard_of_ids",
]
