"""How the rows of a table begin, and which ids get one: of the ids alone, without servers."""

from psnb._src.first_rows.admission import (
    ADMISSIONS,
    MOST_SIGHTINGS,
    Admission,
    Always,
    CountFilter,
    Probability,
)
from psnb._src.first_rows.id_kernels import (
    GOLDEN,
    fill_normal,
    fill_uniform,
    hash_ids,
    mix,
    read_only,
)
from psnb._src.first_rows.initializers import (
    INITIALIZERS,
    Constant,
    Initializer,
    Normal,
    Uniform,
)

__all__ = [
    "ADMISSIONS",
    "GOLDEN",
    "INITIALIZERS",
    "MOST_SIGHTINGS",
    "Admission",
    "Always",
    "Constant",
    "CountFilter",
    "Initializer",
    "Normal",
    "Probability",
    "Uniform",
    "fill_normal",
    "fill_uniform",
    "hash_ids",
    "mix",
    "read_only",
]
