"""The reference: a directive that documents public names, and links by those names alone.

``{api}`` takes full public names, one a line: a table of them first, then what each is. All that
is public is defined in `psnb._src`, which readers never see: what a signature, a base or a
docstring refers to there is shown by its public name.
"""

from __future__ import annotations

import builtins
import inspect
import os
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.ext.napoleon import NumpyDocstring
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from psnb._src.cli import _parsers

DOORS = ("checkpoint", "data", "demo", "errors", "jax", "keras", "metrics", "torch")
MODULES = ["psnb", *(f"psnb.{name}" for name in DOORS)]


def public_names() -> dict[str, Any]:
    """Return what each public name is, but for the modules; ``errors`` has no ``__all__``."""
    found = {}
    for module in MODULES:
        door = import_module(module)
        names = getattr(door, "__all__", None) or [
            name for name, each in vars(door).items() if getattr(each, "__module__", "") == module
        ]
        for name in names:
            if f"{module}.{name}" not in MODULES:
                found[f"{module}.{name}"] = getattr(door, name)
    return found


PUBLIC = public_names()
CLASSES = {value: name for name, value in PUBLIC.items() if inspect.isclass(value)}

for kind, public in CLASSES.items():
    kind.__name__ = public.rpartition(".")[2]  # of `psnb.torch.Embedding` it is another

UNNAMED = {
    *("LeasedDataset", "LeasedIterator", "PartitionedDataset", "PipelineStage", "RemotePath"),
    *("Settings", "Workspace"),
}
"""Classes of what calls take or return that have no public name: shown as they are, not linked."""

HANDLES = {
    "coordinator": "psnb.ClusterCoordinator",
    "manager": "psnb.CheckpointManager",
    "strategy": "psnb.ParameterServerStrategy",
    "trainer": "psnb.Trainer",
}
"""Of which class what texts call by these names is."""

OTHERS = {"Any", "Path", "None", "True", "False", *vars(builtins), *UNNAMED}
SHORT = {name.rpartition(".")[2] for name in PUBLIC}


class Api(SphinxDirective):
    """Document public names: a table, then each with its members."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return what autosummary and autodoc make of the names."""
        names = [line.strip() for line in self.content if line.strip()]
        lines = [".. py:currentmodule:: None", ".. autosummary::", "   :nosignatures:", ""]
        lines += [*(f"   {name}" for name in names), ""]
        for name in names:
            lines += documented(name)
        text = "\n".join(["```{eval-rst}", *lines, "```"])
        return self.parse_text_to_nodes(text, offset=self.content_offset)


class CommandHelp(SphinxDirective):
    """What ``--help`` of a command prints; without an argument, of ``psnb`` itself."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the text."""
        parser, commands = _parsers()
        if self.arguments:
            parser = commands[self.arguments[0]]
        with mock.patch.dict(os.environ, {"COLUMNS": "88", "NO_COLOR": "1"}):
            text = parser.format_help()
        return [nodes.literal_block(text, text, language="text")]


def documented(name: str) -> list[str]:
    """Return the directive for a name, with what it has of classes that are not public."""
    value = PUBLIC[name]
    if isinstance(value, ModuleType):
        return [f".. autodata:: {name}", "   :no-value:", ""]
    if not inspect.isclass(value):
        kind = "autofunction" if callable(value) else "autodata"
        return [f".. {kind}:: {name}", ""]
    lines = [f".. autoclass:: {name}", "   :members:"]
    bases = value.__mro__[1:]
    if any(is_private(base) for base in bases):
        stops = [base.__name__ for base in bases if not is_private(base)]
        lines.append(f"   :inherited-members: {', '.join(stops)}")
    if any(base in CLASSES for base in value.__bases__):
        lines.append("   :show-inheritance:")
    return [*lines, ""]


def is_private(kind: type) -> bool:
    """Return whether a class is psnb's and has no public name."""
    return kind.__module__.startswith("psnb.") and kind not in CLASSES


def keep_public_bases(app: Sphinx, name: str, value: Any, options: Any, bases: list[Any]) -> None:
    """Leave out the bases that readers cannot import."""
    bases[:] = [f":py:class:`{CLASSES[base]}`" for base in bases if base in CLASSES]


def made_by_us(value: Any) -> bool:
    """Return whether psnb alone makes a class: so it says, or how to make it cannot be known."""
    if not inspect.isclass(value) or value not in CLASSES:
        return False
    text = inspect.getdoc(value) or ""
    _, parameters, rest = text.partition("Parameters\n----------\n")
    if "made by" in text.partition("\n\n")[0] or ("Attributes\n---" in text and not parameters):
        return True
    types = re.findall(r"^\S[^:\n]* : (.*)$", rest.partition("\n---")[0], re.MULTILINE)
    words = re.findall(r"(?<![\w.\"])[A-Z]\w+(?!\.)", " ".join(types))
    return not {*words} <= {*SHORT, *OTHERS}


def leave_out_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: Any, returned: Any
) -> tuple[str, str] | None:
    """Show how a class is called only if readers can do so."""
    return ("", "") if made_by_us(value) else None


def format_sections(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Turn the sections of a NumPy docstring into fields.

    Napoleon does it; but of a property it takes what is before a colon for a type.
    """
    if made_by_us(value) and "Parameters" in lines:
        start = lines.index("Parameters")
        heads = [n for n, line in enumerate(lines) if line.startswith("---") and n > start + 1]
        del lines[start : heads[0] - 1 if heads else len(lines)]
    what = "method" if what in ("attribute", "property") else what
    found = NumpyDocstring(lines, app.config, app, what, name, value, options)
    lines[:] = found.lines()


def leave_out_member(
    app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out fields of named tuples, which the class's docstring has."""
    text = getattr(value, "__doc__", None) or ""
    return True if text.startswith("Alias for field number") else None


def unlink_words(app: Sphinx, tree: nodes.document) -> None:
    """Leave as they are the words of types that name no class: optional, mapping of str."""
    for node in list(tree.findall(pending_xref)):
        target = node.get("reftarget", "")
        if node.get("refdomain") != "py" or node.get("reftype") not in ("class", "exc"):
            continue
        if target in UNNAMED or not is_name(target):
            node.replace_self(node.children)


def is_name(target: str) -> bool:
    """Return whether this may be the name of a class."""
    if isinstance(getattr(builtins, target, None), type):
        return True
    return bool(re.fullmatch(r"[\w.]+", target)) and ("." in target or target[0].isupper())


def find_by_last_part(app: Sphinx, env: Any, node: pending_xref, text: nodes.Node) -> Any:
    """Resolve a name as docstrings have it: `Trainer.stop`, `errors.ClosureError`, `done`."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target:
        return None
    if target in UNNAMED or target.partition(".")[0] in UNNAMED:
        return text
    domain = env.domains["py"]
    found = [full for full in domain.objects if f".{full}".endswith(f".{target}")]
    # Of several, those of the module and class in whose docstring it is; else a name, not a method.
    for context in (node.get("py:class"), node.get("py:module")):
        if context and len(found) > 1:
            found = [each for each in found if each.startswith(f"{context}.")] or found
    found = [each for each in found if each in PUBLIC] or found
    if len(found) != 1:
        return None
    entry = domain.objects[found[0]]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, text, found[0])


def link_names(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Link code in texts that is a public name: `psnb.Trainer`, `coordinator.pause()`."""
    objects = app.env.domains["py"].objects
    for node in list(tree.findall(nodes.literal)):
        first, _, rest = node.astext().partition("(")[0].partition(".")
        name = f"{HANDLES.get(first, first)}.{rest}"
        if (
            not rest
            or name not in objects
            or isinstance(node.parent, (nodes.title, nodes.reference))
        ):
            continue
        entry = objects[name]
        link = make_refnode(app.builder, page, entry.docname, entry.node_id, node.deepcopy(), name)
        node.replace_self(link)


def check_pages(app: Sphinx, failure: Exception | None) -> None:
    """Refuse a site that shows readers where things are defined."""
    if failure or app.builder.name != "html":
        return
    pages = Path(app.outdir).rglob("*.html")
    if bad := [str(page) for page in pages if "psnb._src" in page.read_text()]:
        raise ExtensionError(f"psnb._src is on {', '.join(bad)}")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives and the listeners."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_directive("api", Api)
    app.add_directive("command-help", CommandHelp)
    app.connect("autodoc-process-bases", keep_public_bases)
    app.connect("autodoc-process-docstring", format_sections)
    app.connect("autodoc-process-signature", leave_out_signature)
    app.connect("autodoc-skip-member", leave_out_member)
    app.connect("doctree-read", unlink_words)
    app.connect("missing-reference", find_by_last_part)
    app.connect("doctree-resolved", link_names)
    app.connect("build-finished", check_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
