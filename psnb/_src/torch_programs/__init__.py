"""Runs exported PyTorch programs, without Dask; `psnb._src.export` loads this when it must."""

from psnb._src.torch_programs.allowed_operators import is_allowed
from psnb._src.torch_programs.torch_computation import OPERATORS, PROGRAM, load

__all__ = ["OPERATORS", "PROGRAM", "is_allowed", "load"]
