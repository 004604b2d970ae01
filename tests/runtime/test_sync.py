"""The synchronous face does the same, from any thread."""

import holdfast
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
        assert [info.id for info in runtime.sessions().sessions] == [fork, session]
        assert len(runtime.read("messages", session)) == 3
        seen = []
        for item in runtime.follow(session):
            seen.append(item.type)
            if item.type == "head.published":
                break
        assert seen[0] == "session.started"
        assert isinstance(runtime.stop(session), holdfast.Stopped)
        assert runtime.state(session).status == "stopped"
    runtime.close()
