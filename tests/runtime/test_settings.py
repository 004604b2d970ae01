"""Settings that cannot be used are refused by name, whatever they were made of."""

from __future__ import annotations

import pytest

from holdfast.core.errors import InvalidSettings
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
