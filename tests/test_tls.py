"""PEM files → what a port serves with, and what is wrong with them."""

import ssl
from pathlib import Path

import pytest

from ekiben.errors import InvalidSettings
from ekiben.tls import TlsFiles, load_identity
from tests.certificates import Authority, Pair, run


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("server")


def test_a_pair_is_loaded_and_tells_its_names(authority: Authority, pair: Pair) -> None:
    identity = load_identity(TlsFiles(str(pair.cert), str(pair.key)))
    assert identity.flaw == ""
    assert identity.hosts == ("127.0.0.1", "localhost")
    assert int(identity.serial, 16) > 0
    assert ssl.cert_time_to_seconds(identity.not_after) > 0
    assert identity.context.verify_mode is ssl.CERT_NONE
    strict = load_identity(TlsFiles(str(pair.cert), str(pair.key), str(authority.ca)))
    assert strict.context.verify_mode is ssl.CERT_REQUIRED


def test_a_chain_and_a_file_with_both_are_taken(authority: Authority, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "chain.pem").write_bytes(pair.cert.read_bytes() + authority.ca.read_bytes())
    (tmp_path / "both.pem").write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())
    chain, both = str(tmp_path / "chain.pem"), str(tmp_path / "both.pem")
    assert load_identity(TlsFiles(chain, str(pair.key))).flaw == ""
    assert load_identity(TlsFiles(both, both)).hosts == ("127.0.0.1", "localhost")


def test_old_protocols_and_weak_ciphers_are_off(pair: Pair) -> None:
    context = load_identity(TlsFiles(str(pair.cert), str(pair.key))).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    before_1_3 = [each for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]
    assert before_1_3
    assert all(each["kea"] == "kx-ecdhe" and each["aead"] for each in before_1_3)


def test_what_clients_will_hold_against_a_certificate(authority: Authority) -> None:
    def flaw(pair: Pair) -> str:
        return load_identity(TlsFiles(str(pair.cert), str(pair.key))).flaw

    assert flaw(authority.issue("old", days=-1)) == "certificate has expired"
    assert "purpose" in flaw(authority.issue("client-only", extensions="extendedKeyUsage=clientAuth"))


def _broken(folder: Path, pair: Pair, other: Pair) -> dict[str, tuple[object, object, object, str]]:
    """Name → certificate, key and client CA, and what must be said."""
    cert, key = pair
    (folder / "half.key").write_bytes(key.read_bytes()[:100])
    (folder / "empty.pem").write_bytes(b"")
    run("x509", "-in", cert, "-outform", "DER", "-out", folder / "binary.der")
    run("pkey", "-in", key, "-aes256", "-passout", "pass:word", "-out", folder / "locked.key")
    weak = folder / "weak.pem", folder / "weak.key"
    run("req", "-x509", "-newkey", "rsa:1024", "-nodes", "-subj", "/CN=weak", "-keyout", weak[1], "-out", weak[0])
    return {
        "no certificate": ("/none", key, "", "TLS certificate '/none' cannot be read: No such file or directory"),
        "no key": (cert, "/none", "", "TLS key '/none' cannot be read: No such file or directory"),
        "no CA": (cert, key, "/none", "TLS client CA '/none' cannot be read: No such file or directory"),
        "a folder": (folder, key, "", f"TLS certificate '{folder}' is not a file"),
        "another key": (cert, other.key, "", f"TLS key '{other.key}' does not belong to the certificate '{cert}'"),
        "locked": (cert, folder / "locked.key", "", f"TLS key '{folder}/locked.key' is encrypted, which is not supp"),
        "half a key": (cert, folder / "half.key", "", f"TLS key '{folder}/half.key' holds no private key in PEM form"),
        "an empty key": (cert, folder / "empty.pem", "", f"TLS key '{folder}/empty.pem' holds no private key"),
        "binary": (
            folder / "binary.der",
            key,
            "",
            f"TLS certificate '{folder}/binary.der' holds no certificate in PEM",
        ),
        "swapped": (key, cert, "", f"TLS certificate '{key}' holds no certificate in PEM form"),
        "a CA without one": (cert, key, key, f"TLS client CA '{key}' holds no certificate in PEM form"),
        "weak": (*weak, "", f"TLS certificate '{weak[0]}' cannot be used: EE_KEY_TOO_SMALL"),
    }


_NAMES = (
    "no certificate", "no key", "no CA", "a folder", "another key", "locked", "half a key", "an empty key", "binary",
    "swapped", "a CA without one", "weak",
)  # fmt: skip


@pytest.mark.parametrize("name", _NAMES)
def test_files_that_cannot_be_used_are_named(name: str, authority: Authority, pair: Pair, tmp_path: Path) -> None:
    cert, key, client_ca, words = _broken(tmp_path, pair, authority.issue("other"))[name]
    with pytest.raises(InvalidSettings) as raised:
        load_identity(TlsFiles(str(cert), str(key), str(client_ca)))
    assert raised.value.message.startswith(words)
