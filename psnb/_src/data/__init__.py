"""Datasets that feed workers: chained, lazy, vectorised; they resume at the very next element."""
