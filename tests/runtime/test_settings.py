"""Settings that cannot be used are refused by name, whatever they were made of."""

from __future__ import annotations

from decimal import Decimal

import pytest

from holdfast.core.errors import InvalidSettings
from holdfast.models.prices import declared_prices
from holdfast.runtime.settings import resolve


@pytest.mark.parametrize("depth", [201, 950, 100_000])
def test_model_options_nested_too_deeply_are_refused(depth):
    options = '{"a":' * depth + "1" + "}" * depth
    with pytest.raises(InvalidSettings, match=r"model_options is .*use a JSON object") as caught:
        resolve({"model_options": options}, environment={})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("depth", [300, 100_000])
@pytest.mark.parametrize("name", ["model", "max_steps"])
def test_a_configuration_file_nested_too_deeply_is_refused(tmp_path, depth, name):
    (tmp_path / "config.toml").write_text(f"{name} = {'[' * depth}{']' * depth}")
    with pytest.raises(InvalidSettings):
        resolve(folder=tmp_path, environment={})


@pytest.mark.parametrize(
    ("name", "wrong"), [("model", ["x"]), ("max_steps", {"a": 1}), ("max_steps", 1.5)]
)
def test_a_value_of_another_type_is_refused_with_the_name_of_the_setting(name, wrong):
    with pytest.raises(InvalidSettings, match=f"{name} \\(given\\) is "):
        resolve({name: wrong}, environment={})


def test_prices_are_declared_as_text_as_a_table_and_in_python(tmp_path):
    name = "openai-compatible:qwen3@http://localhost:8000/v1"
    table = f'[prices."{name}"]\ninput = "0.10"\noutput = "0.40"\n'
    (tmp_path / "config.toml").write_text(table)
    from_file = resolve(folder=tmp_path, environment={}).settings.prices
    text = '{"%s": {"input": "0.10", "output": "0.40"}}' % name  # noqa: UP031
    from_environment = resolve(environment={"HOLDFAST_PRICES": text}).settings.prices
    given = resolve({"prices": {name: ("0.10", "0.40")}}, environment={}).settings.prices
    assert from_file == from_environment == given
    assert declared_prices(given)[name].output == Decimal("0.40")


@pytest.mark.parametrize("wrong", [{"prices": "x"}, {"prices": {"m": 1}}, {"retry": "often"}])
def test_a_price_or_a_retry_that_cannot_be_used_is_named(wrong):
    with pytest.raises(InvalidSettings, match=next(iter(wrong)).rstrip("s")):
        resolve(wrong, environment={})


def test_retry_is_a_word_or_a_number():
    assert resolve(environment={}).settings.retry == "deadline"
    assert resolve({"retry": 3}, environment={}).settings.retry == "3"
