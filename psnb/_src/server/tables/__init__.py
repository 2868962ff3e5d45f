"""The tables of parameters: the content of shards, and its checks."""
