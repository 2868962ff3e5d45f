"""The demonstration job in parts: its data (`flights`) and its model (`model`), for notebooks.

``psnb demo`` runs it whole.
"""

from psnb._src.demo import flights, model

__all__ = ["flights", "model"]
