"""Owners: who is alive, judged by clock and process table."""

import os
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace

import pytest

from holdfast.core.errors import HandleForked, StoreFailed
from holdfast.stores.owner import Owner, boot_id, process_start, ticks
from holdfast.stores.port import HEARTBEAT_SECONDS


@pytest.fixture
def owner():
    return Owner(lambda _: None, lease_seconds=15)


def test_a_fresh_heartbeat_is_alive(owner):
    sign = owner.heartbeat()
    assert sign.is_alive()
    assert 14 < sign.expires_in() <= 15
    assert str(os.getpid()) in sign.holder


def test_an_expired_heartbeat_is_dead(owner):
    sign = owner.heartbeat()
    assert not replace(sign, ticks=ticks() - 16).is_alive()


def test_within_one_boot_a_jump_of_the_wall_clock_changes_nothing(owner):
    sign = owner.heartbeat()
    assert replace(sign, wall=0.0).is_alive()
    assert not replace(sign, ticks=ticks() - 16, wall=time.time() + 9999).is_alive()


def test_another_boot_is_judged_by_the_wall_clock(owner):
    sign = replace(owner.heartbeat(), boot="another-boot", ticks=0.0)
    assert sign.is_alive()
    assert not replace(sign, wall=time.time() - 16).is_alive()


def test_a_process_that_is_gone_is_dead_at_once(owner):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not replace(owner.heartbeat(), pid=ended.pid).is_alive()


def test_a_zombie_is_gone():
    child = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    child.stdout.read()  # ends when the process has closed it on its way out
    deadline = time.monotonic() + 10
    while process_start(child.pid) is not None and time.monotonic() < deadline:
        pass
    assert process_start(child.pid) is None
    child.wait()
    child.stdout.close()


def test_another_process_with_the_same_pid_is_not_the_owner(owner):
    assert not replace(owner.heartbeat(), started="1").is_alive()


def test_a_process_in_another_namespace_is_judged_by_the_clock_alone(owner):
    sign = replace(owner.heartbeat(), namespace="pid:[1]", pid=2**22 + 1)
    assert sign.is_alive()


def test_a_stored_heartbeat_is_fresh_for_half_of_the_time_to_the_next(owner):
    assert not owner.is_fresh()
    sign = owner.heartbeat()
    owner.stored(sign)
    assert owner.is_fresh()
    owner.stored(replace(sign, ticks=sign.ticks - HEARTBEAT_SECONDS / 2))
    assert not owner.is_fresh()


def test_this_boot_has_an_id():
    assert boot_id()


def test_the_heartbeat_goes_on_without_the_caller_and_ends_with_stop():
    beats = threading.Semaphore(0)
    owner = Owner(lambda _: beats.release(), lease_seconds=0.03)
    owner.start()
    owner.start()
    for _ in range(3):
        assert beats.acquire(timeout=10)
    owner.stop()
    while beats.acquire(blocking=False):
        pass
    assert not beats.acquire(timeout=0.1)


def test_a_renewal_that_fails_is_tried_again(caplog):
    beats = threading.Semaphore(0)

    def renew(_):
        beats.release()
        raise OSError("disk away")

    owner = Owner(renew, lease_seconds=0.03)
    owner.start()
    assert beats.acquire(timeout=10)
    assert beats.acquire(timeout=10)
    owner.stop()
    assert "was not stored" in caplog.text


def test_a_forked_child_is_refused(owner):
    owner.check_process()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            owner.check_process()
        except HandleForked:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_heartbeat_that_gets_no_thread_is_a_failure_and_can_be_started_later(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    beats = threading.Semaphore(0)
    owner = Owner(lambda _: beats.release(), lease_seconds=0.03)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(StoreFailed, match="ulimit"):
        owner.start()
    monkeypatch.undo()
    owner.start()
    assert beats.acquire(timeout=10)
    owner.stop()
