"""ParameterServerStrategy: where parameters are, and who looks after their servers."""

from psnb.strategy.strategy import ParameterServerStrategy

__all__ = ["ParameterServerStrategy"]
