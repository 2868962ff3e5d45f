"""Adam, lazy for the rows of an embedding table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numba import njit

from psnb._src.server import prefetching
from psnb._src.server.optimizers.hyperparameters import require_flag, require_number
from psnb._src.server.optimizers.optimizer import Optimizer, above_zero
from psnb._src.server.optimizers.schedules import LearningRate


# numpy's error model: see Adagrad.
@njit(cache=True, nogil=True, error_model="numpy")
def _adam_rows(  # type: ignore[no-untyped-def]
    values,
    first,
    second,
    highest,
    rows,
    gradients,
    rate,
    first_kept,
    first_new,
    second_kept,
    second_new,
    root_correction,
    epsilon,
    decay,
    shrink,
):
    # `highest` is an array or None: numba compiles a loop for each, so the usual one has no test.
    for i in range(rows.size):
        ahead = rows[min(i + prefetching.AHEAD, rows.size - 1)]
        for line in range(prefetching.lines(values)):
            prefetching.ask_for(values, ahead, line)
            prefetching.ask_for(first, ahead, line)
            prefetching.ask_for(second, ahead, line)
            if highest is not None:
                prefetching.ask_for(highest, ahead, line)
        row = rows[i]
        for j in range(values.shape[1]):
            gradient = gradients[i, j] + decay * values[row, j]
            mean = first_kept * first[row, j] + first_new * gradient
            square = second_kept * second[row, j] + second_new * gradient * gradient
            first[row, j] = mean
            second[row, j] = square
            if highest is not None:
                square = max(square, highest[row, j])
                highest[row, j] = square
            step = rate * mean / (np.sqrt(square) * root_correction + epsilon)
            values[row, j] -= step + shrink * values[row, j]


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma, Ba, ICLR 2015); with ``weight_decay`` AdamW (Loshchilov, Hutter, ICLR 2019).

    With ``amsgrad`` AMSGrad (Reddi, Kale, Kumar, ICLR 2018).

    ``m = beta_1 * m + (1 - beta_1) * g; v = beta_2 * v + (1 - beta_2) * g * g;`` ``w -=
    learning_rate * (m̂ / (sqrt(v̂) + epsilon) + weight_decay * w)``, where the hats divide by ``1 -
    beta ** t`` and ``t`` is the table's count of updates, including this one. It is not the row's
    count, so the first step of a row that is seen late is smaller than in a table of its own.
    AMSGrad has the largest ``v`` so far in place of ``v``.

    Parameters
    ----------
    learning_rate : float or callable
        Step size.
    beta_1, beta_2 : float
        How much of the means of gradients and of their squares stays; below 1.
    epsilon : float
        Keeps the division defined; above 0.
    epsilon_hat : bool
        Add epsilon to ``sqrt(v)``, not to ``sqrt(v̂)``: the paper's faster form (before its section
        2.1), as in TensorFlow, Keras and ``torch.optim.SparseAdam``. The first steps of small
        gradients are smaller then.
    decoupled : bool
        If not, ``weight_decay * w`` is added to the gradient (L2), as in ``torch.optim.Adam``.
    amsgrad : bool
        Never let a step grow since its ``v`` has become smaller; takes one more array.

    Examples
    --------
    >>> import numpy as np
    >>> import psnb
    >>> optimizer = psnb.Adam(0.5, weight_decay=0.1, decoupled=False)
    >>> w, m, v = np.ones((1, 1)), np.zeros((1, 1)), np.zeros((1, 1))
    >>> slots = {"first_moment": m, "second_moment": v}
    >>> optimizer.apply(w, slots, np.array([0]), np.ones((1, 1)), 0)
    >>> round(w.item(), 6), round(m.item(), 6)  # the step is 0.5, whatever the gradient is
    (0.5, 0.11)
    """

    learning_rate: LearningRate = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    epsilon_hat: bool = False
    decoupled: bool = True
    amsgrad: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, "beta_1", below=1)
        require_number(self, "beta_2", below=1)
        require_number(self, "epsilon", positive=True)
        for name in ("epsilon_hat", "decoupled", "amsgrad"):
            require_flag(self, name)

    @property
    def slots(self) -> tuple[str, ...]:
        highest = ("highest_second_moment",) if self.amsgrad else ()
        return ("first_moment", "second_moment", *highest)

    def _update(
        self,
        values: np.ndarray,
        slots: Mapping[str, np.ndarray],
        rows: np.ndarray,
        gradients: np.ndarray,
        rate: float,
        step: int,
    ) -> None:
        scalar = values.dtype.type
        # In double precision: 1 - 0.999 ** t would lose four of float32's seven digits.
        first_correction = 1.0 - self.beta_1 ** (step + 1)
        root_correction = (1.0 - self.beta_2 ** (step + 1)) ** -0.5
        _adam_rows(
            values,
            slots["first_moment"],
            slots["second_moment"],
            slots.get("highest_second_moment"),
            rows,
            gradients,
            scalar(rate / first_correction),
            scalar(self.beta_1),
            scalar(1.0 - self.beta_1),
            scalar(self.beta_2),
            scalar(1.0 - self.beta_2),
            scalar(root_correction),
            above_zero(self.epsilon * (root_correction if self.epsilon_hat else 1.0), scalar),
            scalar(0.0 if self.decoupled else self.weight_decay),
            scalar(rate * self.weight_decay if self.decoupled else 0.0),
        )
