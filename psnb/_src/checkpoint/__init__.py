"""Checkpoints on disk: atomic, pickle-free, independent of the number of servers."""
