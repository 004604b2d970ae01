"""Model names: what they may say, what they must not hold, and what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.core.errors import InvalidSettings
from holdfast.models.choose import model_from_name
from holdfast.models.port import Model


@pytest.mark.parametrize("name", ["", "gpt-4o", "openai:", ":x", "openai-compatible:x"])
def test_a_name_that_is_none_says_what_names_look_like(name):
    with pytest.raises(InvalidSettings, match=r"PROVIDER:MODEL|needs the server's address"):
        model_from_name(name)


def test_an_unknown_provider_is_a_typed_error():
    with pytest.raises(InvalidSettings, match="nobody:model-1"):
        model_from_name("nobody:model-1")


@pytest.mark.parametrize("name", ["openai:gpt-5-mini", "anthropic:claude-sonnet-5-5"])
def test_a_missing_key_names_the_variable_to_set(name, monkeypatch):
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InvalidSettings, match="API_KEY"):
        model_from_name(name)


@pytest.mark.parametrize(
    "url", ["https://me:sk-hidden@host/v1", "https://host/v1?api-key=sk-hidden"]
)
def test_a_name_that_holds_a_key_is_refused_without_repeating_it(url):
    with pytest.raises(InvalidSettings, match="environment") as caught:
        model_from_name(f"openai-compatible:m@{url}")
    assert "sk-hidden" not in str(caught.value)


def test_model_names_may_hold_colons_slashes_and_at_signs(monkeypatch):
    for name in (
        "openai-compatible:org/m:7b@2024@http://localhost:1/v1",
        "ollama:qwen3:32b",
    ):
        model = model_from_name(name)
        assert isinstance(model, Model)
        assert model.name == name


@pytest.mark.parametrize(
    ("absent", "name", "extra"),
    [
        ("pydantic_ai", "openai:gpt-5-mini", "openai"),
        ("pydantic_ai", "mistral:large", "models"),
        ("anthropic", "anthropic:claude-sonnet-5-5", "anthropic"),
        ("openai", "ollama:llama3.3", "openai"),
        ("google.genai", "google:gemini-3-pro", "google"),
        ("boto3", "bedrock:amazon.nova-pro-v1:0", "bedrock"),
    ],
)
def test_a_missing_extra_is_named(absent, name, extra):
    code = (
        f"import sys; sys.modules[{absent!r}] = None\n"
        "from holdfast.models.choose import model_from_name\n"
        "from holdfast.errors import ExtraMissing\n"
        f"try: model_from_name({name!r})\n"
        "except ExtraMissing as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'holdfast[{extra}]'" in run.stdout


def test_scripts_and_the_port_load_no_provider_code():
    code = (
        "import sys\n"
        "import holdfast.models.choose, holdfast.models.scripted\n"
        "print([m for m in ('pydantic', 'pydantic_ai', 'openai', 'httpx2') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
