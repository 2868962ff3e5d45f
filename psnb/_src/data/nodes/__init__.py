"""The kinds of nodes in a chain."""
