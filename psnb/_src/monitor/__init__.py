"""Snapshots and history of a coordinator's work, and their displays."""
