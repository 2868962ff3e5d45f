"""The tables of parameters: what shards hold, and how it is checked."""
