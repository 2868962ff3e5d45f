"""Metrics whose states are merged exactly, whichever worker came first. Pure numpy."""
