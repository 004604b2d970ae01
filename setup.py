"""The description for package indexes: README.md, whose relative links lead nowhere there.

They lead to the repository where HOLDFAST_REPOSITORY names its address at build time, as in
https://example.org/holdfast/blob/v0.1.0; without it they are plain text that names the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from setuptools import setup

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def description(text: str, repository: str | None) -> str:
    """Return a page in which no link is relative."""
    if repository:
        base = repository.rstrip("/")
        return _LINK.sub(lambda link: f"[{link[1]}]({base}/{link[2]})", text)
    return _LINK.sub(lambda link: f"{link[1]} (`{link[2]}`)", text)


if __name__ == "__main__":
    readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setup(
        long_description=description(readme, os.environ.get("HOLDFAST_REPOSITORY")),
        long_description_content_type="text/markdown",
    )
