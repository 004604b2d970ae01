"""A store with something on every page: a talk with an error, leaves, a child, forks, a run."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.core.messages import assistant
from holdfast.models.port import ModelReply, ModelRequest, Usage
from holdfast.models.scripted import ScriptedModel
from holdfast.workflows.reading import read_text
from holdfast.workflows.registry import registry
from holdfast.workflows.runs import Runs

TALK = "harbour-fees"
FORK = "harbour-fees-strict"
RUN = "review-fees"

STEPS = {
    "Which of these quays": [
        "I look at the shape of the data before I read any of it.\n```python\nquays = ['north', "
        "'east', 'south', 'west']\nfees = {'north': 120, 'east': 95, 'south': None, 'west': 410}\n"
        "print(len(quays), 'quays,', sorted(fees))\n```",
        "Reading a fee takes judgement, so I ask about each one.\n```python\nsaid = map_lm([f'Is "
        "the fee of the {quay} quay, {fees[quay]}, unusual?' for quay in quays])\nprint(said)\n```",
        "```python\ntotal = sum(fees[quay] + 0 for quay in quays)\nprint(total)\n```",
        "The south quay has no fee at all. I leave it out and have the rest checked.\n```python\n"
        "known = {quay: fee for quay, fee in fees.items() if fee is not None}\nreport = "
        "rlm('Check these fees: ' + str(known))\nFINAL({'total': sum(known.values()), "
        "'unusual': ['west'], 'unread': ['south'], 'check': report})\n```",
    ],
    "Check these fees": ["```python\nFINAL('west is three times the others')\n```"],
    "Write to the west quay": [
        "The notice goes out in our name, so I ask before it is sent.\n```python\nsend_notice(to='"
        "west', text='Your fee of 410 is three times that of the others.')\nFINAL('sent')\n```",
    ],
    "And without the west": ["```python\nFINAL({'total': 215, 'unusual': []})\n```"],
    "And all of them": ["```python\nFINAL({'total': 625, 'unusual': ['west']})\n```"],
    "Ask for a date": [
        "```python\nanswer = ask('When is the meeting?', schema={'type': 'object', 'properties': "
        "{'date': {'type': 'string', 'maxLength': 20, 'title': 'Date'}, 'room': {'enum': ['A', 'B']"
        ", 'title': 'Room'}, 'remote': {'type': 'boolean', 'title': 'Remote too'}}, 'required': "
        "['date', 'room']})\nFINAL(answer)\n```",
    ],
}

FLOW = """
workflow: fee_review
loops: {revise: 2}
budget: {usd: "6.00", executions: 40}
nodes:
  gather: {tool: work, inputs: {what: gather the fees}, next: split}
  split: {router: all, next: [compare, law]}
  compare: {tool: work, inputs: {what: compare them}, next: meet}
  law: {tool: work, inputs: {what: read the rules}, next: meet}
  meet: {tool: work, join: all, inputs: {what: put it together}, next: write}
  write:
    tool: draft
    inputs: {round: "{{ loop.revise.iteration }}"}
    publish: review
    next: judge
  judge:
    compute: {round: loop.revise.iteration}
    next: [{to: write, loop: revise}, {to: gate}]
  gate:
    human: "Publish with two open findings?"
    assignee: lena
    output: {answer: publish | wait}
    next: [{to: publish, when: output.answer == "publish"}, {to: hold}]
  publish: {tool: work, inputs: {what: publish}, next: done}
  hold: {tool: work, inputs: {what: hold}, next: done}
"""
DRAFTS = (
    "# Review of the harbour fees\n\nVerdict: request changes\n\n1. The west quay asks 410.\n"
    "2. The south quay has no fee.\n",
    "# Review of the harbour fees\n\nVerdict: request changes\n\n1. The west quay asks 410, three "
    "times the others.\n2. The south quay has no fee; the rules allow that.\n",
    "# Review of the harbour fees\n\nVerdict: publish with two findings\n\n1. The west quay asks "
    "410, three times the others.\n2. The south quay has no fee; the rules allow that.\n\n"
    "## Tests\n\nThe sums were checked twice.\n",
)


def respond(request: ModelRequest) -> ModelReply:
    """Answer by what was asked first; every answer has a price."""
    if request.purpose == "leaf":
        text = "no" if "410" not in request.prompt else "yes, it is three times the others"
        return _reply(text, "0.0031", 210)
    said = [message.text for message in request.messages if message.role == "user"]
    told = next((key for key in STEPS if said and said[-1].startswith(key)), "Check these fees")
    since = 0
    for message in reversed(request.messages):
        if message.role == "user":
            break
        since += message.role == "assistant"
    steps = STEPS[told]
    return _reply(steps[min(since, len(steps) - 1)], "0.0184", 2140)


def _reply(text: str, usd: str, tokens: int) -> ModelReply:
    usage = Usage(input_tokens=tokens, output_tokens=len(text) // 4, cached_tokens=tokens // 3)
    return ModelReply(assistant(text), "scripted", usage=usage, cost_usd=usd)


@holdfast.tool(effect="once", approval=True, assignee="ana")
def send_notice(to: str, text: str) -> str:
    """Send a notice."""
    return f"sent to {to}"


@holdfast.tool(effect="idempotent")
def work(what: str) -> dict[str, str]:
    """Do some work."""
    return {"did": what}


@holdfast.tool(effect="idempotent")
def draft(round: int) -> str:
    """Write a draft."""
    return DRAFTS[min(int(round), len(DRAFTS) - 1)]


async def opened(store: Any, **options: Any) -> Any:
    """Return a runtime over a store, with the agent of the scene."""
    agent = holdfast.Agent("harbour", tools=[send_notice])
    model = ScriptedModel(respond, name="scripted", latency_seconds=options.pop("latency", 0.0))
    settings = {"kernel": "monty", "max_usd": "2.50", "audit": "full"} | options
    return await holdfast.open(store, model=model, agents=[agent], **settings)


async def play(runtime: Any) -> Any:
    """Fill the store; return the runs."""
    talk = await runtime.start(agent="harbour", session_id=TALK, labels={"team": "quay"})
    await talk.send("Which of these quays asks an unusual fee?")
    fork = await runtime.fork(TALK, session_id=FORK)
    await fork.send("And without the west quay?")
    await talk.send("And all of them?")
    await talk.send("Write to the west quay.")
    other = await runtime.start(agent="harbour", session_id="meeting", labels={"team": "quay"})
    await other.send("Ask for a date.")
    runs = Runs(runtime, registry(tools=[work, draft]))
    flow, problems = read_text(FLOW, "")
    assert problems == [], problems
    await runs.run(flow, run_id=RUN)
    return runs
