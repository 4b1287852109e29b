"""What restricts groups of endpoints, read from texts."""

import pytest

from ekiben.errors import InvalidSettings
from ekiben.restrictions import GROUPS, Key, keys_of


def test_groups_share_a_key_or_have_their_own() -> None:
    keys = keys_of("http_restricted", ["inference, health:api-key=a=b:c,d", "trace:Admin-Key=two words"])
    assert keys == {
        "inference": Key("api-key", "a=b:c,d"),
        "health": Key("api-key", "a=b:c,d"),
        "trace": Key("Admin-Key", "two words"),
    }
    assert keys_of("http_restricted", []) == {}
    assert set(keys_of("http_restricted", [f"{','.join(GROUPS)}:k=v"])) == set(GROUPS)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["inference"], "http_restricted[0] must be GROUP,…:HEADER=VALUE"),
        (["inference:SECRET"], "http_restricted[0] must be GROUP,…:HEADER=VALUE"),
        (["trace:k=v", "k=SECRET:inference"], "http_restricted[1] must be GROUP,…:HEADER=VALUE"),
        ([""], "http_restricted[0] must be"),
        ([":k=SECRET"], "http_restricted[0] must be"),
        (["inference,:k=SECRET"], "http_restricted[0] must be"),
        (["inference:=SECRET"], "http_restricted[0]: the name of a header"),
        (["inference:a b=SECRET"], "got 'a b'"),
        (["inference:k="], "the value for 'k' must be printable ASCII"),
        (["inference:k= SECRET"], "the value for 'k' must be printable ASCII"),
        (["inference:k=SECRET\n"], "the value for 'k' must be printable ASCII"),
        (["inference:k=SECRET\x00x"], "the value for 'k' must be printable ASCII"),
        (["inference:k=SECRETé"], "the value for 'k' must be printable ASCII"),
        (["infer:k=SECRET"], f"unknown group 'infer'; the groups are {', '.join(GROUPS)}"),
        (["Inference:k=SECRET"], "unknown group 'Inference'"),
        (["inference:k=SECRET", "health,inference:j=SECRET"], "group 'inference' is restricted already"),
        (["inference,inference:k=SECRET"], "group 'inference' is restricted already"),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_is(texts: list[str], words: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        keys_of("http_restricted", texts)
    assert words in raised.value.message
    assert "SECRET" not in raised.value.message.replace("admin-key=SECRET", "")


def test_a_key_does_not_print_its_value() -> None:
    assert repr(Key("api-key", "SECRET")) == "Key('api-key', …)"
