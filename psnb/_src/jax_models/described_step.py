"""described_step: the operations of a training step in JAX, psnb's own pull and push among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from psnb._src.jax_models.program import Program
from psnb._src.models import StepDescription, StepOperation, array_text, pulling, pushing
from psnb._src.parameters import Handle, Variable


def described_step(
    program: Program, variables: tuple[Variable, ...], batch: Any
) -> StepDescription:
    """Return the operations of a step for a batch; nothing is fetched, computed or written."""
    jaxpr, rows = program.traced(batch)
    handles: list[tuple[Handle, int | None]] = [
        *rows.items(),
        *((each, None) for each in variables),
    ]
    return StepDescription([*pulling(handles), *_operations(jaxpr, 0), *pushing(handles)])


def _operations(jaxpr: Any, depth: int) -> Iterator[StepOperation]:
    for equation in jaxpr.eqns:
        name, parameters = equation.primitive.name, equation.params
        # A function within it has a name of its own: jit(relu).
        inner = parameters.get("name")
        yield StepOperation(
            f"{name}({inner})" if isinstance(inner, str) else name,
            tuple(map(_text, equation.invars)),
            tuple(map(_text, equation.outvars)),
            "gradient" if "transpose" in str(equation.source_info.name_stack) else "",
            depth,
        )
        for each in parameters.values():
            for part in each if isinstance(each, tuple | list) else (each,):
                part = getattr(part, "jaxpr", part)
                if hasattr(part, "eqns"):
                    yield from _operations(part, depth + 1)


def _text(variable: Any) -> str:
    if hasattr(variable, "val"):
        return str(variable.val)  # a constant
    kind = variable.aval
    return array_text(kind.dtype.name, kind.shape) if hasattr(kind, "dtype") else str(kind)
