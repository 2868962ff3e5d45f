"""What models of all frameworks share: rows of a batch, flat variables, few sizes."""

from psnb._src.models.adopting import (
    LEARNING,
    MOVED,
    WantedModel,
    WantedTable,
    adopted,
    note_local,
    place_record,
    scratch,
)
from psnb._src.models.batch_rows import BatchRows
from psnb._src.models.batch_summary import batch_summary
from psnb._src.models.few_sizes import FewSizes
from psnb._src.models.flat_variables import (
    FlatVariables,
    OptimizerChoice,
    Place,
    Strategy,
    check_free,
    check_strategy,
    optimizer_for,
    place_flat,
    place_state,
)
from psnb._src.models.not_exportable import not_exportable
from psnb._src.models.references import functions_of, leads_to, used_global
from psnb._src.models.step_description import (
    StepDescription,
    StepOperation,
    array_text,
    pulling,
    pushing,
)

__all__ = [
    "LEARNING",
    "MOVED",
    "BatchRows",
    "FewSizes",
    "FlatVariables",
    "OptimizerChoice",
    "Place",
    "StepDescription",
    "StepOperation",
    "Strategy",
    "WantedModel",
    "WantedTable",
    "adopted",
    "array_text",
    "batch_summary",
    "check_free",
    "check_strategy",
    "functions_of",
    "leads_to",
    "not_exportable",
    "note_local",
    "optimizer_for",
    "place_flat",
    "place_record",
    "place_state",
    "pulling",
    "pushing",
    "scratch",
    "used_global",
]
