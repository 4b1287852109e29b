"""What `ekiben infer` does: ask a running server, and write its answer down."""

import asyncio
import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from ekiben.errors import InferenceFailed, Unavailable, Unsupported
from ekiben.inputs import is_image, read_inputs
from ekiben.remote import RemoteEngine, access_from
from ekiben.repository.selection import AvailableModel, AvailableVersion
from ekiben.types import Request, Response, Tensor, datatype_of

__all__ = ["ask"]

_HINTS: Final = {
    "CERTIFICATE_VERIFY_FAILED": "; name the CA of its certificate with --cacert",
    "cannot be reached": "; start a server with `ekiben serve`, or name it with --url",
}
"""What is in a message → what to do; the first that fits."""

Here = Callable[[], tuple[AvailableModel, AvailableVersion]]
"""Finds the model in the repositories of this machine."""


def ask(
    url: str, access: Mapping[str, Any], model: str, inputs: Sequence[str], here: Here, *, as_json: bool = False
) -> str:
    """The answer as text. `access` is what was given of remote.Access; the environment has the rest.

    `inputs` are texts NAME=VALUE; for an image among them `here` has the preprocess declaration. Raises EkibenError.
    """
    name, _, version = model.partition(":")
    images = [value for value in (text.partition("=")[2] or text for text in inputs) if is_image(value)]
    vision = _Vision(*here()) if images else None

    async def run() -> Response:
        engine = RemoteEngine(url, msgspec.structs.replace(access_from(os.environ), **access))
        try:
            signature = (await engine.version(name, version)).default
        except Unavailable as error:
            hint = next((hint for words, hint in _HINTS.items() if words in error.message), "")
            raise Unavailable(f"{error.message}{hint}") from None
        tensors = read_inputs(inputs, signature.inputs, name, vision.prepare if vision else _no_image)
        return await engine.infer(Request(name, tensors, version))

    try:
        response = asyncio.run(run())
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise InferenceFailed(
            f"{url} does not answer as a server of the Open Inference Protocol does: {error!r}"
        ) from None
    if as_json:
        return json.dumps(_as_json(response))
    lines = [f"{response.model} version {response.version}"]
    for output, tensor in response.outputs.items():
        lines.append(f"{output}: {datatype_of(tensor)} {list(tensor.shape)}")
        lines.append((vision.ranked(output, tensor) if vision else "") or _readable(tensor))
    return "\n".join(lines)


class _Vision:
    """The preprocess declaration of a model in the repositories here: images in, ranked labels out."""

    def __init__(self, model: AvailableModel, version: AvailableVersion) -> None:
        self._preprocess = importlib.import_module("ekiben.preprocess")
        if version.settings.preprocess is None:
            raise Unsupported(f"model '{model.name}' has no preprocess declaration, so it cannot take an image")
        self._declaration = self._preprocess.parse(version.settings.preprocess, model.name)
        label_file = version.settings.labels.get(self._declaration.output)
        self._labels = Path(label_file).read_text(encoding="utf-8").splitlines() if label_file else ()

    def prepare(self, path: Path) -> Tensor:
        """The tensor of an image file."""
        pixels = self._preprocess.decode(path.read_bytes(), self._declaration.max_pixels)
        tensor: Tensor = self._preprocess.prepare(self._declaration, [pixels])
        return tensor

    def ranked(self, output: str, tensor: Tensor) -> str:
        """The best labels as text; '' for an output that holds no scores."""
        if output != self._declaration.output:
            return ""
        best = self._preprocess.rank(self._declaration, tensor, self._labels)[0]
        return "\n".join(f"  {each.score:.4f}  {each.label}" for each in best)


def _no_image(path: Path) -> Tensor:
    raise Unsupported(f"'{path}' is an image, and the input takes numbers: write it as NAME=@{path}")


def _readable(tensor: Tensor) -> str:
    if tensor.dtype == np.object_:
        tensor = np.array([_text(each) for each in tensor.reshape(-1)], np.object_).reshape(tensor.shape)
    text = np.array2string(tensor, threshold=40, edgeitems=5, max_line_width=100, separator=", ")
    return "\n".join(f"  {line}" for line in text.splitlines())


def _text(element: bytes) -> str:
    return element.decode("utf-8", "backslashreplace")


def _as_json(response: Response) -> Mapping[str, object]:
    return {
        "model_name": response.model,
        "model_version": response.version,
        "outputs": [
            {
                "name": name,
                "datatype": datatype_of(tensor),
                "shape": list(tensor.shape),
                "data": [_text(each) if isinstance(each, bytes) else each for each in tensor.reshape(-1).tolist()],
            }
            for name, tensor in response.outputs.items()
        ],
    }
