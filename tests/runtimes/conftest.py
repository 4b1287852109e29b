"""What the tests of all runtimes share."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ekiben.runtimes.base import LoadContext
from ekiben.types import Parameter, Signature

MakeContext = Callable[..., LoadContext]


@pytest.fixture
def make_context(tmp_path: Path) -> MakeContext:
    """Builds a LoadContext for a model in `tmp_path`, with what the test says otherwise."""

    def make(
        *,
        path: Path = tmp_path,
        file: str = "",
        device: str = "cpu",
        signatures: Mapping[str, Signature] | None = None,
        batched: bool | None = None,
        parameters: Mapping[str, Parameter] | None = None,
        decoupled: bool | None = None,
    ) -> LoadContext:
        return LoadContext(
            model="fish",
            version=7,
            path=path,
            file=file,
            device=device,
            threads=1,
            signatures=signatures or {},
            batched=batched,
            parameters=parameters or {},
            decoupled=decoupled,
        )

    return make
