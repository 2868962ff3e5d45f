"""Datasets that feed workers: chained, lazy, vectorised, and resumed at the very next element."""

from psnb.data.ragged import Ragged

__all__ = ["Ragged"]
