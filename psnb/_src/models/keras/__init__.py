"""Models in Keras on parameter servers; nothing but `psnb.keras` imports this, or Keras for it."""

import os
from importlib.util import find_spec

# Before Keras is imported: one of the two backends that psnb drives, unless the user has chosen. On
# workers, models bring the notebook's.
os.environ.setdefault("KERAS_BACKEND", "jax" if find_spec("jax") else "torch")
