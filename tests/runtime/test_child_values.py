"""What children return: values of any size, and the form that their parent asked for."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.stores.verify import verify

from .conftest import Lab, cell
from .test_children import by_task

LARGE = 400_000


@pytest.mark.parametrize("kernel", ["cpython", "monty"])
async def test_a_large_value_stays_outside_and_code_opens_it_with_one_call(
    lab: Lab, kernel: str
) -> None:
    code = "found = rlm('long')\ntext = open_value(found)\nprint(found['preview'][:12])"
    runtime = await lab.open(
        by_task(
            {
                "root": [
                    cell(code),
                    cell("FINAL([found['value'], found['ref'], len(text), text[-3:]])"),
                ],
                "long": [cell(f"FINAL('x' * {LARGE} + 'end')")],
            }
        )
    )
    session = await runtime.start(kernel=kernel)
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    value, ref, size, end = result.value
    assert (value, size, end) == (None, LARGE + 3, "end")
    (child,) = [fact.child for fact in await lab.facts(session.id, "call.requested") if fact.child]
    (put,) = await lab.facts(child, "turn.put")
    assert ref == put.final.id
    shown = sum(len(message.text) for message in lab.requests[-1].messages)
    assert shown < 5_000, "the transcript has the beginning at most"
    opened = [
        fact
        for fact in await lab.facts(session.id, "call.resolved")
        if fact.call_id.startswith("c1-open_value")
    ]
    assert [fact.result.id for fact in opened] == [ref], "by its content, it is stored once"
    for one in (session.id, child):
        assert (await verify(lab.store, one)).ok


async def test_a_value_that_is_in_its_envelope_is_opened_too_and_nothing_else_is(lab: Lab) -> None:
    code = """
def told(found):
    try:
        return open_value(found)
    except Exception as error:
        return type(error).__name__
small = rlm('small')
made_up = {'session': small['session'], 'ref': 'sha256:' + '0' * 64}
FINAL([told(small), told(made_up), told({'session': other, 'ref': 'x'}), told(7), told({'ref': 1})])
"""

    runtime = await lab.open(by_task({"root": [cell(code)], "small": [cell("FINAL([1, 2])")]}))
    other = await runtime.start()
    await other.send("small")
    result = await (await runtime.start()).send("root", inputs={"other": other.id[:-1]})
    assert isinstance(result, holdfast.Final), result
    small, made_up, foreign, number, no_session = result.value
    assert small == [1, 2]
    assert (made_up, foreign) == ("PayloadNotFound", "SessionNotFound")
    assert (number, no_session) == ("TypeError", "TypeError")


async def test_a_value_that_json_cannot_hold_is_repaired_once_then_a_typed_failure(
    lab: Lab,
) -> None:
    code = "FINAL(map_rlm(['mends', 'never', 'plain'], output='json'))"

    def respond(request: ModelRequest) -> str:
        task = request.first_user_text.split("\n")[0]
        if task == "root":
            return cell(code)
        if task == "plain" or (task == "mends" and request.ordinal == 1):
            return cell("FINAL({'n': [1, None, 'x']})")
        return cell("FINAL({'z': 1j})")

    runtime = await lab.open(respond)
    result = await (await runtime.start()).send("root")
    assert isinstance(result, holdfast.Final), result
    mends, never, plain = result.value
    assert mends["value"] == plain["value"] == {"n": [1, None, "x"]}
    assert never["code"] in ("invalid_output", "output_invalid")
    assert never["error"].startswith("invalid_output: ")
    asked = [r.first_user_text.split("\n")[0] for r in lab.requests]
    assert (asked.count("mends"), asked.count("never"), asked.count("plain")) == (2, 2, 1)


async def test_a_child_that_answers_in_text_may_be_asked_for_json(lab: Lab) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    code = (
        f"FINAL(rlm('data', harness='tools', output={schema!r})['value']['n']"
        " + rlm('any', harness='tools', output='json')['value'][0])"
    )

    def respond(request: ModelRequest) -> str:
        task = request.first_user_text.split("\n")[0]
        return {"root": cell(code), "data": '{"n": 5}', "any": "[37]"}[task]

    runtime = await lab.open(respond)
    result = await (await runtime.start()).send("root")
    assert isinstance(result, holdfast.Final), result
    assert result.value == 42
