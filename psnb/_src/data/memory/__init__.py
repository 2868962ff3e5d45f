"""Datasets in memory, of one process or spread over several."""
