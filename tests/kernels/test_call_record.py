"""The record of an eval: which answer is released when, and what waits for what."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from holdfast.kernels.call_record import CallRecord, Diverged
from holdfast.kernels.port import Encoded, FileRead, HostAnswer, HostCall, RecordedCall


def _answer(text: str) -> HostAnswer:
    return HostAnswer.ok(Encoded("text", text.encode()), 1)


def _call(name: str, ordinal: int = 0, *, pure: bool = False) -> HostCall:
    return HostCall(name, Encoded("json", b"{}"), "digest", ordinal, pure, (), {})


def _recorded(name: str, *, pure: bool = False, answered: bool = True) -> RecordedCall:
    return RecordedCall(name, "digest", 0, pure, _answer(name) if answered else None)


class Asked:
    """A host that answers with the name of the function, and remembers what it was asked."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def __call__(self, call: HostCall) -> HostAnswer:
        self.names.append(call.function)
        return _answer(call.function)


def _ask(record: CallRecord, call: HostCall, got: list[str]) -> None:
    record.ask(call, lambda answer: got.append(answer.value.data.decode() if answer.value else ""))


async def test_recorded_answers_come_in_recorded_order_whoever_asks_first() -> None:
    host, got = Asked(), list[str]()
    record = CallRecord(host, [_recorded("a"), _recorded("b"), _recorded("c")])
    _ask(record, _call("c"), got)
    _ask(record, _call("b"), got)
    assert got == []
    assert record.stuck
    _ask(record, _call("a"), got)
    assert got == ["a", "b", "c"]
    assert host.names == []
    record.check_end()


async def test_a_new_call_with_effects_waits_for_the_recorded_ones_and_a_pure_one_does_not() -> (
    None
):
    host, got = Asked(), list[str]()
    record = CallRecord(host, [_recorded("old")])
    _ask(record, _call("new"), got)
    _ask(record, _call("pure", pure=True), got)
    await asyncio.sleep(0)
    assert host.names == ["pure"]
    _ask(record, _call("old"), got)
    await record.wait_for_answers()
    assert host.names == ["pure", "new"]
    assert got[0] == "old"
    assert set(got) == {"old", "pure", "new"}


async def test_a_recorded_call_without_an_answer_is_asked_again() -> None:
    host, got = Asked(), list[str]()
    record = CallRecord(host, [_recorded("open", answered=False)])
    _ask(record, _call("open"), got)
    await record.wait_for_answers()
    assert host.names == ["open"]
    assert got == ["open"]


async def test_a_second_run_finds_the_answers_of_the_first() -> None:
    host, got = Asked(), list[str]()
    record = CallRecord(host)
    _ask(record, _call("a"), got)
    _ask(record, _call("b"), got)
    await record.wait_for_answers()
    record.begin()
    again: list[str] = []
    _ask(record, _call("b"), again)
    _ask(record, _call("a"), again)
    assert again == got == ["a", "b"]
    assert host.names == ["a", "b"]


async def test_an_end_without_a_recorded_call_has_diverged_unless_the_call_was_pure() -> None:
    CallRecord(Asked(), [_recorded("look", pure=True)]).check_end()
    with pytest.raises(Diverged, match="1 recorded call"):
        CallRecord(Asked(), [_recorded("send")]).check_end()


async def test_a_file_that_changed_has_diverged() -> None:
    record = CallRecord(Asked(), [_recorded("send")], files=[FileRead("/a", "1")])
    record.read([FileRead("/a", "1"), FileRead("/b", "2")])
    with pytest.raises(Diverged, match="/a"):
        record.read([FileRead("/a", "2")])


async def test_a_file_may_change_past_the_record() -> None:
    record = CallRecord(Asked(), [_recorded("send")], files=[FileRead("/a", "1")])
    _ask(record, _call("send"), [])
    record.read([FileRead("/a", "2")])
    assert record.files.recent == [FileRead("/a", "2")]


async def test_equal_calls_are_counted_per_run() -> None:
    record = CallRecord(Asked())
    assert [record.ordinal("f", "d") for _ in range(3)] == [0, 1, 2]
    assert record.ordinal("g", "d") == 0
    record.begin()
    assert record.ordinal("f", "d") == 0


async def test_a_host_that_fails_or_gives_up_is_reported() -> None:
    for error in (ValueError("no"), asyncio.CancelledError()):

        async def fail(call: HostCall, error: BaseException = error) -> HostAnswer:
            raise error

        record = CallRecord(fail)
        reported: list[BaseException] = []
        record.on_failure = reported.append
        _ask(record, _call("a"), [])
        with pytest.raises(type(error)):
            await record.wait_for_answers()
        assert reported == [error]


async def test_a_recorded_answer_of_a_pure_call_that_is_not_made_again_holds_nothing_up() -> None:
    host, got = Asked(), list[str]()
    record = CallRecord(host, [_recorded("gone", pure=True), _recorded("old")])
    _ask(record, _call("old"), got)
    assert got == ["old"]
    _ask(record, _call("new", pure=True), got)
    await record.wait_for_answers()
    assert got == ["old", "new"]
    _ask(record, _call("gone", pure=True), got)
    assert got == ["old", "new", "gone"]
    assert host.names == ["new"]


async def test_a_pure_answer_keeps_its_turn_while_another_thread_may_still_ask_for_it() -> None:
    got: list[str] = []
    record = CallRecord(Asked(), [_recorded("look", pure=True), _recorded("old")])
    record.threads = 2
    _ask(record, _call("old"), got)
    assert got == []
    _ask(record, _call("look", pure=True), got)
    assert got == ["look", "old"]
    record.begin()
    record.threads = 2
    _ask(record, _call("old"), got)
    assert record.skip()
    assert got == ["look", "old", "old"]
    assert not record.skip()


async def test_what_a_cell_passed_to_its_calls_is_not_kept() -> None:
    record = CallRecord(Asked())
    call = HostCall("f", Encoded("json", b"{}"), "digest", 0, True, (Asked(),), {})
    argument = weakref.ref(call.args[0])
    _ask(record, call, [])
    await record.wait_for_answers()
    assert record.calls == {call.key: None}
    del call
    assert argument() is None
