"""The server's settings: `ekiben.yaml`, then variables, then options; the later wins.

Nothing is read at import: the caller passes the environment and the options.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from ekiben.errors import InvalidSettings
from ekiben.plain import convert, load_yaml
from ekiben.restrictions import HIDDEN, keys_of
from ekiben.tls import TlsFiles

__all__ = [
    "BENTOML_VARIABLES",
    "FILES",
    "GRACE_SECONDS",
    "PARENT_VARIABLE",
    "VARIABLES",
    "Settings",
    "bentoml_home",
    "to_environment",
]

_ENVIRONMENT: Final = "the environment"
_ELSEWHERE: Final = "given by another source"
_PREFIX: Final = "EKIBEN_"
_STORE: Final = "store"
_MIB: Final = 2**20

BENTOML_VARIABLES: Final[Mapping[str, str]] = {
    "host": "BENTOML_HOST",
    "port": "BENTOML_PORT",
    "workers": "BENTOML_API_WORKERS",
}
"""Settings that have a variable of BentoML's own."""

PARENT_VARIABLE: Final = "EKIBEN_SERVE_PID"
"""Set by `ekiben serve` to its own process id, so that a worker knows if its parent died before it came up."""

GRACE_SECONDS: Final = 30
"""What requests in flight have to end after SIGTERM, before they are cut off."""

FILES: Final = (
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "grpc_tls_cert",
    "grpc_tls_key",
    "grpc_tls_client_ca",
)
"""Settings that are paths of files."""

_SECRET: Final = ("http_restricted", "grpc_restricted")
"""Lists of texts that no error may show. In a variable they are one text, or JSON: commas are part of them."""

_SINGULAR: Final = {"repositories": "repository", "load_models": "load_model"}
_FOREIGN: Final = "tcp://"
"""What Kubernetes puts into EKIBEN_PORT and its like for a Service that is named ekiben."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server is told, checked. The names are the keys of `ekiben.yaml`."""

    host: str = "127.0.0.1"
    port: int = 3000
    grpc_port: int = 3001
    """0: no gRPC."""
    grpc_max_connections: int = 10_000
    """More are refused; also those over half of the files that the process may open."""
    grpc_max_connection_age_s: int = 0
    """A client is asked to connect again after this long, give or take a tenth; 0: never."""
    workers: int = 1
    repositories: tuple[str, ...] = ()
    """Folders of models, and 'store' for the Bento model store. Empty: what service.py declares."""
    model_control: str = "none"
    """`none`: everything that is there at the start. `explicit`: what `load_models` names, then what clients load."""
    load_models: tuple[str, ...] = ()
    allow_load_override: bool = False
    """A client's load may carry a configuration and files of its own; whoever may load may then run any code here."""
    state_dir: str = ""
    """Once loaded never '': `ekiben/` under BENTOML_HOME."""
    strict_readiness: bool = False
    """Ready only while every wanted model can answer; else as soon as each has loaded or failed for good."""
    log_format: str = "text"
    access_log: bool = False
    allow_client_shm: bool = False
    """Clients may register shared memory, and so have this process read and write it."""
    trace_file: str = ""
    """Where the traces go that clients switch on by the trace extension. '': they cannot. Once loaded absolute."""
    body_limit_bytes: int = 128 * _MIB
    """A request body as it is sent."""
    decompressed_limit_bytes: int = 128 * _MIB
    """A gzip or deflate body once it is unpacked."""
    json_limit_bytes: int = 32 * _MIB
    """The JSON in a request, tensors in binary not counted: parsing takes many times its size."""
    json_depth_limit: int = 100
    """Brackets within brackets in a JSON body."""
    tls_cert: str = ""
    """A PEM file with the certificate of both ports, and those that lead to its CA. '': no TLS."""
    tls_key: str = ""
    tls_client_ca: str = ""
    """A PEM file: only clients with a certificate of one of these CAs are let in."""
    grpc_tls_cert: str = ""
    """What the gRPC port has in place of the setting without `grpc_`."""
    grpc_tls_key: str = ""
    grpc_tls_client_ca: str = ""
    http_restricted: tuple[str, ...] = ()
    """`GROUP,…:HEADER=VALUE`: what callers must send for the endpoints of these groups (ekiben.restrictions)."""
    grpc_restricted: tuple[str, ...] = ()
    """The same for gRPC, where the header's name begins with `triton-grpc-protocol-`."""

    def __post_init__(self) -> None:
        for name in ("port", "grpc_port"):
            _check(0 <= getattr(self, name) <= 65535, name, "from 0 to 65535", getattr(self, name))
        _check(self.workers >= 1, "workers", "1 or more", self.workers)
        _check(self.workers == 1, "workers", "1: more than one worker is not supported yet", self.workers)
        _check(
            self.model_control != "poll", "model_control", "'none' or 'explicit': 'poll' is not supported yet", "poll"
        )
        _check(self.model_control in ("none", "explicit"), "model_control", "'none' or 'explicit'", self.model_control)
        _check(self.log_format in ("text", "json"), "log_format", "'text' or 'json'", self.log_format)
        for name in ("body_limit_bytes", "decompressed_limit_bytes", "json_limit_bytes", "json_depth_limit"):
            _check(getattr(self, name) >= 1, name, "1 or more", getattr(self, name))
        _check(self.grpc_max_connections >= 1, "grpc_max_connections", "1 or more", self.grpc_max_connections)
        age = self.grpc_max_connection_age_s
        _check(age >= 0, "grpc_max_connection_age_s", "0 or more", age)
        _check(bool(self.host), "host", "an address", self.host)
        _check(
            not self.load_models or self.model_control == "explicit",
            "load_models",
            "empty unless model_control is 'explicit'",
            list(self.load_models),
        )
        for prefix in ("", "grpc_"):
            cert, key = f"{prefix}tls_cert", f"{prefix}tls_key"
            for given, other in ((cert, key), (key, cert)):
                _check(not getattr(self, given) or bool(getattr(self, other)), other, f"given with {given}", "")
        _check(not self.tls_client_ca or bool(self.tls_cert), "tls_cert", "given with tls_client_ca", "")
        alone = bool(self.grpc_tls_client_ca) and self.grpc_tls is None
        _check(not alone, "grpc_tls_cert", "given with grpc_tls_client_ca", "")
        for name in _SECRET:
            keys_of(name, getattr(self, name))

    @property
    def http_tls(self) -> TlsFiles | None:
        """The HTTP port's files; None: no TLS."""
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca) if self.tls_cert else None

    @property
    def grpc_tls(self) -> TlsFiles | None:
        """The gRPC port's files; None: no TLS."""
        cert, key = (self.grpc_tls_cert, self.grpc_tls_key) if self.grpc_tls_cert else (self.tls_cert, self.tls_key)
        return TlsFiles(cert, key, self.grpc_tls_client_ca or self.tls_client_ca) if cert else None

    @classmethod
    def load(
        cls,
        config_path: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> "Settings":
        """The settings from a file, the variables in `environ`, and `options` (by setting name; None is not given).

        Without `config_path` the file is the one that EKIBEN_CONFIG names, if any. Relative paths in the file are
        relative to it. Raises InvalidSettings that names the source, the key and the value.
        """
        environ = environ or {}
        path = config_path or environ.get("EKIBEN_CONFIG")
        values: dict[str, Any] = {}
        for source, layer in (
            (str(path), _from_file(Path(path).expanduser()) if path else {}),
            (_ENVIRONMENT, _from_environment(environ)),
            ("the options", {name: value for name, value in (options or {}).items() if value is not None}),
        ):
            _check_alone(layer, source)
            values |= layer
        state_directory = Path(values.get("state_dir") or bentoml_home(environ) / "ekiben")
        values["state_dir"] = str(state_directory.expanduser().absolute())
        values |= {
            name: str(Path(values[name]).expanduser().absolute()) for name in (*FILES, "trace_file") if values.get(name)
        }
        return convert(values, Settings, "the settings")


def bentoml_home(environ: Mapping[str, str]) -> Path:
    """The folder of the Bento stores, as BentoML finds it."""
    return Path(os.path.expandvars(environ.get("BENTOML_HOME") or "~/bentoml")).expanduser().absolute()


def to_environment(options: Mapping[str, Any]) -> dict[str, str]:
    """The same options as variables, for a server in another process. Options that are None are left out."""
    return {VARIABLES[name]: _as_text(value) for name, value in options.items() if value is not None}


def _variable(name: str) -> str:
    return BENTOML_VARIABLES.get(name) or f"{_PREFIX}{_SINGULAR.get(name, name).upper()}"


VARIABLES: Final[Mapping[str, str]] = {name: _variable(name) for name in Settings.__struct_fields__}
"""Setting → the variable that sets it."""


def _check(holds: bool, name: str, must_be: str, value: object) -> None:
    if not holds:
        raise InvalidSettings(f"{name} must be {must_be}, got {value!r}")


def _from_file(path: Path) -> dict[str, Any]:
    data = load_yaml(path)
    base = path.absolute().parent
    if isinstance(data.get("repositories"), list):
        data["repositories"] = [_located(base, value) for value in data["repositories"]]
    for name in ("state_dir", "trace_file", *FILES):
        if data.get(name):
            data[name] = _located(base, data[name])
    return data


def _located(base: Path, value: Any) -> Any:
    return value if value == _STORE or not isinstance(value, str) else str(base / Path(value).expanduser())


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    for name, variable in BENTOML_VARIABLES.items():
        wrong = f"{_PREFIX}{name.upper()}"
        if not (environ.get(wrong) or _FOREIGN).startswith(_FOREIGN):
            raise InvalidSettings(f"{_ENVIRONMENT}: {wrong} is not read; BentoML's own {variable} sets the {name}")
    own = [variable for variable in VARIABLES.values() if variable.startswith(_PREFIX)]
    for variable in environ:
        if variable.startswith(_PREFIX) and variable not in own:
            close = difflib.get_close_matches(_suffix(variable), map(_suffix, own), n=1, cutoff=0.8)
            if close:
                raise InvalidSettings(f"{_ENVIRONMENT}: {variable} is not known; did you mean {_PREFIX}{close[0]}?")
    return {
        name: _parsed(name, variable, environ[variable])
        for name, variable in VARIABLES.items()
        if environ.get(variable) not in (None, "")
    }


def _suffix(variable: str) -> str:
    return variable.removeprefix(_PREFIX)


def _parsed(name: str, variable: str, text: str) -> Any:
    """A variable's value: numbers and flags as they are written, lists with commas between or as JSON."""
    kind = Settings.__annotations__[name]
    if kind is str:
        return text
    if kind in (int, bool):
        try:
            return msgspec.convert(text.strip().lower(), kind, strict=False)
        except msgspec.ValidationError:
            expected = "a whole number" if kind is int else "'true' or 'false'"
            raise InvalidSettings(f"{_ENVIRONMENT}: {variable} must be {expected}, got '{text}'") from None
    if text.lstrip().startswith("["):
        try:
            return msgspec.json.decode(text, type=list[str])
        except msgspec.MsgspecError:
            got = f" {HIDDEN}" if name in _SECRET else f", got '{text}'"
            raise InvalidSettings(f"{_ENVIRONMENT}: {variable} must be a JSON list of texts{got}") from None
    if name in _SECRET:
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


def _check_alone(layer: Mapping[str, Any], source: str) -> None:
    """Check one layer by itself, so that an error names the source it came from."""
    for name in _SECRET:
        texts = layer.get(name, [])
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise InvalidSettings(f"{source}: {name} must be a list of texts {HIDDEN}")
    # What belongs together may come from several layers.
    control = {"model_control": "explicit"} if "load_models" in layer else {}
    pairs = [prefix for prefix in ("tls_", "grpc_tls_") if any(name.startswith(prefix) for name in layer)]
    files = {f"{prefix}{file}": _ELSEWHERE for prefix in pairs for file in ("cert", "key")}
    convert({**control, **files, **layer}, Settings, source)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int) else msgspec.json.encode(value).decode()
