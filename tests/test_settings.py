"""Settings: the order of the sources, what each may say, and that an error names source, key and value."""

from pathlib import Path
from typing import Any

import pytest

from ekiben.errors import InvalidSettings
from ekiben.settings import VARIABLES, Settings, bentoml_home, to_environment
from ekiben.tls import TlsFiles


def _file(folder: Path, text: str) -> Path:
    path = folder / "ekiben.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_defaults() -> None:
    settings = Settings.load(environ={"BENTOML_HOME": "/bento"})
    assert (settings.host, settings.port, settings.grpc_port) == ("127.0.0.1", 3000, 3001)
    assert (settings.grpc_max_connections, settings.grpc_max_connection_age_s) == (10_000, 0)
    assert settings.repositories == ()
    assert settings.model_control == "none"
    assert not settings.allow_load_override
    assert settings.state_dir == "/bento/ekiben"
    assert settings.body_limit_bytes == 128 * 1024 * 1024


def test_variables_win_over_the_file_and_options_over_both(tmp_path: Path) -> None:
    path = _file(tmp_path, "port: 1\ngrpc_port: 1\nlog_format: json\n")
    settings = Settings.load(path, {"BENTOML_PORT": "2", "EKIBEN_GRPC_PORT": "2"}, {"port": 3, "log_format": None})
    assert (settings.port, settings.grpc_port, settings.log_format) == (3, 2, "json")


def test_the_file_can_be_named_by_a_variable(tmp_path: Path) -> None:
    path = _file(tmp_path, "access_log: true\n")
    assert Settings.load(environ={"EKIBEN_CONFIG": str(path)}).access_log
    assert not Settings.load(_file(tmp_path, ""), {"EKIBEN_CONFIG": "/none"}).access_log


def test_paths_in_the_file_are_relative_to_it(tmp_path: Path) -> None:
    settings = Settings.load(_file(tmp_path, "repositories: [store, models, /abs]\nstate_dir: state\ntrace_file: t\n"))
    assert settings.repositories == ("store", str(tmp_path / "models"), "/abs")
    assert settings.state_dir == str(tmp_path / "state")
    assert settings.trace_file == str(tmp_path / "t")


def test_a_trace_file_is_absolute_once_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.load(environ={"EKIBEN_TRACE_FILE": "a/t"}).trace_file == str(tmp_path / "a" / "t")
    assert Settings.load(_file(tmp_path, "trace_file: ''\n")).trace_file == ""
    assert Settings.load().trace_file == ""


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("EKIBEN_REPOSITORY", "a, b ,store", "repositories", ("a", "b", "store")),
        ("EKIBEN_REPOSITORY", '["a,b", "c"]', "repositories", ("a,b", "c")),
        ("EKIBEN_STRICT_READINESS", "true", "strict_readiness", True),
        ("EKIBEN_ACCESS_LOG", "1", "access_log", True),
        ("EKIBEN_ACCESS_LOG", "False", "access_log", False),
        ("EKIBEN_BODY_LIMIT_BYTES", "1000", "body_limit_bytes", 1000),
        ("BENTOML_HOST", "0.0.0.0", "host", "0.0.0.0"),
        ("BENTOML_PORT", "", "port", 3000),
        ("EKIBEN_LOG_FORMAT", "json", "log_format", "json"),
        ("EKIBEN_HTTP_RESTRICTED", "inference,health:k=a, b", "http_restricted", ("inference,health:k=a, b",)),
        ("EKIBEN_GRPC_RESTRICTED", '["trace:k=v", "health:k=v"]', "grpc_restricted", ("trace:k=v", "health:k=v")),
    ],
)
def test_variables(variable: str, text: str, name: str, value: object) -> None:
    assert getattr(Settings.load(environ={variable: text}), name) == value


def test_explicit_control_may_be_said_in_another_source(tmp_path: Path) -> None:
    settings = Settings.load(_file(tmp_path, "model_control: explicit\n"), {"EKIBEN_LOAD_MODEL": "a"})
    assert settings.load_models == ("a",)


@pytest.mark.parametrize(
    ("text", "environ", "options", "words"),
    [
        ("prot: 3", {}, {}, ["ekiben.yaml", "'prot'", "did you mean 'port'"]),
        ("port: a", {}, {}, ["ekiben.yaml", "port must be int", "'a'"]),
        ("port: 1\nport: 2", {}, {}, ["ekiben.yaml line 2", "'port' is given twice"]),
        ("- port", {}, {}, ["ekiben.yaml", "must hold keys and values"]),
        ("port: [", {}, {}, ["ekiben.yaml line 1"]),
        ("port: 70000", {}, {}, ["ekiben.yaml", "port", "70000"]),
        ("repositories: store", {}, {}, ["ekiben.yaml", "repositories must be array", "'store'"]),
        ("repositories: [1]", {}, {}, ["ekiben.yaml", "repositories[0]", "got 1"]),
        ("access_log: 1", {}, {}, ["access_log must be bool, got 1"]),
        ("model_control: all", {}, {}, ["ekiben.yaml", "model_control", "'all'"]),
        ("", {"BENTOML_PORT": "x"}, {}, ["the environment", "BENTOML_PORT", "'x'"]),
        ("", {"EKIBEN_ACCESS_LOG": "maybe"}, {}, ["the environment", "EKIBEN_ACCESS_LOG", "'maybe'"]),
        ("", {"EKIBEN_REPOSITORY": "[1]"}, {}, ["the environment", "EKIBEN_REPOSITORY", "'[1]'"]),
        ("", {"EKIBEN_LOG_FORMAT": "xml"}, {}, ["the environment", "log_format", "'xml'"]),
        ("", {"EKIBEN_JSON_DEPTH_LIMIT": "0"}, {}, ["the environment", "json_depth_limit", "0"]),
        ("grpc_max_connections: 0", {}, {}, ["ekiben.yaml", "grpc_max_connections", "1 or more", "0"]),
        ("", {"EKIBEN_GRPC_MAX_CONNECTION_AGE_S": "-1"}, {}, ["grpc_max_connection_age_s", "0 or more", "-1"]),
        ("", {"EKIBEN_PORT": "4000"}, {}, ["EKIBEN_PORT is not read", "BENTOML_PORT"]),
        ("", {"EKIBEN_WORKERS": "2"}, {}, ["EKIBEN_WORKERS is not read", "BENTOML_API_WORKERS"]),
        ("", {"EKIBEN_ACESS_LOG": "1"}, {}, ["EKIBEN_ACESS_LOG", "did you mean EKIBEN_ACCESS_LOG"]),
        ("", {"EKIBEN_REPOSITORIES": "a"}, {}, ["did you mean EKIBEN_REPOSITORY"]),
        ("", {}, {"workers": 2}, ["the options", "workers", "not supported yet", "2"]),
        ("", {}, {"workers": 0}, ["the options", "workers", "0"]),
        ("", {}, {"model_control": "poll"}, ["the options", "'poll' is not supported yet"]),
        ("", {"EKIBEN_LOAD_MODEL": "a"}, {}, ["load_models", "'explicit'", "['a']"]),
        ("", {"EKIBEN_TLS_CERT": "a"}, {}, ["tls_key must be given with tls_cert"]),
        ("tls_key: a", {}, {}, ["tls_cert must be given with tls_key"]),
        ("tls_client_ca: a", {}, {}, ["tls_cert must be given with tls_client_ca"]),
        (
            "tls_cert: a",
            {"EKIBEN_GRPC_TLS_KEY": "a"},
            {"tls_key": "b"},
            ["grpc_tls_cert must be given with grpc_tls_k"],
        ),
        ("grpc_tls_client_ca: a", {}, {}, ["grpc_tls_cert must be given with grpc_tls_client_ca"]),
        ("tls_cert: 1", {}, {}, ["ekiben.yaml", "tls_cert must be str, got 1"]),
        ("", {"EKIBEN_HTTP_RESTRICTED": "infer:k=v"}, {}, ["the environment", "http_restricted[0]", "'infer'"]),
        ("grpc_restricted: ['trace:k=v', 'trace:k=v']", {}, {}, ["ekiben.yaml", "grpc_restricted[1]", "'trace'"]),
    ],
)
def test_what_is_wrong_is_named(
    text: str, environ: dict[str, str], options: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(InvalidSettings) as raised:
        Settings.load(_file(tmp_path, text), environ, options)
    for word in words:
        assert word in raised.value.message


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("http_restricted: 'inference:k=SECRET'", {}),
        ("http_restricted: {inference: k=SECRET}", {}),
        ("http_restricted:\n- inference: k=SECRET", {}),
        ("http_restricted: [[SECRET]]", {}),
        ("http_restricted: ['inference:k=SECRET', 7]", {}),
        ("http_restricted: ['inference']\ngrpc_restricted: ['inference:SECRET']", {}),
        ("", {"EKIBEN_HTTP_RESTRICTED": '["inference:k=SECRET"'}),
        ("", {"EKIBEN_HTTP_RESTRICTED": '[{"inference": "SECRET"}]'}),
        ("", {"EKIBEN_GRPC_RESTRICTED": "k=SECRET"}),
    ],
)
def test_no_error_shows_a_secret(text: str, environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings) as raised:
        Settings.load(_file(tmp_path, text), environ)
    assert "_restricted" in raised.value.message.lower()
    assert "SECRET" not in raised.value.message.replace("admin-key=SECRET", "")


def test_the_files_of_tls_are_for_both_ports_unless_grpc_has_its_own(tmp_path: Path) -> None:
    path = _file(tmp_path, "tls_cert: tls.crt\ntls_key: tls.key\n")
    settings = Settings.load(path, {"EKIBEN_TLS_CLIENT_CA": "/ca"})
    both = TlsFiles(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"), "/ca")
    assert (settings.http_tls, settings.grpc_tls) == (both, both)
    settings = Settings.load(path, {}, {"grpc_tls_cert": "/c", "grpc_tls_key": "/k", "grpc_tls_client_ca": "/ca"})
    assert (settings.http_tls, settings.grpc_tls) == (TlsFiles(both.cert, both.key), TlsFiles("/c", "/k", "/ca"))
    settings = Settings.load(environ={"EKIBEN_GRPC_TLS_CERT": "/c", "EKIBEN_GRPC_TLS_KEY": "~/k"})
    assert (settings.http_tls, settings.grpc_tls) == (None, TlsFiles("/c", str(Path.home() / "k")))
    strict = Settings(tls_cert="a", tls_key="b", tls_client_ca="c", grpc_tls_cert="d", grpc_tls_key="e")
    assert strict.grpc_tls == TlsFiles("d", "e", "c")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidSettings, match=r"/none\.yaml: cannot be read"):
        Settings.load("/none.yaml")


def test_what_kubernetes_sets_for_a_service_named_ekiben_is_no_setting() -> None:
    settings = Settings.load(
        environ={
            "EKIBEN_PORT": "tcp://10.0.0.1:3000",
            "EKIBEN_PORT_3000_TCP": "tcp://10.0.0.1:3000",
            "EKIBEN_PORT_3000_TCP_ADDR": "10.0.0.1",
            "EKIBEN_SERVICE_HOST": "10.0.0.1",
            "EKIBEN_SERVICE_PORT": "3000",
            "EKIBEN_SERVICE_PORT_GRPC": "3001",
        }
    )
    assert settings == Settings.load()


def test_options_travel_as_variables() -> None:
    options = {
        "host": "0.0.0.0", "port": 4000, "repositories": ["store", "/a,b"], "load_models": ["m"],
        "model_control": "explicit", "access_log": True, "state_dir": "/state", "workers": None,
        "http_restricted": ["inference,health:k=v, w", "trace:k=v"], "grpc_restricted": ["health:k=[v]"],
    }  # fmt: skip
    environ = to_environment(options)
    assert environ["BENTOML_PORT"] == "4000"
    assert "BENTOML_API_WORKERS" not in environ
    assert Settings.load(environ=environ) == Settings.load(options=options)


def test_every_setting_has_a_variable() -> None:
    assert set(VARIABLES) == set(Settings.__struct_fields__)
    assert len(set(VARIABLES.values())) == len(VARIABLES)


def test_the_home_of_the_stores() -> None:
    assert bentoml_home({"BENTOML_HOME": "/x"}) == Path("/x")
    assert bentoml_home({}) == Path.home() / "bentoml"
    assert bentoml_home({"BENTOML_HOME": ""}) == Path.home() / "bentoml"
