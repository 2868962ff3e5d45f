"""The plot of a run: held-out AUC and training loss over the flights seen."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import psnb
from psnb._src.demo.references import GRADIENT_BOOSTING_AUC, LOGISTIC_REGRESSION_AUC


def write_learning_curve(path: Path, history: psnb.TrainingHistory, batch_size: int) -> None:
    """Draw a learning curve as a PNG.

    Parameters
    ----------
    path : pathlib.Path
        The file to write.
    history : psnb.TrainingHistory
        With ``loss``, in nats, and ``val_auc`` of the held-out flights.
    batch_size : int
        Flights a batch.
    """
    # The object-oriented interface: it needs no window system and leaves no global state behind.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    seen = [batches * batch_size / 1000 for batches in accumulate(history["batches"])]
    axes.plot(seen, history["val_auc"], "o-", color="tab:blue", label="wide & deep, held-out AUC")
    references = [
        (GRADIENT_BOOSTING_AUC, "gradient boosting (reference)", "--"),
        (LOGISTIC_REGRESSION_AUC, "logistic regression (reference)", ":"),
    ]
    for value, label, style in references:
        axes.axhline(value, color="gray", linestyle=style, label=f"{label} {value:.3f}")
    axes.set_xlabel("flights trained on, thousands")
    axes.set_ylabel("held-out AUC")
    axes.set_title("Flights more than 15 minutes late, psnb demo")
    axes.grid(alpha=0.3)
    losses = axes.twinx()
    losses.plot(seen, history["loss"], ".-", color="tab:orange", alpha=0.6, label="training loss")
    losses.set_ylabel("training loss, nats")
    lines = [*axes.get_lines(), *losses.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], loc="center right")
    figure.savefig(path)
