"""Runs exported JAX programs, without Dask; `psnb._src.export` loads this when it must."""

from psnb._src.jax_programs.jax_computation import (
    COMBINERS,
    IDS,
    PROGRAM,
    foreign_calls,
    load,
    with_x64,
)

__all__ = ["COMBINERS", "IDS", "PROGRAM", "foreign_calls", "load", "with_x64"]
