"""Agents and tools for review.yaml that work offline, in any git repository.

holdfast workflow run examples/review.yaml --with examples/review_app.py --var base=HEAD~1
"""

import json
import subprocess
from pathlib import Path

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel


@holdfast.tool(effect="pure")
def git_changed_files(base: str, folder: str) -> dict[str, list[str]]:
    """List the files that changed since a commit."""
    words = ["git", "diff", "--name-only", base]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return {"files": done.stdout.split()}


@holdfast.tool(effect="idempotent")
def git_commit_file(path: str, text: str) -> dict[str, str]:
    """Write a file; the run commits what its nodes leave behind."""
    Path(path).write_text(text, encoding="utf-8")
    return {"wrote": path}


def review(request: ModelRequest) -> str:
    """Find one thing in every file."""
    file = request.first_user_text.split()[1]
    found = {"line": 1, "severity": "low", "text": "read it again"}
    return f"```python\nFINAL({{'file': {file!r}, 'findings': [{found!r}]}})\n```"


def edit(request: ModelRequest) -> str:
    """Merge the reviews into one page."""
    text = request.first_user_text
    items = json.loads(text[text.index("[") : text.index("\n")])
    lines = [f"- {one['file']}: {len(one['findings'])} finding(s)" for one in items]
    page = "# Review\n\n" + "\n".join(lines) + "\n"
    return f"```python\nFINAL({{'markdown': {page!r}, 'blockers': 0}})\n```"


AGENTS = [
    holdfast.Agent("reviewer", model=ScriptedModel(review, name="scripted-reviewer")),
    holdfast.Agent("editor", model=ScriptedModel(edit, name="scripted-editor")),
]
TOOLS = [git_changed_files, git_commit_file]
