"""What a caller may ask of any store: each argument is looked at before anything is done.

What is refused is named, with what to pass instead. Ids have their own rules, in `core/ids.py`, and
what may be appended is decided in `core/log.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec

from holdfast.core.errors import InvalidInput, InvalidRef, check_kind
from holdfast.core.facts import InputKind, SessionStarted
from holdfast.core.ids import check_content_id, check_id, check_key
from holdfast.core.payloads import Slot, check_slot, to_record
from holdfast.core.replay import Copy
from holdfast.core.values import is_text
from holdfast.stores.port import InboxDraft, Lease, PendingFilter, SessionFilter, Transient
from holdfast.stores.tenancy import ALL_TENANTS
from holdfast.stores.waits import milliseconds

LARGEST = 2**62
"""No position or count is larger; sums of two still fit into 64 bits."""
LONGEST_GRACE = 1e10

_INBOX_KINDS = frozenset(get_args(InputKind))


def check_started(started: SessionStarted) -> None:
    """Refuse what no session can start with."""
    check_kind(started, SessionStarted, "start of a session")
    check_id(started.tenant, "tenant")


def check_lease(lease: Lease) -> str:
    """Return the session of a lease; refuse what is none."""
    check_kind(lease, Lease, "lease")
    return check_id(lease.session)


def as_tuples(*given: Iterable[Any]) -> tuple[tuple[Any, ...], ...]:
    """Return each as a tuple: all are looked at more than once, and iterators can be read once."""
    try:
        return tuple(map(tuple, given))
    except TypeError as error:
        raise InvalidInput(f"pass what belongs to an append as lists: {error}") from error


def check_payload(item: Slot) -> bytes:
    """Return the bytes of a value; refuse what is none, or comes without them."""
    check_slot(item)
    if item.data is None:
        raise InvalidInput(f"payload {item.id!r} comes without its bytes")
    return item.data


def check_transient(item: Transient) -> None:
    """Refuse what nobody who follows could be shown."""
    check_kind(item, Transient, "live item")
    check_id(item.session)


def check_page(
    after: int, before: int | None, limit: int, types: Sequence[str] | None = None
) -> None:
    """Refuse bounds that no page has, and types that no event has."""
    if isinstance(types, str):
        raise InvalidInput(f"{types!r} is one type; pass a list of them")
    if types is not None:
        check_kind(types, Collection, "list of types")
        check_texts("type of event", *types)
    end = 1 if before is None else before
    whole = all(type(bound) is int for bound in (after, end, limit))
    if not (whole and 0 <= after <= LARGEST and 1 <= end <= LARGEST and 1 <= limit <= LARGEST):
        raise InvalidInput(
            f"no page is after {after!r}, before {before!r} with limit {limit!r}; bounds are whole "
            "numbers, exclusive, start at 0, the limit is at least 1 and none is beyond 2**62"
        )


def check_grace(seconds: float) -> float:
    """Return the grace of a collection; refuse what is not a span of time."""
    if type(seconds) not in (int, float) or not -LONGEST_GRACE <= seconds <= LONGEST_GRACE:
        raise InvalidInput(
            f"a grace of {seconds!r} seconds is not a span of time; pass a number up to "
            f"{LONGEST_GRACE:g}"
        )
    return seconds


def check_filter(where: SessionFilter | None) -> None:
    """Refuse a filter that names what no session can have."""
    if where is None:
        return
    check_kind(where, SessionFilter, "filter")
    check_scope(where.tenant)
    for name, what in (("agent", "agent name"), ("parent", "session id")):
        if (value := getattr(where, name)) is not None:
            check_id(value, what)
    if where.label is not None and (type(where.label) is not tuple or len(where.label) != 2):
        raise InvalidInput(f"{ascii(where.label)[:80]} is not a label; pass its name and its value")
    check_texts("filter", where.name, where.status, where.kind, *(where.label or ()))
    if where.waiting is not None and type(where.waiting) is not bool:
        raise InvalidInput(f"{ascii(where.waiting)[:80]} does not say whether something waits")


def check_pending_filter(where: PendingFilter | None) -> None:
    """Refuse a filter that names what no wait can have."""
    if where is None:
        return
    check_kind(where, PendingFilter, "filter of waits")
    check_scope(where.tenant)
    for name, what in (("agent", "agent name"), ("session", "session id")):
        if (value := getattr(where, name)) is not None:
            check_id(value, what)
    check_texts("filter", where.kind, where.assignee)


def check_scope(tenant: str | None) -> None:
    """Refuse what a listing cannot be of."""
    if tenant is not None and tenant != ALL_TENANTS:
        check_id(tenant, "tenant")


def check_moment(moment: str) -> int:
    """Return a moment in milliseconds since the epoch; refuse what is not one."""
    check_texts("moment", moment)
    found = milliseconds(moment)
    if found is None:
        raise InvalidInput(f"{ascii(moment)[:80]} is not a valid moment; pass one in ISO 8601")
    return found


def check_texts(what: str, *texts: str | None) -> None:
    """Refuse what is not a text that a store can hold."""
    for text in texts:
        if text is not None and not (type(text) is str and is_text(text)):
            raise InvalidInput(f"{ascii(text)[:80]} is not a text that a {what} can name")


def check_posts(posts: Sequence[tuple[str, InboxDraft]]) -> None:
    """Refuse posts that no session could take; their content may be a payload of the sender."""
    for post in posts:
        if type(post) is not tuple or len(post) != 2:
            raise InvalidInput(f"{ascii(post)[:80]} is not a valid post: pass session id and item")
        check_id(post[0])
        check_draft(post[1], bare=True)


def check_draft(draft: InboxDraft, *, bare: bool = False) -> None:
    """Refuse an inbox item that nobody could consume; a `bare` one may name a stored payload."""
    check_kind(draft, InboxDraft, "inbox item")
    check_key(draft.key, "inbox key")
    if draft.call_id is not None:
        check_key(draft.call_id, "call id")
    if type(draft.kind) is not str or draft.kind not in _INBOX_KINDS:
        raise InvalidInput(f"unknown inbox kind {draft.kind!r}; use one of {sorted(_INBOX_KINDS)}")
    if draft.wait is not None and (type(draft.wait) is not int or not 0 < draft.wait <= LARGEST):
        raise InvalidInput(f"{draft.wait!r} is not a valid number of a wait; they count from 1")
    check_texts("principal", draft.by)
    content = draft.content
    if content is None:
        return
    if bare and content.data is None and not content.inline:
        check_slot(content)
        check_content_id(content.id)
    else:
        check_payload(content)
    if content.encoding == "manifest" or content.erased is not None:
        # What a manifest leads to is proven by appends alone.
        raise InvalidRef(f"{content!r} is not a value that an inbox item can hold")
    to_record(content)  # which refuses what cannot be written


def check_audit(record: Mapping[str, Any]) -> bytes:
    """Return an audit record as it is stored; refuse what is not a JSON object."""
    check_kind(record, Mapping, "record of a model call")
    try:
        return msgspec.json.encode(dict(record))
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"a record of a model call is a JSON object: {error}") from error


def check_audit_bounds(before: str | None, keep: int | None) -> str:
    """Return the moment before which audit rows go, as rows write it; refuse other bounds."""
    if keep is not None and (type(keep) is not int or not 0 <= keep <= LARGEST):
        raise InvalidInput(f"{keep!r} is not a valid number of audit rows to keep")
    if before is None:
        return ""
    moment = datetime.fromtimestamp(check_moment(before) / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def check_copy(copy: Copy) -> None:
    """Refuse a copy that is none."""
    check_kind(copy, Copy, "copy of a session that `prove` made")
    check_id(copy.session)
    if not copy.events:
        raise InvalidInput(
            f"the copy of session {copy.session!r} holds no events; pass its whole log"
        )
