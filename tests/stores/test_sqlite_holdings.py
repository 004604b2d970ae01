"""What a handle remembers of its leases, whatever becomes of the commits."""

from holdfast.stores.port import Lease
from holdfast.stores.sqlite import holdings
from holdfast.stores.sqlite.holdings import Holdings


def lease(epoch, session="talk"):
    return Lease(session, "o-me", epoch)


def test_a_lease_is_held_until_it_is_left():
    held = Holdings()
    assert not held
    held.take(lease(1))
    assert (bool(held), held.epoch("talk"), held.left("talk")) == (True, 1, None)
    held.leave(lease(2))
    held.leave(lease(1, "other"))
    assert held.epoch("talk") == 1
    held.leave(lease(1))
    assert (bool(held), held.epoch("talk"), held.left("talk")) == (False, None, 1)


def test_a_failed_commit_leaves_what_was_held_before_it():
    held = Holdings()
    held.take(lease(1))
    held.take(lease(2))
    held.undo(lease(1))  # an earlier one: not the one that is held
    assert held.epoch("talk") == 2
    held.undo(lease(2))
    assert held.epoch("talk") == 1
    held.undo(lease(1))
    assert not held


def test_a_commit_that_is_done_over_and_fails_leaves_nothing():
    held = Holdings()
    held.take(lease(1))
    held.take(lease(1))
    held.undo(lease(1))
    assert not held


def test_not_every_session_that_ever_was_is_remembered():
    held = Holdings()
    for n in range(holdings.REMEMBERED + 5):
        held.take(lease(1, f"talk-{n}"))
        held.leave(lease(1, f"talk-{n}"))
    assert len(held._left) == 5
