"""A bell hands things from threads to an event loop, with an eventfd and without one."""

import asyncio
import os
import threading

import pytest

from holdfast.stores.bell import Bell


class PlainLoop(asyncio.SelectorEventLoop):
    """A loop that cannot watch descriptors for others, as some cannot."""

    def add_reader(self, fd, callback, *args):
        raise NotImplementedError


@pytest.fixture(params=[asyncio.SelectorEventLoop, PlainLoop])
def loop(request):
    loop = request.param()
    yield loop
    loop.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_what_many_threads_ring_is_heard_once_and_in_each_threads_order(loop):
    heard = []
    done = asyncio.Event()

    def hear(item):
        heard.append(item)
        if len(heard) == 2000:
            done.set()

    async def main():
        bell = Bell(loop, hear)

        def ring(name):
            for number in range(500):
                bell.ring((name, number))

        threads = [threading.Thread(target=ring, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(done.wait(), 20)
        for thread in threads:
            thread.join()
        bell.close()

    loop.run_until_complete(main())
    for name in "abcd":
        assert [number for who, number in heard if who == name] == list(range(500))


def test_closing_hands_over_what_is_left_and_the_descriptor(loop):
    heard = []

    async def main():
        before = descriptors()
        bell = Bell(loop, heard.append)
        bell.ring("left")
        await asyncio.to_thread(bell.close)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert descriptors() == before
        bell.ring("late")  # nobody is there any more, and nothing happens
        assert heard[:1] == ["left"]

    loop.run_until_complete(main())


def test_a_bell_of_a_closed_loop_rings_for_nobody(loop):
    heard = []

    async def main():
        return Bell(loop, heard.append)

    before = descriptors()
    bell = loop.run_until_complete(main())
    loop.close()
    bell.ring("late")
    bell.close()
    bell.ring("later")
    assert heard == []
    assert descriptors() <= before


def test_what_rang_beside_something_that_ends_the_loop_is_heard_when_it_runs_again(loop):
    heard = []

    def hear(item):
        heard.append(item)
        if item == 1:
            raise SystemExit
        if item == 2:
            done.set()

    async def ring(bell):
        for item in range(3):
            bell.ring(item)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    done = asyncio.Event()
    bell = Bell(loop, hear)
    with pytest.raises(SystemExit):
        loop.run_until_complete(ring(bell))
    loop.run_until_complete(asyncio.wait_for(done.wait(), 10))
    assert heard == [0, 1, 2]
    bell.close()
    loop.run_until_complete(asyncio.sleep(0))


def test_what_rings_while_others_are_heard_waits_for_the_loop_to_turn(loop):
    turns, heard = [], []
    done = asyncio.Event()

    def hear(item):
        heard.append((item, len(turns)))
        if item < 3:
            bell.ring(item + 1)
        else:
            done.set()

    async def turn():
        bell.ring(0)
        while not done.is_set():
            turns.append(1)
            await asyncio.sleep(0)

    bell = Bell(loop, hear)
    loop.run_until_complete(asyncio.wait_for(turn(), 10))
    assert [item for item, _ in heard] == [0, 1, 2, 3]
    assert len({passed for _, passed in heard}) == 4
    bell.close()
    loop.run_until_complete(asyncio.sleep(0))


def test_a_bell_lets_go_of_its_descriptor_whatever_its_last_item_does(loop):
    def hear(_):
        raise SystemExit

    before = descriptors()
    bell = Bell(loop, hear)
    bell.close()
    bell.ring(0)
    with pytest.raises(SystemExit):
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.run_until_complete(asyncio.sleep(0.01))
    assert descriptors() == before
