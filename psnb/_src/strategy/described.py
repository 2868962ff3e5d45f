"""What a notebook shows of a strategy: its servers and its parameters. Asks nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from psnb._src.monitor import ServerStatistics, html_table
from psnb._src.parameters import Embedding, Variable


def describe(
    title: str, servers: Sequence[ServerStatistics], parameters: Mapping[str, Variable | Embedding]
) -> str:
    """Return an HTML fragment.

    Parameters
    ----------
    title : str
        The line at the top.
    servers : sequence of ServerStatistics
        As they were when last heard of.
    parameters : mapping of str to Variable or Embedding
        By name.
    """
    return (
        f"<div><strong>{escape(title)}</strong></div>"
        + html_table(
            "servers",
            ("server", "address", "state", "shards"),
            [(each.name, each.address, each.state, str(each.shards)) for each in servers],
        )
        + html_table(
            "parameters",
            ("parameter", "kind", "shape", "dtype"),
            [
                (name, type(each).__name__.lower(), _shape(each), str(each.dtype))
                for name, each in parameters.items()
            ],
        )
    )


def _shape(parameter: Variable | Embedding) -> str:
    if isinstance(parameter, Variable):
        return str(parameter.shape)
    rows = "any id" if parameter.rows is None else f"{parameter.rows:,} rows"
    return f"{rows} of {parameter.dim}"
