"""The synchronous face does the same, from any thread."""

import asyncio
import inspect
import os
import signal
import threading
import time

import pytest

import holdfast
from holdfast.core.errors import Refused
from holdfast.models.scripted import ScriptedModel

from .conftest import cell, replies


def test_a_script_can_run_resume_fork_and_read(tmp_path) -> None:
    model = ScriptedModel(replies(cell("x = globals().get('x', 0) + 1\nFINAL(x)")))
    with holdfast.open_sync(tmp_path / "store", model=model) as runtime:
        session = runtime.start()
        assert runtime.send(session, "one").value == 1
        fork = runtime.fork(session)
        assert runtime.send(fork, "two").value == 2
        assert runtime.resume(session) is None
        assert [info.id for info in runtime.sessions().sessions] == [fork.id, session.id]
        assert len(session.messages()) == 3
        for page in ("turns", "steps", "evals", "leaves", "calls", "heads", "edges"):
            assert isinstance(getattr(session, page)(), list)
        assert len(session.tree().nodes) == 2
        seen = []
        for item in session.subscribe():
            seen.append(item.type)
            if item.type == "head.published":
                break
        assert seen[0] == "session.started"
        assert isinstance(runtime.stop(session), holdfast.Stopped)
        assert runtime.state(session).status == "stopped"
    runtime.close()


def until(true) -> None:
    """Wait for something that another thread brings about."""
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def ctrl_c():
    """Heed Ctrl-C, which is ignored where the tests run in a shell's background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_after_ctrl_c_the_session_can_be_resumed_at_once() -> None:
    asked = threading.Event()

    async def respond(request):
        if not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return cell("FINAL(1)")

    def interrupt() -> None:
        asked.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    with holdfast.open_sync("memory:", model=ScriptedModel(respond)) as runtime:
        session = runtime.start()
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            runtime.send(session, "x")
        assert session.turns()[0].status == "interrupted"
        assert runtime.resume(session).value == 1


def test_a_closed_runtime_says_so_and_lets_nobody_wait() -> None:
    waiting = threading.Event()

    async def respond(request):
        waiting.set()
        await asyncio.Event().wait()

    runtime = holdfast.open_sync("memory:", model=ScriptedModel(respond))
    session = runtime.start()
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.extend(runtime.subscribe(session)), daemon=True),
        threading.Thread(target=lambda: _broken_off(runtime, session), daemon=True),
    ]
    for thread in threads:
        thread.start()
    waiting.wait(20)
    until(lambda: len(seen) >= 4)
    closing = [threading.Thread(target=runtime.close, daemon=True) for _ in range(2)]
    for thread in (*closing, *threads):
        if thread in closing:
            thread.start()
        thread.join(20)
        assert not thread.is_alive()
    for call in (lambda: runtime.send(session, "x"), lambda: runtime.state(session)):
        with pytest.raises(Refused, match="closed"):
            call()


def _broken_off(runtime, session) -> None:
    with pytest.raises(BaseException):  # noqa: B017
        runtime.send(session, "x")


def test_work_that_calls_back_into_the_blocking_face_is_refused_and_not_stuck() -> None:
    runtimes = []

    def respond(request):
        return cell(f"FINAL({len(runtimes[0].sessions().sessions)})")

    with holdfast.open_sync("memory:", model=ScriptedModel(respond)) as runtime:
        runtimes.append(runtime)
        session = runtime.start()
        result = runtime.send(session, "x")
    assert isinstance(result, holdfast.Failed)
    assert "from inside its own work" in result.error


FACES = [
    (holdfast.Runtime, holdfast.SyncRuntime),
    (holdfast.Session, holdfast.SyncSession),
]
OWN = {"wait", "iterated"}
"""What only the blocking face has: how its sessions wait."""


def _public(cls) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")} - OWN


@pytest.mark.parametrize(("face", "blocking"), FACES)
def test_both_faces_have_the_same_methods_with_the_same_arguments_and_types(face, blocking) -> None:
    assert _public(blocking) - {"runtime", "id", "store"} == _public(face) - {"engine", "claims"}
    for name in _public(face) & _public(blocking):
        one, other = getattr(face, name), getattr(blocking, name)
        if callable(one):
            assert _written(inspect.signature(one)) == _written(inspect.signature(other)), name


def test_opening_takes_the_same_arguments() -> None:
    one, other = inspect.signature(holdfast.open), inspect.signature(holdfast.open_sync)
    assert one.parameters == other.parameters


def _written(signature: inspect.Signature) -> tuple[list[str], str]:
    """Return parameters and result, with the names of the blocking face for all."""
    returned = str(signature.return_annotation)
    for async_name, name in (
        ("AsyncIterator", "Iterator"),
        ("Subscription", "Iterator[Live]"),
        ("SyncSession", "Session"),
    ):
        returned = returned.replace(async_name, name)
    # A read of the runtime takes an id, and a handle as well.
    return [str(item) for item in signature.parameters.values()], returned


@pytest.mark.parametrize("cls", [cls for pair in FACES for cls in pair])
def test_no_method_takes_options_that_it_does_not_name(cls) -> None:
    for name in _public(cls):
        method = getattr(cls, name)
        if callable(method):
            for item in inspect.signature(method).parameters.values():
                if item.kind is item.VAR_KEYWORD:
                    assert "SettingsOptions" in str(item.annotation), f"{cls.__name__}.{name}"
