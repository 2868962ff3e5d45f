"""The table in docs/coming-from/torch.md has the defaults of psnb and the frameworks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import psnb
from tests.documentation.test_names import ROOT

TEXT = (ROOT / "docs" / "coming-from" / "torch.md").read_text()


def default(function: Any, name: str) -> Any:
    """Return the default of a parameter as the table has it."""
    found = inspect.signature(function).parameters[name].default
    return "none" if found is inspect.Parameter.empty else found or 0


def column(number: int) -> list[str]:
    """Return the cells of a column, below its head."""
    table = TEXT[TEXT.index("| default | psnb |") :].split("\n\n")[0].splitlines()[2:]
    return [line.strip("|").split("|")[number].strip().replace("`", "") for line in table]


def of_psnb() -> list[str]:
    sgd, adagrad, adam, rms = psnb.SGD(), psnb.Adagrad(), psnb.Adam(), psnb.RMSProp()
    assert not adagrad.epsilon_in_root
    assert rms.epsilon_in_root
    assert adam.decoupled
    assert not adam.epsilon_hat
    return [
        f"{sgd.learning_rate}, 0 (Momentum: {psnb.Momentum().momentum})",
        f"{adagrad.learning_rate}",
        f"{adagrad.initial_accumulator_value}",
        f"sqrt(a) + {adagrad.epsilon}",
        f"{adam.learning_rate}",
        f"sqrt(v̂) + {adam.epsilon}",
        "decoupled",
        "as Adam's",
        f"{rms.learning_rate}, {rms.rho}",
        f"sqrt(s + {rms.epsilon})",
    ]


def of_torch() -> list[str]:
    from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

    return [
        f"{default(SGD, 'lr')}, {default(SGD, 'momentum')}",
        f"{default(Adagrad, 'lr')}",
        f"{default(Adagrad, 'initial_accumulator_value')}",
        f"sqrt(a) + {default(Adagrad, 'eps')}",
        f"{default(Adam, 'lr')}",
        f"sqrt(v̂) + {default(Adam, 'eps')}",
        "in the gradient",
        f"{default(AdamW, 'weight_decay')}",
        f"{default(RMSprop, 'lr')}, {default(RMSprop, 'alpha')}",
        f"sqrt(s) + {default(RMSprop, 'eps')}",
    ]


def of_keras() -> list[str]:
    from keras.optimizers import SGD, Adagrad, Adam, AdamW, RMSprop

    return [
        f"{default(SGD, 'learning_rate')}, {default(SGD, 'momentum')}",
        f"{default(Adagrad, 'learning_rate')}",
        f"{default(Adagrad, 'initial_accumulator_value')}",
        f"sqrt(a + {default(Adagrad, 'epsilon')})",
        f"{default(Adam, 'learning_rate')}",
        f"sqrt(v) + {default(Adam, 'epsilon')}",
        "decoupled",
        f"{default(AdamW, 'weight_decay')}",
        f"{default(RMSprop, 'learning_rate')}, {default(RMSprop, 'rho')}",
        f"sqrt(s + {default(RMSprop, 'epsilon')})",
    ]


def of_optax() -> list[str]:
    from optax import adagrad, adam, adamw, rmsprop, sgd

    assert default(rmsprop, "eps_in_sqrt")
    return [
        f"{default(sgd, 'learning_rate')}, {default(sgd, 'momentum')}",
        f"{default(adagrad, 'learning_rate')}",
        f"{default(adagrad, 'initial_accumulator_value')}",
        f"sqrt(a + {default(adagrad, 'eps')})",
        f"{default(adam, 'learning_rate')}",
        f"sqrt(v̂) + {default(adam, 'eps')}",
        "none",
        f"{default(adamw, 'weight_decay')}",
        f"{default(rmsprop, 'learning_rate')}, {default(rmsprop, 'decay')}",
        f"sqrt(s + {default(rmsprop, 'eps')})",
    ]


@pytest.mark.parametrize(
    ("number", "found"), list(enumerate([of_psnb, of_torch, of_keras, of_optax], 1))
)
def test_the_table_has_the_defaults(number: int, found: Callable[[], list[str]]) -> None:
    assert column(number) == found()
