"""ParameterServerStrategy: where parameters are, and the upkeep of their servers."""
