"""Training from beginning to end: the trainer, its device workers and callbacks."""

from psnb._src.training.callback import Callback, TrainingSnapshot
from psnb._src.training.csv_log import CSVLog
from psnb._src.training.device_worker import DeviceWorker
from psnb._src.training.downpour import Downpour
from psnb._src.training.early_stopping import EarlyStopping
from psnb._src.training.hogwild import Hogwild
from psnb._src.training.json_lines_log import JSONLinesLog
from psnb._src.training.learning_rate_scheduler import LearningRateScheduler
from psnb._src.training.section import PipelineStage, Section
from psnb._src.training.tensor_board import TensorBoard
from psnb._src.training.trainer import Trainer
from psnb._src.training.training_history import EpochRow, TrainingHistory

__all__ = [
    "CSVLog",
    "Callback",
    "DeviceWorker",
    "Downpour",
    "EarlyStopping",
    "EpochRow",
    "Hogwild",
    "JSONLinesLog",
    "LearningRateScheduler",
    "PipelineStage",
    "Section",
    "TensorBoard",
    "Trainer",
    "TrainingHistory",
    "TrainingSnapshot",
]
