"""ParameterServerStrategy: where parameters are, and how their servers are looked after."""

from psnb._src.strategy.core import Fences, StrategyCore
from psnb._src.strategy.departures import LastSave
from psnb._src.strategy.described_parameters import described_parameter
from psnb._src.strategy.strategy import ParameterServerStrategy, core_of

__all__ = [
    "Fences",
    "LastSave",
    "ParameterServerStrategy",
    "StrategyCore",
    "core_of",
    "described_parameter",
]
