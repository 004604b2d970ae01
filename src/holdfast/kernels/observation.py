"""What the model is shown of a cell: small things whole, big ones as kind, size and two ends.

Nothing is cut without saying so and saying how much there really is, so the model can decide to
page or to slice instead of guessing.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.kernels.port import CellResult, Excerpt, ValueView

OUTPUT_CHARACTERS = 10_000
ERROR_OUTPUT_CHARACTERS = 2_000
VALUE_CHARACTERS = 1_000
PREVIEW_CHARACTERS = 600
TRACEBACK_CHARACTERS = 6_000
DETAIL_CHARACTERS = 2_000
NOTES = 20
NOTE_CHARACTERS = 200

_COUNTED = (" characters", " bytes")

_LIMITS = {
    "memory": "went over its memory limit",
    "cpu": "went over its CPU time limit",
    "wall": "went over its time limit",
    "output": "printed more than its output limit",
    "unwind": "went on after FINAL",
}


def nudge() -> str:
    """Return what a reply without code is answered with."""
    return (
        "There was no code to run: the reply has no fenced Python block. Write one ```python block "
        "to go on, and call FINAL(value) in it when you have the answer."
    )


def observe(cells: Sequence[str], *, final: bool, skipped: int) -> str:
    """Return the observation of a reply from those of its cells."""
    parts = list(cells)
    if skipped and not final:
        parts.append(
            f"{_count(skipped, 'later block')} did not run. What the blocks before defined is kept."
        )
    if not final:
        parts.append("FINAL was not called: the turn is still open.")
    return "\n\n".join(parts)


def observe_cell(result: CellResult, index: int = 0, total: int = 1) -> str:
    """Return what the model is shown of one cell."""
    lines = [f"Block {index + 1}:"] if total > 1 else []
    lines += _stream(result.stdout, "", OUTPUT_CHARACTERS)
    lines += _stream(result.stderr, "stderr: ", ERROR_OUTPUT_CHARACTERS)
    if result.value is not None:
        lines.append(f"=> {show_value(result.value)}")
    lines += _ending(result)
    lines += _notes(result)
    if len(lines) == (1 if total > 1 else 0):
        lines.append("(no output and no value)")
    return "\n".join(lines)


def observe_death(message: str, index: int = 0, total: int = 1) -> str:
    """Return what the model is shown of a cell whose worker died."""
    head = f"Block {index + 1}:\n" if total > 1 else ""
    return (
        f"{head}ERROR: the interpreter ended while the cell was running "
        f"({_cut(message, DETAIL_CHARACTERS)}). Variables are as they were before this cell."
    )


def show_value(value: ValueView) -> str:
    """Return a value whole if it fits, else its kind, size, head and tail."""
    text = value.text
    if text.whole and text.size <= VALUE_CHARACTERS:
        return text.head
    # How long the rest is was not counted, but for text: the kind says how large the value is.
    counted = text.whole or value.kind.endswith(_COUNTED)
    ends = _ends(text, PREVIEW_CHARACTERS, counted=counted)
    return f"«{_cut(value.kind, NOTE_CHARACTERS)}» {ends}"


def _stream(text: Excerpt, label: str, fit: int) -> list[str]:
    if not text.size:
        return []
    if text.whole and text.size <= fit:
        return [label + text.head.rstrip("\n")]
    return [label + _ends(text, fit).rstrip("\n")]


def _ends(text: Excerpt, fit: int, *, counted: bool = True) -> str:
    """Return the head and the tail of a text with what lies between them counted, if it was."""
    source_tail = text.tail if not text.whole else text.head
    head = text.head[: fit - fit // 3]
    room = min(fit // 3, text.size - len(head))
    tail = source_tail[-room:] if room > 0 else ""
    left_out = text.size - len(head) - len(tail)
    if left_out <= 0:
        return head + tail
    if not counted:
        return f"{head} […most of it left out…] {tail}"
    return f"{head} […{left_out} of {text.size} characters left out…] {tail}"


def _cut(text: str, fit: int) -> str:
    """Return a text that a worker wrote, within bounds whatever the worker says."""
    return text if len(text) <= fit else _ends(Excerpt(text, "", len(text)), fit)


def _notes(result: CellResult) -> list[str]:
    notes = [
        f"Note: {'a part of ' if item.partly else ''}`{_cut(item.name, NOTE_CHARACTERS)}` is not "
        f"kept for later cells ({_cut(item.reason, NOTE_CHARACTERS)})."
        for item in result.unrestorable[:NOTES]
    ]
    more = len(result.unrestorable) - NOTES
    if more > 0:
        notes.append(f"Note: {_count(more, 'more name')} are not kept for later cells.")
    notes += [
        f"Note: `{_cut(name, NOTE_CHARACTERS)}` belongs to the engine; your assignment to it was "
        "undone."
        for name in result.repaired[:NOTES]
    ]
    more = len(result.repaired) - NOTES
    if more > 0:
        notes.append(f"Note: {_count(more, 'more name')} belong to the engine.")
    return notes


def _ending(result: CellResult) -> list[str]:
    match result.status:
        case "final":
            kept = "" if result.namespace_kept else f" {_namespace(kept=False)}"
            return [f"FINAL was called.{kept}"]
        case "error" if result.error is not None:
            return [f"ERROR:\n{_cut(result.error.traceback.rstrip(), TRACEBACK_CHARACTERS)}"]
        case "limit":
            reason = _LIMITS.get(result.limit or "", "went over a limit")
            lines = [
                f"ERROR: the cell {reason} and was stopped. {_namespace(result.namespace_kept)}"
            ]
            if result.error is not None and result.error.line is not None:
                lines.append(f"It was at line {result.error.line}.")
            return lines
        case "diverged":
            made = _count(len(result.calls), "call")
            return [
                f"ERROR: this cell was interrupted and did not run the same way again: "
                f"{_cut(result.detail, DETAIL_CHARACTERS)}. It had made {made}. "
                f"{_namespace(kept=False)}"
            ]
    return []


def _namespace(kept: bool) -> str:
    if kept:
        return "What it had assigned until then is kept."
    return "Variables are as they were before this cell."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
