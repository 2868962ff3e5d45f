"""ParameterServerStrategy: where parameters are, and how their servers are looked after."""
