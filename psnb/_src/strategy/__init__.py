"""ParameterServerStrategy: where parameters are, and who looks after their servers."""

from psnb._src.strategy.strategy import ParameterServerStrategy

__all__ = [
    "ParameterServerStrategy",
]
