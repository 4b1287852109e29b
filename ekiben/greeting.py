"""What the server prints once it is ready: where it listens, and one call to copy."""

import importlib.util
import json
import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from ekiben.engine.engine import Engine

__all__ = ["HttpAddress", "banner", "call", "joined"]

_MOST_NUMBERS: Final = 64
_ZEROS: Final = {"BYTES": "", "BOOL": False}


class HttpAddress(msgspec.Struct, frozen=True):
    """Where HTTP is served, and what a client needs besides."""

    host: str
    port: int
    cert: str = ""
    """A file with the certificate; '': no TLS."""
    certified_hosts: tuple[str, ...] = ()
    """The names and addresses that it is for."""
    client_certificates: bool = False

    @property
    def url(self) -> str:
        """As far as the path."""
        return f"{'https' if self.cert else 'http'}://{joined(self.host, self.port)}"

    def curl(self, header: str) -> tuple[list[str], str]:
        """The command with its options, and the URL as far as the path. `header` is what a caller must send, or ''."""
        command, url = ["curl"], self.url
        if self.cert:
            command += ["--cacert", self.cert]
            names = [name for name in self.certified_hosts if "*" not in name]
            if names and self.host not in names:
                command += ["--connect-to", f"::{joined(self.host, self.port)}"]
                url = f"https://{joined(names[0], self.port)}"
        if self.client_certificates:
            command += ["--cert", "CLIENT.pem", "--key", "CLIENT.key"]
        if header:
            command += ["-H", f"{header}: VALUE"]
        return command, url


def joined(host: str, port: int) -> str:
    """`host:port`, as a URL has it."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def banner(http: str, grpc: str, ready: int, failed: int) -> str:
    """Where the server listens, and how many model versions it has."""
    broken = f", {failed} not served (see above)" if failed else ""
    return f"Ekiben is ready: HTTP {http}, gRPC {grpc or 'off'} (model versions: {ready} served{broken})"


def call(address: HttpAddress, engine: Engine, headers: dict[str, str]) -> str:
    """One call to copy: a photo where a model takes one, else zeros for the first model.

    `headers` has, by group of endpoints, the name of the header that a caller must send.
    """
    asks = headers.get("inference", "")
    names = engine.models()
    for name in names:
        if engine.version(name).settings.preprocess is not None:
            return _line(address, asks, "/classify", ["-F", f"image=@{_photo()}", "-F", f"model={name}"])
    if not names:
        return _line(address, headers.get("metadata", ""), "/v2")
    view = engine.version(names[0])
    specs = view.default.inputs
    sizes = [math.prod(max(size, 1) for size in spec.shape) for spec in specs]
    if sum(sizes) > _MOST_NUMBERS or any(spec.datatype in ("FP16", "BF16") for spec in specs):
        return _line(address, headers.get("metadata", ""), f"/v2/models/{names[0]}")
    if view.settings.decoupled:
        flat = {spec.name: [_ZEROS.get(spec.datatype, 0)] * size for spec, size in zip(specs, sizes, strict=True)}
        return _line(address, asks, f"/v2/models/{names[0]}/generate_stream", ["-N", "-d", json.dumps(flat)])
    inputs = [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": [max(size, 1) for size in spec.shape],
            "data": [_ZEROS.get(spec.datatype, 0)] * size,
        }
        for spec, size in zip(specs, sizes, strict=True)
    ]
    return _line(address, asks, f"/v2/models/{names[0]}/infer", ["-d", json.dumps({"inputs": inputs})])


def _line(address: HttpAddress, header: str, path: str, options: Sequence[str] = ()) -> str:
    command, url = address.curl(header)
    return f"Try: {shlex.join([*command, *options, url + path])}"


def _photo() -> str:
    """A sample photo, where the package that has one is installed."""
    found = importlib.util.find_spec("skimage")
    if found is None or found.origin is None:
        return "photo.jpg"
    return os.path.relpath(Path(found.origin).parent / "data" / "coffee.png")
