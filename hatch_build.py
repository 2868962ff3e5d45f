"""Makes the package's description from README.md, for those who read it outside the repository.

README.md links to files beside it, and shows pictures from there; from a wheel's metadata these
lead nowhere. ``pyproject.toml`` may have the addresses of the repository's files: then all become
absolute. While it has none, a link is its text, and pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = r"(?![a-z][a-z0-9+.-]*:|#|//)"
_PICTURE = re.compile(rf"!\[([^\]]*)\]\({_RELATIVE}([^)\s]+)\)")
_IMG = re.compile(rf"(<(?:img|source)\b[^>]*?\bsrc(?:set)?=\"){_RELATIVE}([^\"]+\"[^>]*>)")
_LINK = re.compile(rf"\[([^\]]*)\]\({_RELATIVE}([^)\s]+)\)")


class Description(MetadataHookInterface):
    """Fills in ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the description; hatchling calls this."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, self.config["links"], self.config["pictures"]),
        }


def absolute(text: str, links: str, pictures: str) -> str:
    """Return a text in Markdown without relative addresses.

    Parameters
    ----------
    text : str
        In which links and pictures may be relative; of those in HTML, ``<img>`` and ``<source>``.
    links, pictures : str
        What comes before a relative address; if empty, the text of a link stays, and no picture.
    """
    if pictures:
        text = _PICTURE.sub(rf"![\1]({pictures}\2)", text)
        text = _IMG.sub(rf"\1{pictures}\2", text)
    else:
        text = _IMG.sub("", _PICTURE.sub("", text))
    text = _LINK.sub(rf"[\1]({links}\2)" if links else r"\1", text)
    return re.sub(r"\n{3,}", "\n\n", text)  # where a picture was
