"""A file or folder → a model in the Bento model store: detect, sign, try in a real runner, save.

Nothing is stored that did not answer. No framework is imported here: a TorchScript archive is looked into, and a Keras
file converted, in processes of their own.
"""

import asyncio
import contextlib
import importlib
import importlib.metadata
import mmap
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import yaml

from ekiben.clock import SYSTEM_CLOCK
from ekiben.errors import InvalidRequest, InvalidSettings, LoadFailed
from ekiben.inputs import read_inputs
from ekiben.plain import load_yaml
from ekiben.repository.config import SETTINGS_FILE, settings_from, to_yaml
from ekiben.repository.detect import KERAS_SUFFIXES, Detected, detect
from ekiben.repository.stored import IMPORTED_LABEL, SETTINGS_KEY, read_stored
from ekiben.repository.version_numbers import number_in
from ekiben.runner.base import Batch, Executed, Outcome, Raised, TensorParts
from ekiben.runner.cores import usable_cores
from ekiben.runner.supervisor import Runner
from ekiben.runtimes.base import DEFAULT_SIGNATURE, check_output
from ekiben.settings import bentoml_home
from ekiben.types import DATATYPES, ModelSettings, Signature, Tensor, TensorSpec, VersionSource, datatype_of

__all__ = ["import_model"]

_PACKAGE_ROOT: Final = str(Path(__file__).resolve().parent.parent)
_TAG: Final = re.compile(r"[a-z0-9]([-._a-z0-9]{0,61}[a-z0-9])?")
"""A name or version in the Bento model store."""
_SIZES: Final = (1, 32, 224)
"""What a free dimension is tried with, where there is no example: zeros of 1 are too small for many convolutions."""
_EXTERNAL_DATA: Final = re.compile(rb"\x0a\x08location\x12([\x80-\xff]*[\x00-\x7f])")
"""In an ONNX file: key and value of an entry that names a file with weights, up to the name's length."""


class _Framework(NamedTuple):
    """How BentoML's own saver of a framework names things, so that its loader finds them too."""

    module: str
    api_version: str
    method: str
    file: str
    packages: tuple[str, ...]


_FRAMEWORKS: Final = {
    "onnx": _Framework("bentoml.onnx", "v2", "run", "saved_model.onnx", ("onnxruntime", "onnxruntime-gpu")),
    "tensorflow": _Framework("bentoml.tensorflow", "v1", "__call__", "", ("tensorflow",)),
    "torchscript": _Framework("bentoml.torchscript", "v1", "__call__", "saved_model.pt", ("torch",)),
}
_OWN_CODE: Final = _Framework("", "v1", "infer", "", ())
"""The python runtime, and runtimes of the user's own: their folder is kept as it is."""


def import_model(
    path: Path,
    *,
    name: str,
    version: str = "",
    example: Path | None = None,
    inputs: Sequence[TensorSpec] = (),
    runtime: str = "",
    home: Path | None = None,
) -> str:
    """Store the model at `path` and return its tag, `name:version`. Blocks; for the main thread.

    `path` is a model's file, or a folder with one in it; a `model.yaml` in that folder gives the settings, with labels
    and preprocessing, to start from. `version` '' lets BentoML make up a word. `example` is an .npz file with the
    inputs by name, or an .npy file with the only one. `inputs` are for a model that does not describe itself. `home` is
    the folder of the Bento stores, None the one that BentoML uses.

    Raises LoadFailed with the reason (InvalidSettings, InvalidRequest for what the caller gave): what cannot be served,
    did not load, or did not answer is not stored.
    """
    home = home or bentoml_home(os.environ)
    _check_tag(home, name, version)
    try:
        return _import(path.expanduser(), name, version, example, inputs, runtime, home)
    except OSError as error:
        raise LoadFailed(f"'{path}' cannot be imported: {error}") from error


def _import(
    path: Path,
    name: str,
    version: str,
    example: Path | None,
    inputs: Sequence[TensorSpec],
    runtime: str,
    home: Path,
) -> str:
    with tempfile.TemporaryDirectory(prefix="ekiben-import-") as scratch:
        found = _find(path, runtime, Path(scratch))
        folder = Path(scratch) / "model"
        folder.mkdir()
        settings = msgspec.structs.replace(found.settings, runtime=found.runtime, file=_stage(found, folder))
        settings = _with_signature(settings, folder, example, inputs)
        one = (msgspec.structs.replace(settings.instances[0], count=1),)
        trial = msgspec.structs.replace(settings, instances=one)
        source = VersionSource(name, number_in(version) or 1, str(folder), trial, version)
        settings = msgspec.structs.replace(settings, signatures=asyncio.run(_try(source, example)))
        return _store(home, name, version, settings, folder)


def _check_tag(home: Path, name: str, version: str) -> None:
    for what, text in (("name", name), ("version", version)):
        if text and not _TAG.fullmatch(text):
            raise InvalidSettings(
                f"'{text}' cannot be a model's {what} in the Bento model store: at most 63 lower-case letters, digits, "
                "'.', '_' and '-', with a letter or digit first and last"
            )
    if not name:
        raise InvalidSettings("a model needs a name")
    if version == "latest":
        raise InvalidSettings("version 'latest' is what BentoML calls the newest version; name it otherwise")
    if version and (home / "models" / name / version).exists():
        raise InvalidSettings(f"'{name}:{version}' is in the Bento model store already; versions are never replaced")


class _Found(NamedTuple):
    """What is to be imported, and from where."""

    runtime: str
    root: Path
    """The folder that files are named relative to."""
    file: str
    """The model's file or folder in it; '' is the folder itself."""
    settings: ModelSettings
    whole: bool
    """Whether the path that was given is the whole folder."""


def _find(path: Path, runtime: str, scratch: Path) -> _Found:
    if not path.exists():
        raise LoadFailed(f"there is no file or folder '{path}'")
    root = path if path.is_dir() else path.parent
    settings = _settings_beside(path, root)
    runtime = runtime or settings.runtime
    target = root / settings.file if settings.file and path.is_dir() else path
    if (keras := _keras_file(target)) is not None and runtime in ("", "tensorflow"):
        _child("ekiben.runtimes.keras_convert", f"Keras cannot convert '{keras}'", str(keras), str(scratch / "keras"))
        for file in settings.labels.values():
            _copy(root / file, scratch / "keras" / file)
        return _Found("tensorflow", scratch / "keras", "", settings, True)
    if ":" in runtime:
        return _Found(runtime, root, settings.file or ("" if path.is_dir() else path.name), settings, path.is_dir())
    found = _detect(path, root, target, runtime, settings)
    return _Found(found.runtime, root, found.file, settings, path.is_dir())


def _settings_beside(path: Path, root: Path) -> ModelSettings:
    """The model.yaml of the folder; where one file was named, only if it is that file's."""
    file = root / SETTINGS_FILE
    if not file.is_file():
        return ModelSettings()
    data = load_yaml(file)
    if "api_version" in data and "module" in data:  # BentoML's own: a folder of a model store
        metadata = data.get("metadata") or {}
        settings = settings_from(metadata.get(SETTINGS_KEY, {}), f"{file}: metadata.{SETTINGS_KEY}")
        if settings.runtime:
            return settings
        stored = read_stored(root, str(data["module"]), data.get("signatures") or {})
        return msgspec.structs.replace(settings, runtime=stored.runtime, file=stored.file)
    settings = settings_from(data, str(file))
    if path.is_file() and settings.file not in ("", path.name):
        return ModelSettings()
    return settings


def _detect(path: Path, root: Path, target: Path, runtime: str, settings: ModelSettings) -> Detected:
    if path.is_dir() and settings.file:
        if not target.exists():
            raise InvalidSettings(f"'{root / SETTINGS_FILE}' names the file '{settings.file}', which is not there")
        found = detect(target, runtime)
        return Detected(found.runtime, settings.file)
    return detect(path, runtime)


def _keras_file(target: Path) -> Path | None:
    """The Keras file to convert: the one named, or the only thing in the folder that could be a model."""
    if target.is_file():
        return target if target.suffix.lower() in KERAS_SUFFIXES else None
    try:
        detect(target)
    except InvalidSettings:
        return None
    except LoadFailed:
        files = [entry for entry in sorted(target.iterdir()) if entry.suffix.lower() in KERAS_SUFFIXES]
        return files[0] if len(files) == 1 else None
    return None


def _stage(found: _Found, folder: Path) -> str:
    """Put what belongs to the model into `folder`, as BentoML's own savers lay it out; the file's name there."""
    framework = _FRAMEWORKS.get(found.runtime, _OWN_CODE)
    model = found.root / found.file
    if framework is _OWN_CODE and found.whole:
        ignored = shutil.ignore_patterns("__pycache__", ".git", SETTINGS_FILE)
        shutil.copytree(found.root, folder, ignore=ignored, dirs_exist_ok=True)
        return found.file
    for file in found.settings.labels.values():
        _copy(found.root / file, folder / file)
    if framework is _OWN_CODE:
        _copy(model, folder / model.name)
        return model.name
    if found.runtime == "tensorflow":
        shutil.copytree(
            model, folder, copy_function=_copy, ignore=shutil.ignore_patterns(SETTINGS_FILE), dirs_exist_ok=True
        )
        return ""
    _copy(model, folder / framework.file)
    if found.runtime == "onnx":
        for name in _external_files(model):
            _copy(model.parent / name, folder / name)
    return framework.file


def _external_files(model: Path) -> set[str]:
    """The files beside an ONNX model that hold its weights. Raises LoadFailed for one outside the model's folder."""
    if not model.stat().st_size:
        return set()
    names = set()
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for match in _EXTERNAL_DATA.finditer(content):
            length = sum((byte & 0x7F) << (7 * index) for index, byte in enumerate(match[1]))
            names.add(content[match.end() : match.end() + length].decode("utf-8", "replace"))
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise LoadFailed(
                f"'{model}' keeps weights in '{name}', outside its own folder; save it anew with them inside"
            )
    return names


def _copy(source: str | Path, target: str | Path) -> None:
    """A second name for the file where the file system allows, for models are large; else a copy."""
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(Path(source).resolve(), target)
    except FileNotFoundError:
        raise LoadFailed(f"there is no file '{source}', which the model needs") from None
    except FileExistsError:
        return
    except OSError:
        shutil.copyfile(source, target)


def _with_signature(
    settings: ModelSettings, folder: Path, example: Path | None, inputs: Sequence[TensorSpec]
) -> ModelSettings:
    """With the signature of a model that does not describe itself."""
    if example is not None and not example.expanduser().is_file():
        raise InvalidRequest(f"there is no file '{example}'")
    if settings.runtime != "torchscript":
        if inputs:
            raise InvalidRequest(f"--input is for models that do not describe themselves; {settings.runtime} models do")
        return settings
    if DEFAULT_SIGNATURE in settings.signatures and not inputs:
        return settings
    if example is None and not inputs:
        raise InvalidRequest(
            "a TorchScript archive does not say what its inputs are; give an example of them with --example FILE.npz, "
            "or describe each with --input NAME:DATATYPE:SHAPE, as in image:FP32:-1,3,224,224"
        )
    signature = _probe(folder / settings.file, example, inputs)
    return msgspec.structs.replace(settings, signatures={**settings.signatures, DEFAULT_SIGNATURE: signature})


def _probe(model: Path, example: Path | None, inputs: Sequence[TensorSpec]) -> Signature:
    """Have the archive run once in a process of its own, and see what comes out."""
    with tempfile.TemporaryDirectory(prefix="ekiben-probe-") as scratch:
        question, answer = Path(scratch) / "question.json", Path(scratch) / "answer.json"
        given = {"model": str(model), "example": str(example.expanduser()) if example else "", "inputs": inputs}
        question.write_bytes(msgspec.json.encode(given))
        _child("ekiben.runtimes.torchscript_probe", "the TorchScript archive", str(question), str(answer))
        found = msgspec.json.decode(answer.read_bytes(), type=dict[str, Any])
    if found.get("error"):
        raise LoadFailed(f"the TorchScript archive did not run on the inputs given: {found['error']}")
    return msgspec.convert(found["signature"], Signature)


def _child(module: str, what: str, *arguments: str) -> None:
    """Run one of our modules in a process of its own, on the CPU. Raises LoadFailed with its last line."""
    environment = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, [_PACKAGE_ROOT, os.environ.get("PYTHONPATH")])),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"]
        raise LoadFailed(f"{what}: {lines[-1][:1000]}")


async def _try(source: VersionSource, example: Path | None) -> dict[str, Signature]:
    """Load it in a real runner and have it answer once; its signatures."""
    runner = Runner(source, source.settings, SYSTEM_CLOCK, lambda _: None, usable_cores())
    loaded = await runner.start()
    try:
        signature = loaded.signatures[DEFAULT_SIGNATURE]
        outcome: Outcome = Raised("")
        for inputs in _attempts(signature, source.model, example):
            outcome = await _run(runner, signature, inputs)
            if not isinstance(outcome, Raised):
                break
    finally:
        await runner.stop()
    if isinstance(outcome, Raised):
        given = "the example" if example else "zeros; give inputs that mean something with --example FILE.npz"
        raise LoadFailed(f"model '{source.model}' raised on {given}: {outcome.message}")
    if not isinstance(outcome, Executed):
        raise LoadFailed(f"model '{source.model}' ended its runner with its first inference: {outcome.reason}")
    # A stream may end without a response.
    for spec in signature.outputs if outcome.outputs else ():
        try:
            check_output(spec, outcome.outputs[spec.name])
        except ValueError as error:
            raise LoadFailed(f"model '{source.model}' gave an answer that is not in its signature: {error}") from None
    return dict(loaded.signatures)


def _attempts(signature: Signature, model: str, example: Path | None) -> list[dict[str, Tensor]]:
    if example is not None:
        return [read_inputs([str(example.expanduser())], signature.inputs, model, _no_image)]
    needed = [spec for spec in signature.inputs if not spec.optional]
    sizes = _SIZES if any(-1 in spec.shape[1:] for spec in needed) else _SIZES[:1]
    return [{spec.name: _zeros(spec, size) for spec in needed} for size in sizes]


def _no_image(path: Path) -> Tensor:
    raise InvalidRequest(f"an example must be an .npz or .npy file, got '{path}'")


def _zeros(spec: TensorSpec, size: int) -> Tensor:
    shape = [(size if axis else 1) if given == -1 else given for axis, given in enumerate(spec.shape)]
    return np.full(shape, b"" if spec.datatype == "BYTES" else 0, DATATYPES[spec.datatype])


async def _run(runner: Runner, signature: Signature, inputs: Mapping[str, Tensor]) -> Outcome:
    slot = runner.idle()
    if slot is None:
        raise LoadFailed("the model's runner ended before its first inference")
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(result: Outcome) -> None:
        if isinstance(result, Executed) and result.more:
            runner.advance(slot, stop=True)  # the first response of a stream will do
        if not outcome.done():
            outcome.set_result(result)

    parts = [TensorParts(name, datatype_of(tensor), (tensor,)) for name, tensor in inputs.items()]
    names = [spec.name for spec in signature.outputs]
    runner.submit(slot, Batch(DEFAULT_SIGNATURE, parts, names), done)
    return await outcome


def _store(home: Path, name: str, version: str, settings: ModelSettings, folder: Path) -> str:
    """Save the folder as BentoML does; the tag."""
    models = importlib.import_module("bentoml.models")
    store = importlib.import_module("bentoml._internal.models").ModelStore(home / "models")
    (home / "models").mkdir(parents=True, exist_ok=True)
    framework = _FRAMEWORKS.get(settings.runtime, _OWN_CODE)
    key, value = IMPORTED_LABEL
    with models.create(
        f"{name}:{version}" if version else name,
        module=framework.module,
        api_version=framework.api_version,
        signatures={framework.method: {"batchable": _is_batched(settings), "batch_dim": 0}},
        labels={key: value},
        metadata={SETTINGS_KEY: yaml.safe_load(to_yaml(settings))},
        context=models.ModelContext(framework_name=settings.runtime, framework_versions=_installed(framework.packages)),
        _model_store=store,
    ) as saved:
        shutil.copytree(folder, saved.path, dirs_exist_ok=True)
    return str(saved.tag)


def _is_batched(settings: ModelSettings) -> bool:
    signature = settings.signatures[DEFAULT_SIGNATURE]
    free = all(spec.shape[:1] == (-1,) for spec in (*signature.inputs, *signature.outputs))
    return free and settings.batching.max_batch_size != 0


def _installed(packages: Sequence[str]) -> dict[str, str]:
    versions = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
