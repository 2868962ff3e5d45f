"""The ways by which a coordinator's updates reach JupyterLab's panel."""
