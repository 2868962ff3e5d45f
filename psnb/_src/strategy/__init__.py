"""ParameterServerStrategy: where parameters are, and how their servers are looked after."""

from psnb._src.strategy.core import Fences, StrategyCore
from psnb._src.strategy.departures import LastSave
from psnb._src.strategy.described_parameters import described_parameter
from psnb._src.strategy.stored_strategies import StoredStrategies, StoredStrategy, stored_strategies
from psnb._src.strategy.strategy import (
    ParameterServerStrategy,
    check_client,
    core_of,
    leave_to_others,
    taken_over,
)

__all__ = [
    "Fences",
    "LastSave",
    "ParameterServerStrategy",
    "StoredStrategies",
    "StoredStrategy",
    "StrategyCore",
    "check_client",
    "core_of",
    "described_parameter",
    "leave_to_others",
    "stored_strategies",
    "taken_over",
]
