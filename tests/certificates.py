"""Certificates for tests, made by the openssl command in some milliseconds each."""

import subprocess
from pathlib import Path
from typing import NamedTuple


class Pair(NamedTuple):
    """PEM files of one end."""

    cert: Path
    key: Path


class Authority:
    """A CA of its own, whose certificate is in `ca`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.ca = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        run(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.ca,
        )  # fmt: skip

    def issue(self, name: str, *, extensions: str = "subjectAltName=IP:127.0.0.1,DNS:localhost", days: int = 2) -> Pair:
        """A certificate and its key as NAME.pem and NAME.key; `days` below 0: it has expired."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, lines = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        lines.write_text(extensions + "\n")
        run(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-subj", f"/CN={name}", "-keyout", pair.key, "-out", request,
        )  # fmt: skip
        run(
            "x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-CAcreateserial",
            "-days", days, "-extfile", lines, "-out", pair.cert,
        )  # fmt: skip
        return pair


def run(*arguments: object) -> None:
    """`openssl` with these arguments."""
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
