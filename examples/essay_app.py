"""Agents for essay.yaml that answer from a script: try the loop and the human gate offline.

holdfast workflow run examples/essay.yaml --with examples/essay_app.py --var topic=rivers
"""

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel


def write(request: ModelRequest) -> str:
    """Write a draft, longer when there are notes."""
    notes = "Score" not in request.first_user_text and "shorter" in request.first_user_text
    text = "Rivers begin as rain." + (" They end in the sea." if notes else "")
    return f"```python\nFINAL({{'title': 'On rivers', 'text': {text!r}}})\n```"


def judge(request: ModelRequest) -> str:
    """Like the second draft better than the first."""
    score = 9 if "sea" in request.first_user_text else 5
    return (
        f"```python\nFINAL({{'score': {score}, 'notes': 'not shorter: say where they end'}})\n```"
    )


AGENTS = [
    holdfast.Agent("writer", model=ScriptedModel(write, name="scripted-writer")),
    holdfast.Agent("critic", model=ScriptedModel(judge, name="scripted-critic")),
]
