"""What every kernel must do, as tests: subclass `KernelContract` and give it a `kernel` fixture.

Differences between engines are declared in `kernel.flags`, and the tests ask them there.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import values
from holdfast.core.errors import KernelProtocolError
from holdfast.kernels.port import (
    MAX_KEPT_FILE_BYTES,
    Encoded,
    HostAnswer,
    HostCall,
    HostFunction,
    Kernel,
    KernelLimits,
    KernelSettings,
)
from holdfast.testing.kernel_driver import START_NS, SUSPEND, KernelDriver

LM = KernelSettings(functions=(HostFunction("lm"), HostFunction("look", pure=True)))
ASK = KernelSettings(
    functions=(
        HostFunction("ask"),
        HostFunction("look", pure=True),
        HostFunction("write"),
        HostFunction("lm"),
    )
)


def _echo(text: Any) -> str:
    return f"answer to {text}"


class KernelContract:
    """The contract of the kernel port."""

    async def test_the_value_of_the_last_expression_is_the_value_of_the_cell(
        self, kernel: Kernel
    ) -> None:
        driver = await KernelDriver.open(kernel)
        assert await driver.value("x = 20\nx * 2 + 2") == 42
        assert await driver.value("x") == 20
        assert await driver.value("x = 1") is None

    async def test_values_keep_their_type_on_the_way_out(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        assert await driver.value("{'a': [1, 2.5, None, True], 'b': (1, 'x')}") == {
            "a": [1, 2.5, None, True],
            "b": (1, "x"),
        }

    async def test_output_is_captured_with_its_true_size(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        result = await driver.run("print('hello')\nprint('x' * 100000)")
        assert result.stdout.head.startswith("hello\nxxx")
        assert result.stdout.size == 100007
        assert not result.stdout.whole

    async def test_an_error_points_at_the_models_line_and_keeps_what_came_before(
        self, kernel: Kernel
    ) -> None:
        driver = await KernelDriver.open(kernel)
        result = await driver.run("kept = 7\n\n1 / 0\nlost = 8")
        assert result.status == "error"
        assert result.error is not None
        assert result.error.type == "ZeroDivisionError"
        assert result.error.line == 3
        assert "1 / 0" in result.error.traceback
        assert await driver.value("kept") == 7
        assert (await driver.run("lost")).status == "error"

    async def test_a_syntax_error_runs_nothing(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        result = await driver.run("ran = 1\nx = = 2")
        assert result.status == "error"
        assert (await driver.run("ran")).status == "error"

    async def test_a_host_call_reaches_the_host_and_brings_its_answer(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel, LM, lm=_echo)
        assert await driver.value("lm('one') + '; ' + lm('two')") == "answer to one; answer to two"
        assert [call.key[0] for call in driver.recorded] == ["lm", "lm"]

    async def test_equal_calls_are_told_apart_by_their_number(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel, LM, lm=_echo)
        result = await driver.run("a = [lm('same'), lm('other'), lm('same')]")
        assert [call.ordinal for call in result.calls] == [0, 0, 1]
        assert result.calls[0].digest == result.calls[2].digest

    async def test_a_recorded_call_that_is_not_made_again_never_makes_a_cell_hang(
        self, kernel: Kernel
    ) -> None:
        first = await KernelDriver.open(kernel, LM, lm=_echo, look=_echo)
        for made, again, status in (
            ("look('a')", "lm('b')", "ok"),
            ("look('a')", "look('b')", "ok"),
            ("lm('a')", "look('b')", "diverged"),
            ("lm('a')", "lm('b')", "diverged"),
        ):
            await first.run(made)
            second = await KernelDriver.open(kernel, LM, lm=_echo, look=_echo)
            async with asyncio.timeout(30):
                assert (await second.run(again, recorded=first.recorded)).status == status

    async def test_a_failed_call_can_be_caught(self, kernel: Kernel) -> None:
        def fail(text: str) -> str:
            raise ValueError(f"no {text}")

        driver = await KernelDriver.open(kernel, LM, lm=fail)
        code = "try:\n    lm('x')\nexcept ValueError as error:\n    caught = str(error)\ncaught"
        assert await driver.value(code) == "no x"

    async def test_an_error_of_on_call_ends_the_cell_and_is_raised(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel, LM)
        await driver.run("before = 1")

        async def broken(call: HostCall) -> HostAnswer:
            raise KernelProtocolError("the log could not be written")

        with pytest.raises(KernelProtocolError, match="log could not be written"):
            await driver.session.evaluate(
                "before = 2\nlm('x')", started_at_ns=START_NS, on_call=broken
            )
        assert await driver.value("before") == 1

    async def test_final_fixes_its_value_and_ends_the_cell(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        result = await driver.run("found = [1]\nFINAL(found)\nfound.append(2)\nafter = 1")
        assert result.status == "final"
        assert result.final is not None
        assert values.decode(result.final.encoding, result.final.data) == [1]
        assert (await driver.run("after")).status == "error"

    async def test_calls_after_final_are_refused(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel, LM, lm=_echo)
        code = "try:\n    FINAL(1)\nfinally:\n    lm('late')"
        result = await driver.run(code)
        assert result.status == "final"
        assert driver.recorded == []

    async def test_final_of_something_that_is_no_data_is_an_error(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        result = await driver.run("FINAL(lambda: 1)")
        assert result.status == "error"
        assert result.final is None

    @pytest.mark.parametrize("code", ["FINAL(1, 2)", "FINAL(1, note=2)"])
    async def test_final_of_several_values_says_to_pass_a_tuple(
        self, kernel: Kernel, code: str
    ) -> None:
        driver = await KernelDriver.open(kernel)
        result = await driver.run(code)
        assert result.status == "error"
        assert result.final is None
        assert result.error is not None
        told = "FINAL(value) takes one value; pass a tuple or a dict for several"
        assert (result.error.type, result.error.message) == ("TypeError", told)

    async def test_inspect_pages_a_big_value(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        result = await driver.run("numbers = list(range(1000))\ninspect(numbers, 500)")
        assert "500" in result.stdout.head
        assert "1000" in result.stdout.head

    async def test_names_of_the_engine_are_repaired(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel, LM, lm=_echo)
        result = await driver.run("lm = 3\nFINAL = None")
        assert set(result.repaired) == {"lm", "FINAL"}
        assert await driver.value("lm('again')") == "answer to again"
        replaced = await driver.run("def lm(x): return x\ndef FINAL(value): return value\nlm(1)")
        assert set(replaced.repaired) == {"lm", "FINAL"}
        result = await driver.run("lm('again')\nFINAL(1)")
        assert (result.status, result.repaired) == ("final", ())

    async def test_a_cell_may_use_the_names_of_builtins(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        names = "type all any len list dict str int isinstance repr print sum locals getattr"
        result = await driver.run(f"kept = [1]\n{' = '.join(names.split())} = 3")
        assert (result.status, result.repaired) == ("ok", ())
        driver = await driver.reopen()
        result = await driver.run("FINAL([kept, type, len])")
        assert result.final is not None
        assert values.decode(result.final.encoding, result.final.data) == [[1], 3, 3]

    async def test_an_input_is_bound_and_kept(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        await driver.session.set_variable("context", Encoded(*values.encode({"docs": ["a", "b"]})))
        assert await driver.value("context['docs'][1]") == "b"
        await driver.reopen()
        assert await driver.value("context") == {"docs": ["a", "b"]}

    async def test_a_namespace_is_restored_from_its_checkpoint(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        await driver.run("a = [1, 2]\nb = {'x': a, 'y': (1, 2.5, None)}\ntext = 'é' * 70000")
        await driver.reopen()
        assert await driver.value("b['x'].append(3)\n(a, b['y'], len(text))") == (
            [1, 2, 3],
            (1, 2.5, None),
            70000,
        )

    async def test_functions_are_restored_where_the_engine_can(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        await driver.run("base = 10\ndef add(n):\n    return base + n")
        await driver.reopen()
        await driver.run("base = 20")
        if kernel.flags.functions_restorable:
            assert await driver.value("add(1)") == 21

    async def test_restoring_an_earlier_checkpoint_goes_back(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        await driver.run("step = 1")
        early = driver.manifest
        assert early is not None
        await driver.run("step = 2\nextra = 1")
        await driver.session.restore(early)
        assert await driver.value("step") == 1
        assert (await driver.run("extra")).status == "error"

    async def test_a_listing_names_type_and_preview(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        await driver.run("count = 3\nwords = ['a', 'b']")
        listed = {variable.name: variable for variable in await driver.session.variables()}
        assert set(listed) == {"count", "words"}
        assert "int" in listed["count"].type
        assert "3" in listed["count"].preview
        assert "list" in listed["words"].type

    async def test_a_rerun_is_answered_from_the_record(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel, LM, lm=_echo)
        code = "import time\nout = [lm('a'), lm('b'), time.time()]\nout"
        first = await driver.run(code)
        recorded = list(driver.recorded)
        await driver.session.restore(first.checkpoint.manifest if first.checkpoint else {})
        fresh = await KernelDriver.open(kernel, LM, lm=lambda text: pytest.fail("asked again"))
        again = await fresh.run(code, recorded=recorded)
        assert again.value is not None
        assert first.value is not None
        assert again.value.encoded == first.value.encoded

    async def test_a_rerun_that_does_not_make_a_recorded_call_has_diverged(
        self, kernel: Kernel
    ) -> None:
        driver = await KernelDriver.open(kernel, LM, lm=_echo)
        await driver.run("x = lm('a')")
        recorded = list(driver.recorded)
        fresh = await KernelDriver.open(kernel, LM, lm=_echo)
        result = await fresh.run("x = 1", recorded=recorded)
        assert result.status == "diverged"
        assert result.checkpoint is None
        assert (await fresh.run("x")).status == "error"

    async def test_a_runaway_cell_is_stopped_and_the_session_lives(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        await driver.run("before = 5")
        limits = KernelLimits(cpu_seconds=0.3, wall_seconds=20)
        result = await driver.run("while True:\n    pass", limits=limits)
        assert result.status == "limit"
        assert result.limit in ("cpu", "wall")
        assert await driver.value("before") == 5

    async def test_a_cancelled_cell_leaves_the_namespace_as_it_was(self, kernel: Kernel) -> None:
        asked = asyncio.Event()

        async def never(text: str) -> str:
            asked.set()
            await asyncio.Event().wait()
            return ""

        driver = await KernelDriver.open(kernel, LM, lm=never)
        await driver.run("state = 'old'")
        task = asyncio.ensure_future(driver.run("state = 'new'\nlm('x')"))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await driver.value("state") == "old"

    async def test_a_parked_session_goes_on(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel)
        await driver.run("x = [1]")
        await driver.session.park()
        assert await driver.value("x + [2]") == [1, 2]

    # Calls that wait for someone outside

    async def test_a_cell_that_waits_for_an_answer_is_given_up_and_goes_on_with_it(
        self, kernel: Kernel
    ) -> None:
        driver = await KernelDriver.open(kernel, ASK, ask=lambda question: SUSPEND)
        await driver.run("before = 1")
        code = "before = 2\nx = ask('how many?')\nx + before"
        result = await driver.run(code)
        assert result.status == "waiting"
        assert [call.function for call in result.waiting] == ["ask"]
        assert result.calls == result.waiting
        assert result.checkpoint is None
        driver.resolve(result.waiting[0], 40)
        result = await driver.run(code, recorded=driver.record)
        assert result.status == "ok"
        assert await driver.value("(x, before)") == (40, 2)

    async def test_the_namespace_of_a_given_up_cell_is_as_at_its_start(
        self, kernel: Kernel
    ) -> None:
        driver = await KernelDriver.open(kernel, ASK, ask=lambda question: SUSPEND)
        await driver.run("state = 'old'")
        assert (await driver.run("state = 'new'\nask('?')")).status == "waiting"
        assert await driver.value("state") == "old"

    async def test_a_loop_of_questions_waits_for_each_and_keeps_their_answers(
        self, kernel: Kernel
    ) -> None:
        driver = await KernelDriver.open(kernel, ASK, ask=lambda question: SUSPEND)
        code = "got = []\nfor n in range(3):\n    got.append(ask(f'question {n}'))\ngot"
        result = await driver.run(code)
        for n in range(3):
            assert result.status == "waiting"
            assert len(result.calls) == n + 1
            driver.resolve(result.waiting[0], n * 10)
            result = await driver.run(code, recorded=driver.record)
        assert result.status == "ok"
        assert await driver.value("got") == [0, 10, 20]

    async def test_an_answer_that_comes_in_time_is_taken_in_place(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel, ASK, ask=lambda question: SUSPEND)
        running = asyncio.ensure_future(driver.run("x = ask('quick?')\nx", give_up_seconds=30))
        await driver.asked.wait()
        driver.resolve(next(iter(driver.suspended)), "yes")
        result = await running
        assert (result.status, result.waiting) == ("ok", ())
        assert await driver.value("x") == "yes"

    async def test_a_waiting_cell_is_given_up_when_the_caller_asks_for_it(
        self, kernel: Kernel
    ) -> None:
        driver = await KernelDriver.open(kernel, ASK, ask=lambda question: SUSPEND)
        assert not await driver.session.give_up()
        running = asyncio.ensure_future(driver.run("x = ask('?')", give_up_seconds=None))
        await driver.asked.wait()
        assert await driver.session.give_up()
        assert (await running).status == "waiting"

    async def test_a_cell_is_not_given_up_while_the_host_is_still_busy_with_a_call(
        self, kernel: Kernel
    ) -> None:
        asked, answer = asyncio.Event(), asyncio.Event()

        async def slow(text: str) -> str:
            asked.set()
            await answer.wait()
            return text

        driver = await KernelDriver.open(kernel, ASK, lm=slow)
        running = asyncio.ensure_future(driver.run("lm('a')"))
        await asked.wait()
        assert not await driver.session.give_up()
        answer.set()
        assert (await running).status == "ok"

    async def test_two_threads_may_wait_and_be_answered_in_reverse_order(
        self, kernel: Kernel
    ) -> None:
        if not kernel.flags.threads:
            return
        driver = await KernelDriver.open(kernel, ASK, ask=lambda question: SUSPEND)
        code = (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(2) as pool:\n"
            "    got = list(pool.map(ask, ['first', 'second']))\ngot"
        )
        result = await driver.run(code)
        assert result.status == "waiting"
        first, second = sorted(result.waiting, key=result.calls.index)
        for key, value in ((second, "two"), (first, "one")):
            driver.resolve(key, value)
        assert [call.key for call in driver.record] == [second, first]
        result = await driver.run(code, recorded=driver.record)
        assert result.status == "ok", result.detail
        assert sorted(await driver.value("got")) == ["one", "two"]

    async def test_a_cell_runs_on_with_one_of_two_answers_and_waits_again(
        self, kernel: Kernel
    ) -> None:
        if not kernel.flags.threads:
            return
        driver = await KernelDriver.open(kernel, ASK, ask=lambda question: SUSPEND)
        code = (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(2) as pool:\n"
            "    got = list(pool.map(ask, ['first', 'second']))\ngot"
        )
        result = await driver.run(code)
        second = result.calls[-1]
        driver.resolve(second, "two")
        result = await driver.run(code, recorded=driver.record)
        assert result.status == "waiting"
        assert second not in result.waiting
        assert len(result.waiting) == 1
        driver.resolve(result.waiting[0], "one")
        assert (await driver.run(code, recorded=driver.record)).status == "ok"

    async def test_waiting_takes_no_time_from_the_limits(self, kernel: Kernel) -> None:
        driver = await KernelDriver.open(kernel, ASK, ask=lambda question: SUSPEND)
        limits = KernelLimits(wall_seconds=0.5, cpu_seconds=0.5)
        running = asyncio.ensure_future(
            driver.run("x = ask('?')\nx", limits=limits, give_up_seconds=None)
        )
        await driver.asked.wait()
        await asyncio.sleep(1.0)  # longer than the cell may take
        driver.resolve(next(iter(driver.suspended)), 1)
        assert (await running).status == "ok"

    # A re-run sees what it saw

    async def test_a_pure_answer_of_the_record_is_served_although_it_would_be_another_now(
        self, kernel: Kernel
    ) -> None:
        rows = ["a", "b"]
        driver = await KernelDriver.open(
            kernel, ASK, look=lambda: list(rows), ask=lambda question: SUSPEND
        )
        code = "rows = look()\nx = ask(f'{len(rows)} rows?')\n(rows, x)"
        result = await driver.run(code)
        assert [call.function for call in result.calls] == ["look", "ask"]
        rows.append("c")
        driver.resolve(result.waiting[0], "yes")
        result = await driver.run(code, recorded=driver.record)
        assert result.status == "ok", result.detail
        assert await driver.value("(rows, x)") == (["a", "b"], "yes")

    async def test_a_cell_that_rewrites_a_file_it_had_read_sees_what_it_saw(
        self, kernel: Kernel, tmp_path: Path
    ) -> None:
        path = tmp_path / "notes.txt"
        path.write_text("first")
        settings = replace(ASK, read_roots=(str(tmp_path),))

        def write(text: str) -> None:
            path.write_text(text)

        driver = await KernelDriver.open(
            kernel, settings, write=write, ask=lambda question: SUSPEND
        )
        driver.keeps_files = True
        code = (
            f"def read():\n    with open({str(path)!r}) as file:\n        return file.read()\n"
            "one = read()\nwrite(one + ' second')\ntwo = read()\nx = ask(two)\nthree = read()"
        )
        result = await driver.run(code)
        assert result.status == "waiting"
        path.write_text("by someone else")
        driver.resolve(result.waiting[0], "go on")
        result = await driver.run(code, recorded=driver.record)
        assert result.status == "ok", result.detail
        assert await driver.value("(one, two, x, three)") == (
            "first",
            "first second",
            "go on",
            "by someone else",
        )
        assert path.read_text() == "by someone else"

    async def test_a_file_too_large_to_keep_is_a_typed_refusal_of_the_call(
        self, kernel: Kernel, tmp_path: Path
    ) -> None:
        (tmp_path / "large.txt").write_bytes(b"x" * (MAX_KEPT_FILE_BYTES + 1))
        settings = replace(ASK, read_roots=(str(tmp_path),))
        driver = await KernelDriver.open(kernel, settings, ask=lambda question: SUSPEND)
        driver.keeps_files = True
        result = await driver.run(
            f"with open({str(tmp_path / 'large.txt')!r}) as file:\n    text = file.read()\n"
            "ask('go on?')"
        )
        assert result.status == "error"
        assert result.error is not None
        assert "large.txt" in result.error.message
        assert "FileNotKept" in result.error.traceback

    async def test_what_diverged_lists_the_calls_of_the_record(self, kernel: Kernel) -> None:
        first = await KernelDriver.open(kernel, ASK, lm=_echo)
        await first.run("lm('a')\nlm('b')")
        second = await KernelDriver.open(kernel, ASK, lm=_echo)
        result = await second.run("x = 1", recorded=first.recorded)
        assert result.status == "diverged"
        assert list(result.calls) == [call.key for call in first.recorded]
