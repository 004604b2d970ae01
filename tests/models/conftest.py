from __future__ import annotations

import pytest
from hypothesis import settings

from holdfast.core.messages import Message, user
from holdfast.models.port import ModelRequest

# How long an example takes says nothing on a busy machine.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture
def make_request():
    def make(*messages: Message, **fields) -> ModelRequest:
        return ModelRequest(
            messages or (user("Say hello."),), **{"max_output_tokens": 256, **fields}
        )

    return make
