"""What tests of the command line share."""

from __future__ import annotations

import signal

import pytest
from shells import Shell

# A suite that a script runs in its background ignores Ctrl-C, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path)
