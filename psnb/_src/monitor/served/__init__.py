"""How a coordinator reaches panels: the hub on its Jupyter server, or its Dask scheduler."""

from psnb._src.monitor.served.links import PanelLink, tell_panels

__all__ = [
    "PanelLink",
    "tell_panels",
]
