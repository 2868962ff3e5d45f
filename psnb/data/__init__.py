"""Datasets: see `psnb.data.formats` for what files they read."""
