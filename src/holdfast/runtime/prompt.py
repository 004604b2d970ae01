"""The system prompt: a versioned document of ours, with overlays for what this session has.

The text that a session starts with is stored with it and stamped by its hash, so that a later
release changes no running session's prompt and a reader sees exactly what the model was told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from holdfast.core.records import digest_id

PROMPT_NAME = "holdfast.system"
PROMPT_VERSION = 3

LEAF_CARD = """\
Model calls from code
- `lm(prompt, system=None)` asks a model one question and returns its text; put what it needs into
  the prompt. A call that fails raises a `RuntimeError` that says why.
- `map_lm(prompts, system=None)` asks many at once and returns the answers in order; a failed one
  is `{"failed": True, "index": i, "error": …}`. At most %d prompts in one call."""

ASK_CARD = """\
Asking a person
- `ask(question, schema=None)` asks the person in charge and returns the answer. It may take days;
  the code then goes on after it. `schema` is a JSON schema for the answer, such as
  `{"type": "boolean"}`; without one the answer is text. Ask only what you cannot find out."""


CHILD_CARD = """\
Child sessions from code
- `rlm(task, inputs={"name": value}, output=None)` gives a task to a session of its own, which works
  on it as you do: with code, the given variables and several steps. It returns a dict with `value`
  (what it gave to FINAL), `status`, `session`, `head`, `task`, `steps`, `usage` and `cost`. A child
  that fails raises `CallError`. Of a very large value it has only the beginning, as `preview`; then
  `open_value(found)` returns the whole of it.
- `map_rlm(tasks, inputs=None)` gives out many tasks at once (inputs: one dict for all, or a list
  with one each) and returns such dicts in order; a failed one has `failed`, `index` and `error`.
- `attach_rlm(found, task)` asks a session that has answered further: a new child starts with what
  that one knew, its variables included; `found` is what `rlm` returned.
- Use `lm` for a single question, `rlm` for what needs code or steps of its own. At most %d tasks in
  one call; sessions below this one go %d deep.
- `budget()` tells what may be spent and what is left: usd, tokens, calls, seconds. A child gets an
  equal share of what is left, or what you say: `budget={"tokens": 5000}`."""

OUTPUT_CARD = "The final value must fit this JSON schema, as plain data (dicts, lists, text): %s"


def compose(
    *,
    kernel_card: str,
    model_calls: bool,
    max_fanout: int,
    depth_left: int,
    tool_card: str,
    instructions: str,
    harness: str = "code",
    output_schema: Mapping[str, Any] | None = None,
) -> str:
    """Return the system text of a new session."""
    wanted = "" if output_schema is None else OUTPUT_CARD % json.dumps(output_schema)
    if harness == "tools":
        # What the tools are is told by their schemas; the rest is the caller's to say.
        texts = [text.strip() for text in (instructions, wanted) if text.strip()]
        return "\n\n".join(texts) + "\n" if texts else ""
    base = files("holdfast.runtime").joinpath("prompts/system.md").read_text(encoding="utf-8")
    overlays: Sequence[tuple[str, str]] = (
        ("", base),
        ("", kernel_card),
        ("", LEAF_CARD % max_fanout if model_calls else ""),
        ("", CHILD_CARD % (max_fanout, depth_left) if model_calls and depth_left > 0 else ""),
        ("", ASK_CARD),
        ("Host functions\n", tool_card),
        ("Final value\n", wanted),
        ("Instructions of the caller\n", instructions),
    )
    return "\n\n".join(title + text.strip() for title, text in overlays if text.strip()) + "\n"


def stamp(text: str) -> dict[str, object]:
    """Return what a session records about its prompt."""
    return {"name": PROMPT_NAME, "version": PROMPT_VERSION, "hash": digest_id(text.encode())}
