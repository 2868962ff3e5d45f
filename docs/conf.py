"""Sphinx's settings for the site: ``make docs``. No page needs the network to be built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]
os.environ.setdefault("KERAS_BACKEND", "jax")

import psnb

project = "psnb"
author = "The psnb developers"
copyright = f"2026, {author}"
version = release = psnb.__version__

extensions = [
    "myst_nb",
    "public_names",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_ext", "_inventories"]
nitpicky = True
# Of these there is no inventory in _inventories, or a name was added since.
UNKNOWN = r"(jax|keras|numpy|optax|torch)\..*|distributed\.Security"
nitpick_ignore_regex = [("py:.*", UNKNOWN)]

# In docstrings, a name in single backticks is a link, or an error.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings have the types, and say what signatures cannot
napoleon_google_docstring = napoleon_numpy_docstring = False  # public_names calls it
napoleon_use_rtype = False
python_maximum_signature_line_length = 88

# Notebooks have the outputs with which tests/notebooks compares what they put out now.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3

# From Debian's packages of documentation: python3.11-doc, python-dask-doc, python-distributed-doc.
intersphinx_mapping = {
    "python": ("https://docs.python.org/3", "_inventories/python.inv"),
    "dask": ("https://docs.dask.org/en/stable", "_inventories/dask.inv"),
    "distributed": ("https://distributed.dask.org/en/stable", "_inventories/distributed.inv"),
}

html_theme = "pydata_sphinx_theme"
html_title = "psnb"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
# MathJax and fonts come with the reader's network; a page without formulas needs none.
mathjax3_config = {"options": {"enableMenu": False}}
