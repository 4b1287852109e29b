"""The reference names every option, setting and variable."""

import argparse
from pathlib import Path

import msgspec
import pytest

from ekiben.cli import parser
from ekiben.doors.prometheus import METRICS
from ekiben.preprocess import ImageDeclaration
from ekiben.settings import VARIABLES
from ekiben.types import Batching, Instances, ModelSettings, QueuePolicy

_REFERENCE = Path(__file__).parents[1] / "docs" / "reference.md"


def _commands() -> dict[str, argparse.ArgumentParser]:
    (choices,) = [action.choices for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert isinstance(choices, dict)
    return choices


@pytest.mark.parametrize("command", list(_commands()))
def test_every_option_is_in_the_reference(command: str) -> None:
    text = _REFERENCE.read_text(encoding="utf-8")
    assert f"`ekiben {command}" in text
    for action in _commands()[command]._actions:
        for option in action.option_strings:
            assert option in ("-h", "--help") or f"`{option}" in text, f"{command} {option}"


def test_every_setting_and_its_variable_is_in_the_reference() -> None:
    text = _REFERENCE.read_text(encoding="utf-8")
    for name, variable in VARIABLES.items():
        assert f"`{name}`" in text
        assert f"`{variable}`" in text


@pytest.mark.parametrize("settings", [ModelSettings, Batching, QueuePolicy, Instances, ImageDeclaration])
def test_every_setting_of_a_model_is_in_the_reference(settings: type[msgspec.Struct]) -> None:
    text = _REFERENCE.read_text(encoding="utf-8")
    for name in settings.__struct_fields__:
        assert f"{name}:" in text, name


def test_every_metric_is_in_the_reference() -> None:
    text = _REFERENCE.read_text(encoding="utf-8")
    for name in METRICS:
        assert f"`{name}`" in text
