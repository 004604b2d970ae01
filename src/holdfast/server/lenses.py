"""Pages of one session: lenses on one log, with one selection and one position in the address."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from holdfast.core.errors import HoldfastError, InvalidInput, NotFound
from holdfast.core.events import Event
from holdfast.core.ids import check_key
from holdfast.core.payloads import from_record, is_slot
from holdfast.server.barcode import tone_of
from holdfast.server.comparison import compare
from holdfast.server.costs_page import costs
from holdfast.server.fork_plan import fork_points
from holdfast.server.lanes import lanes
from holdfast.server.page import API, form_of, page
from holdfast.server.payload_pages import payload_view, slots_of
from holdfast.server.requests import Actor, Caller, Reader, SessionId
from holdfast.server.session_pages import head_values, page_values, turns_window
from holdfast.server.step_pages import sight
from holdfast.server.timeline import moment, timeline
from holdfast.stores.port import SessionStore
from holdfast.views.costs import CostView
from holdfast.views.documents import event_document
from holdfast.views.turns import TurnView
from holdfast.views.variables import read_variables

router = APIRouter()

PAGE_EVENTS = 200
At = Annotated[int | None, Query(ge=0, le=2**53)]
Selected = Annotated[str, Query(max_length=80)]
TYPES = (
    ("", "All types"),
    ("turn", "Turns"),
    ("step", "Steps"),
    ("message", "Messages"),
    ("eval", "Cells"),
    ("call", "Calls"),
    ("leaf", "Leaf calls"),
    ("head", "Heads"),
)
FAMILIES = {
    "turn": ("turn.started", "turn.put", "turn.reopened"),
    "step": ("step.started", "step.put"),
    "message": ("message.appended",),
    "eval": ("eval.added",),
    "leaf": ("leaf.called",),
    "head": ("head.published",),
    "call": (
        "call.requested",
        "call.dispatched",
        "call.suspended",
        "call.approved",
        "call.denied",
        "call.extended",
        "call.resolved",
    ),
}


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event in a list: what it says in a line."""

    seq: int
    at: str
    type: str
    tone: str
    since: int | None
    says: str


async def _lens(
    asked: Caller, session_id: str, at: int | None, selected: str
) -> tuple[SessionStore, dict[str, Any]]:
    """Return the store to read from, now or as of an event, and what every lens shows."""
    states = asked.serving.states
    store, values = await page_values(asked.runtime.store, states, session_id, at, selected)
    if values["at"] is None:
        after = values["info"].seq
        values["stream"] = f"{API}/sessions/{session_id}/stream?after={after}"
    return store, values | {"nav": "runs" if values["info"].kind == "run" else "sessions"}


@router.get("/s/{session_id}")
async def transcript_page(
    asked: Reader,
    session_id: SessionId,
    turn: At = None,
    at: At = None,
    sel: Selected = "",
) -> Response:
    """Show a session as a transcript, live at its end or as of an event."""
    store, values = await _lens(asked, session_id, at, sel)
    window = await turns_window(store, session_id, turn)
    kind, _, number = sel.partition(":")
    step = next(
        (
            item
            for one in window["turns"]
            for item in one.steps
            if kind == "step" and str(item.step) == number
        ),
        None,
    )
    variables = (await read_variables(store, session_id)).variables if values["at"] else ()
    here = values["driver"] == asked.runtime.store.owner
    return await page(
        "session.html",
        asked,
        tab="transcript",
        key=f"page-{secrets.token_hex(8)}",
        step=step,
        variables=variables,
        driven_here=here,
        **window,
        **values,
    )


@router.get("/s/{session_id}/export.html")
async def export_page(asked: Reader, session_id: SessionId) -> Response:
    """Return the session as one file that stands alone."""
    from holdfast.server.html_export import exported

    text = await exported(asked.runtime.store, session_id)
    headers = {"content-disposition": f'attachment; filename="{session_id}.html"'}
    return Response(text.encode(), headers=headers, media_type="text/html; charset=utf-8")


@router.get("/s/{session_id}/events")
async def events_page(
    asked: Reader,
    session_id: SessionId,
    after: At = None,
    goto: At = None,
    type: Annotated[str, Query(max_length=20)] = "",
    at: At = None,
    sel: Selected = "",
) -> Response:
    """Show raw events, a page at a time; without a position those at the end."""
    store, values = await _lens(asked, session_id, at, sel)
    chosen = await _selected_event(store, session_id, sel)
    if goto is not None:
        after = max(0, goto - 1)
    if after is None and chosen is not None:
        after = max(0, chosen.seq - PAGE_EVENTS // 2)
    end = values["info"].seq
    begin = max(0, end - PAGE_EVENTS) if after is None else after
    types = list(FAMILIES[type]) if type in FAMILIES else None
    events = await store.read_events(session_id, after=begin, limit=PAGE_EVENTS, types=types)
    return await page(
        "events.html",
        asked,
        tab="events",
        heading="Events",
        events=_rows(events),
        first=begin + 1,
        last=events[-1].seq if events else begin,
        type=type if type in FAMILIES else "",
        TYPES=TYPES,
        virtual=end > PAGE_EVENTS and types is None and values["at"] is None,
        payloads=[] if chosen is None else list(slots_of(chosen.data)),
        **_event_values(chosen),
        **values,
    )


def _rows(events: list[Event]) -> list[EventRow]:
    rows: list[EventRow] = []
    before: float | None = None
    for event in events:
        now = moment(event.at)
        since = None if before is None else int((now - before) * 1000)
        rows.append(
            EventRow(event.seq, event.at, event.type, tone_of(event.type)[0], since, says(event))
        )
        before = now
    return rows


def says(event: Event) -> str:
    """Return what an event says, in a line: its plain fields, and values by kind and size."""
    parts = []
    for name, value in event.data.items():
        if isinstance(value, str | int | bool) and value not in ("", False):
            parts.append(f"{name} {str(value)[:60]}")
        elif is_slot(value):
            item = from_record(value)
            parts.append(f"{name}: {item.kind}, {item.size} bytes")
    return " · ".join(parts)[:300]


async def _selected_event(store: SessionStore, session_id: str, sel: str) -> Event | None:
    kind, _, number = sel.partition(":")
    if kind != "event" or not number.isdecimal() or len(number) > 15:
        return None
    found = await store.read_events(session_id, after=int(number) - 1, limit=1)
    return found[0] if found and found[0].seq == int(number) else None


def _event_values(event: Event | None) -> dict[str, Any]:
    return {"event": event, "event_document": None if event is None else event_document(event)}


@router.get("/s/{session_id}/timeline")
async def timeline_page(
    asked: Reader,
    session_id: SessionId,
    turn: At = None,
    time: Annotated[str, Query(max_length=10)] = "",
    at: At = None,
    sel: Selected = "",
) -> Response:
    """Show what was done as bars over time."""
    store, values = await _lens(asked, session_id, at, sel)
    newest = values["info"].turns
    end = newest if turn is None else min(max(1, turn), newest)
    first = max(1, end - 4)
    begin, until = await _turn_bounds(asked, store, session_id, first, end)
    view = await timeline(store, session_id, begin, until, squeezed=time != "true")
    return await page(
        "timeline.html",
        asked,
        tab="timeline",
        heading="Timeline",
        view=view,
        turn=turn,
        older=first - 1 if first > 1 else None,
        newer=end < newest,
        true_time=time == "true",
        **_event_values(await _selected_event(store, session_id, sel)),
        **values,
    )


async def _turn_bounds(
    asked: Caller, store: SessionStore, session_id: str, first: int, last: int
) -> tuple[int, int | None]:
    """Return between which positions some turns are."""
    found: list[TurnView] = []
    after = 0
    while page_of := await asked.runtime.turns(session_id, after=after, limit=500):
        found += [item for item in page_of if item.turn in (first, last + 1)]
        after = page_of[-1].seq
    seqs = {item.turn: item.seq for item in found}
    begin = 0 if first <= 1 else seqs.get(first, 1) - 1
    return begin, seqs.get(last + 1)


@router.get("/s/{session_id}/variables")
async def variables_page(
    asked: Reader, session_id: SessionId, at: At = None, sel: Selected = ""
) -> Response:
    """Show the namespace at the last checkpoint before an event."""
    store, values = await _lens(asked, session_id, at, sel)
    found = await read_variables(store, session_id)
    note = f"as the engine {found.engine} kept them" if found.engine else "nothing was kept yet"
    return await page(
        "variables.html",
        asked,
        tab="variables",
        heading="Variables",
        note=note,
        variables=found.variables,
        **values,
    )


@router.get("/s/{session_id}/costs")
async def costs_page(
    asked: Reader, session_id: SessionId, at: At = None, sel: Selected = ""
) -> Response:
    """Show what a session cost, by turn, model and purpose."""
    store, values = await _lens(asked, session_id, at, sel)
    view = await costs(store, session_id)
    delegated = values["state"].delegated
    return await page(
        "costs.html",
        asked,
        tab="costs",
        heading="Costs",
        view=view,
        delegated=delegated if delegated.calls else None,
        **values,
    )


@router.get("/s/{session_id}/lineage")
async def lineage_page(
    asked: Reader,
    session_id: SessionId,
    unfold: Annotated[str, Query(max_length=200)] = "",
    sel: Selected = "",
) -> Response:
    """Show parents, children and forks, with what they cost."""
    _, values = await _lens(asked, session_id, None, sel)
    family = await asked.runtime.tree(session_id)
    rows, more = lanes(family, unfold)
    total = CostView()
    for node in family.nodes:
        total = total.plus(node.cost)
    return await page(
        "lineage.html",
        asked,
        tab="lineage",
        heading="Lineage",
        rows=rows,
        more=more,
        total=len(family.nodes),
        sum=total,
        **values,
    )


@router.get("/s/{session_id}/step/{number}")
async def step_page(asked: Reader, session_id: SessionId, number: int) -> Response:
    """Show what the model was sent at a step."""
    runtime = asked.runtime
    view = await sight(runtime, asked.serving.states, session_id, number)
    state = await runtime.state(session_id)
    return await page(
        "step.html",
        asked,
        nav="sessions",
        number=number,
        view=view,
        usage=view.step.usage or {},
        steps=state.counters.get("step", 0),
        info=await runtime.store.session_info(session_id),
    )


@router.get("/s/{session_id}/payload/{payload_id}")
async def payload_page(asked: Reader, session_id: SessionId, payload_id: str) -> Response:
    """Show a stored value: what it is, where it is used, and a preview."""
    store = asked.runtime.store
    info = await store.session_info(session_id)
    view = await payload_view(store, session_id, payload_id)
    return await page("payload.html", asked, nav="sessions", info=info, view=view)


@router.get("/s/{session_id}/fork")
async def fork_page(asked: Reader, session_id: SessionId, at: At = None) -> Response:
    """Offer to fork a session, and say what will be run again."""
    return await _fork_page(asked, session_id, at, "")


async def _fork_page(asked: Caller, session_id: str, at: int | None, note: str) -> Response:
    store, values = await _lens(asked, session_id, at, "")
    del store
    place = values["at"] or values["tip"]
    states = asked.serving.states
    points = await fork_points(asked.runtime.store, states, session_id, place)
    values["stream"] = None  # nothing moves under a form
    return await page(
        "fork.html",
        asked,
        tab="",
        heading="Fork",
        points=points,
        note=note,
        key=f"fork-{secrets.token_hex(8)}",
        **values,
    )


@router.post("/s/{session_id}/fork")
async def fork_form(asked: Actor, request: Request, session_id: SessionId) -> Response:
    """Fork a session as a form says; the same form sent twice makes one fork."""
    form = await form_of(request)
    key = check_key(form.get("key") or secrets.token_hex(8), "key of a fork")
    kind, _, value = form.get("from", "").partition(":")
    if kind == "step" and not value.isdecimal():
        raise InvalidInput("the step to fork from is not a number")
    given = form.get("at", "")
    new_id = asked.hub.new_id(asked.principal.tenant, f"fork:{session_id}", key)
    try:
        try:
            await asked.runtime.state(new_id)
        except NotFound:
            await asked.runtime.fork(
                session_id,
                value if kind == "head" and value else None,
                step=int(value) if kind == "step" else None,
                model=form.get("model", "").strip() or None,
                session_id=new_id,
            )
    except HoldfastError as error:
        at = int(given) if given.isdecimal() else None
        return await _fork_page(asked, session_id, at, str(error))
    text = form.get("message", "")
    if text.strip():
        await asked.hub.leave(asked.runtime, new_id, text, {}, "queue", "first")
    elif form.get("do") == "go":
        asked.hub.go_on(asked.runtime, new_id)
    return RedirectResponse(f"/s/{new_id}", 303)


@router.get("/compare")
async def compare_page(
    asked: Reader,
    a: Annotated[str, Query(max_length=200)] = "",
    b: Annotated[str, Query(max_length=200)] = "",
    s: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """Show two sessions side by side from their first difference."""
    marked = (s or [])[:2]
    a, b = a or (marked[0] if marked else ""), b or (marked[1] if len(marked) > 1 else "")
    store = asked.runtime.store
    values: dict[str, Any] = {"view": None, "one": None, "other": None}
    if a and b:
        values = {
            "one": await head_values(store, a),
            "other": await head_values(store, b),
            "view": await compare(store, a, b),
        }
    return await page("compare.html", asked, nav="sessions", a=a, b=b, **values)
