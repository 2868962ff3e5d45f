"""How updates reach panels: by the hub on the Jupyter server, or by the Dask scheduler."""

from psnb._src.monitor.served.links import tell_panels

__all__ = [
    "tell_panels",
]
