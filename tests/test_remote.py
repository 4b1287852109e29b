"""What a client of an engine elsewhere shows of itself, and whom it trusts."""

import pytest

from ekiben.errors import InvalidSettings
from ekiben.remote import Access, RemoteEngine, access_from


def test_the_variables() -> None:
    assert access_from({}) == Access()
    environ = {"EKIBEN_URL_CACERT": "a", "EKIBEN_URL_CERT": "b", "EKIBEN_URL_KEY": "c", "EKIBEN_URL_HEADER": "k=v, w=x"}
    assert access_from(environ) == Access("a", "b", "c", ("k=v, w=x",))
    assert access_from({"EKIBEN_URL_HEADER": '["k=v", "l=w"]'}).headers == ("k=v", "l=w")


@pytest.mark.parametrize(
    ("url", "access", "words"),
    [
        ("ftp://x", Access(), "must start with http:// or https://"),
        ("https://x", Access(cacert="/none"), "TLS CA '/none' cannot be read"),
        ("https://x", Access(cert="/none"), "TLS certificate '/none' cannot be read"),
        ("https://x", Access(key="/none"), "TLS certificate '/none' cannot be read"),
        ("http://x", Access(headers=("SECRET",)), "must be NAME=VALUE"),
        ("http://x", Access(headers=("k=v", "a b=SECRET")), "must be NAME=VALUE"),
        ("http://x", Access(headers=("k=SECRET\r\nx: y",)), "must be NAME=VALUE"),
        ("http://x", Access(headers=("k=",)), "must be NAME=VALUE"),
    ],
)
def test_what_is_wrong_is_named(url: str, access: Access, words: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        RemoteEngine(url, access)
    assert words in raised.value.message
    assert "SECRET" not in raised.value.message


def test_a_list_of_headers_that_is_none_is_refused_without_its_text() -> None:
    with pytest.raises(InvalidSettings) as raised:
        access_from({"EKIBEN_URL_HEADER": '["k=SECRET"'})
    assert "SECRET" not in raised.value.message
