"""Version policies as tables, and what a catalogue makes of models that are wrong."""

import pytest

from ekiben.errors import InvalidSettings
from ekiben.repository.selection import AvailableModel, AvailableVersion, Policy, catalogue, choose
from ekiben.types import ModelSettings, VersionSource


@pytest.mark.parametrize(
    ("policy", "available", "chosen"),
    [
        ("latest:1", [1, 3, 2], (3,)),
        ("latest:2", [1, 3, 2], (2, 3)),
        ("latest:9", [5], (5,)),
        ("latest:1", [], ()),
        ("latest:1", [9, 10], (10,)),
        ("latest:1", [4, 4], (4,)),
        ("all", [3, 1], (1, 3)),
        ("all", [], ()),
        ((1, 3), [1, 2, 3], (1, 3)),
        ((3, 1), [1, 2, 3], (1, 3)),
        ((7,), [1], ()),
        ((), [1], ()),
        ((0,), [0, 1], (0,)),
    ],
)
def test_choose(policy: Policy, available: list[int], chosen: tuple[int, ...]) -> None:
    assert choose(policy, available) == chosen


@pytest.mark.parametrize("policy", ["", "latest", "latest:0", "latest:-1", "latest:x", "latest:²", "ALL", "1", (-1,)])
def test_a_wrong_policy_is_named(policy: Policy) -> None:
    with pytest.raises(InvalidSettings, match="version_policy must be 'latest:N'") as raised:
        choose(policy, [1])
    assert str(list(policy) if isinstance(policy, tuple) else policy) in raised.value.message


def _version(number: int, error: str = "", word: str = "") -> AvailableVersion:
    return AvailableVersion(number, f"/models/m/{number}", 0.0, ModelSettings(runtime="onnx"), word, error=error)


def test_a_catalogue_holds_the_chosen_versions() -> None:
    source = catalogue([AvailableModel("m", (_version(1), _version(2, word="b")), "latest:1")])["m"]
    assert source.error == ""
    assert source.versions == (VersionSource("m", 2, "/models/m/2", ModelSettings(runtime="onnx"), "b"),)


def test_pinned_versions_are_wanted_beside_the_policy() -> None:
    versions = (_version(1), _version(2), _version(3))
    assert AvailableModel("m", versions, "latest:1", pinned=(1,)).wanted() == (1, 3)
    assert AvailableModel("m", versions, (), pinned=(2,)).wanted() == (2,)


def test_a_model_with_an_error_wants_nothing_and_says_why() -> None:
    sources = catalogue([AvailableModel("bad", (_version(1),), error="broken"), AvailableModel("good", (_version(1),))])
    assert (sources["bad"].versions, sources["bad"].error) == ((), "broken")
    assert [each.version for each in sources["good"].versions] == [1]


def test_a_policy_that_chooses_nothing_says_what_there_is() -> None:
    source = catalogue([AvailableModel("m", (_version(1), _version(2)), (7,))])["m"]
    assert source.versions == ()
    assert "(7,)" in source.error
    assert "1, 2" in source.error


def test_a_version_that_cannot_be_served_is_left_out_while_another_can() -> None:
    source = catalogue([AvailableModel("m", (_version(1), _version(2, error="no file")), "all")])["m"]
    assert [each.version for each in source.versions] == [1]
    assert source.error == ""


def test_the_reasons_are_given_when_no_chosen_version_can_be_served() -> None:
    source = catalogue([AvailableModel("m", (_version(1), _version(2, error="no file")), "latest:1")])["m"]
    assert source.versions == ()
    assert source.error == "version 2: no file"


def test_a_wrong_policy_is_the_models_own_error() -> None:
    assert "latest:x" in catalogue([AvailableModel("m", (_version(1),), "latest:x")])["m"].error
