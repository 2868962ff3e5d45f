"""Exported models: a folder that predicts without Dask and without the training code. Pure."""

from psnb._src.export.dense_sources import DenseSources
from psnb._src.export.exported import Computation, Exported, Fetch, RowPiece, TableSource
from psnb._src.export.loaded_model import LoadedModel
from psnb._src.export.model_feed import ModelFeed
from psnb._src.export.model_loading import load_model
from psnb._src.export.model_manifest import ModelManifest
from psnb._src.export.nested import check_nested, leaves_of, nested
from psnb._src.export.scoring import FORMATS, score_files
from psnb._src.export.stored_table import StoredTable
from psnb._src.export.writing import Exportable, export

__all__ = [
    "FORMATS",
    "Computation",
    "DenseSources",
    "Exportable",
    "Exported",
    "Fetch",
    "LoadedModel",
    "ModelFeed",
    "ModelManifest",
    "RowPiece",
    "StoredTable",
    "TableSource",
    "check_nested",
    "export",
    "leaves_of",
    "load_model",
    "nested",
    "score_files",
]
