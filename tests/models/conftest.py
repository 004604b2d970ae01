from __future__ import annotations

import pytest

from holdfast.core.messages import Message, user
from holdfast.models.port import ModelRequest


@pytest.fixture
def make_request():
    def make(*messages: Message, **fields) -> ModelRequest:
        return ModelRequest(
            messages or (user("Say hello."),), **{"max_output_tokens": 256, **fields}
        )

    return make
