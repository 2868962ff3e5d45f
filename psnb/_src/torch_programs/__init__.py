"""Runs exported PyTorch programs, without Dask; `psnb._src.export` loads this when it must."""

from psnb._src.torch_programs.torch_computation import OPERATORS, PROGRAM, is_pure, load

__all__ = ["OPERATORS", "PROGRAM", "is_pure", "load"]
