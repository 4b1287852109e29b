"""The command line: `ekiben serve | import | list | inspect | infer | conformance`.

It parses, calls the rooms, and prints.
Exit status: 0, 1 for a failure, 2 for wrong usage or settings; the reason is one line on stderr.
"""

import argparse
import asyncio
import importlib
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import yaml

from ekiben.clock import SYSTEM_CLOCK
from ekiben.conformance.options import add_options
from ekiben.errors import EkibenError, InvalidSettings, LoadFailed, NotFound, Unavailable
from ekiben.inputs import tensor_spec
from ekiben.repository.config import full_yaml
from ekiben.repository.layout import NUMBERS_FILE, STORE, Reader, open_repositories
from ekiben.repository.selection import AvailableModel, AvailableVersion
from ekiben.repository.version_numbers import VersionNumbers, number_in
from ekiben.runner.cores import usable_cores
from ekiben.runner.supervisor import Runner
from ekiben.service_file import SERVICE, declared_reader, service_folder
from ekiben.settings import FILES, GRACE_SECONDS, PARENT_VARIABLE, Settings, bentoml_home, to_environment
from ekiben.tls import load_identity
from ekiben.types import Signature, VersionSource

__all__ = ["main", "parser"]

_DEFAULT_URL: Final = "http://127.0.0.1:3000"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_UNREACHED: Final = "cannot be reached"
_USAGE, _FAILURE, _INTERRUPTED = 2, 1, 130


class _Parser(argparse.ArgumentParser):
    """Wrong usage is one line that says where help is."""

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE, f"ekiben: {message}; see `{self.prog} --help`\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` is without the program's name. Returns the exit status."""
    try:
        arguments = parser().parse_args(argv)
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    except InvalidSettings as error:
        return _fail(error.message, _USAGE)
    except EkibenError as error:
        return _fail(error.message, _FAILURE)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has gone, as `head` does; what Python would still flush at exit goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILURE
    except OSError as error:
        return _fail(str(error), _FAILURE)


def parser() -> argparse.ArgumentParser:
    """The whole command line, for `main` and for the test that the documentation is complete."""
    top = _Parser(
        prog="ekiben", description="Serve TensorFlow, TorchScript, ONNX and Python models.", allow_abbrev=False
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument(
        "--repository",
        dest="repositories",
        action="append",
        metavar="PATH",
        help="a folder of models, or 'store'; repeatable",
    )
    state = argparse.ArgumentParser(add_help=False)
    state.add_argument("--config", metavar="FILE", help="settings: an ekiben.yaml")
    state.add_argument(
        "--state-dir", metavar="PATH", help="where integer versions are kept (ekiben/ under BENTOML_HOME)"
    )

    def command(name: str, run: Callable[[argparse.Namespace], int], summary: str, *parents: Any) -> Any:
        made = commands.add_parser(name, help=summary, description=summary, parents=parents, allow_abbrev=False)
        made.set_defaults(run=run)
        return made

    serve = command("serve", _serve, "Start the server.", place, state)
    serve.add_argument("--host", metavar="ADDRESS", help="address to listen on (127.0.0.1; 0.0.0.0 opens it)")
    serve.add_argument("--port", type=int, help="HTTP port (3000)")
    serve.add_argument("--grpc-port", type=int, metavar="PORT", help="gRPC port (3001; 0: none)")
    serve.add_argument(
        "--model-control", choices=("none", "poll", "explicit"), help="what is loaded at start (none: all)"
    )
    serve.add_argument(
        "--load-model", dest="load_models", action="append", metavar="NAME", help="load this, with explicit; repeatable"
    )
    serve.add_argument(
        "--allow-client-shm",
        action="store_const",
        const=True,
        help="clients may pass tensors in shared memory: whoever reaches the ports then reads and writes /dev/shm",
    )
    serve.add_argument(
        "--allow-load-override",
        action="store_true",
        default=None,
        help="let clients load a configuration and files of their own",
    )
    serve.add_argument("--workers", type=int, help="server processes (1)")
    serve.add_argument("--tls-cert", metavar="FILE", help="certificate of both ports, with those that lead to its CA")
    serve.add_argument("--tls-key", metavar="FILE", help="its private key")
    serve.add_argument("--tls-client-ca", metavar="FILE", help="let in only clients that these CAs certified")
    serve.add_argument("--grpc-tls-cert", metavar="FILE", help="for the gRPC port in place of --tls-cert")
    serve.add_argument("--grpc-tls-key", metavar="FILE", help="for the gRPC port in place of --tls-key")
    serve.add_argument("--grpc-tls-client-ca", metavar="FILE", help="for the gRPC port in place of --tls-client-ca")
    serve.add_argument(
        "--http-restricted-api",
        dest="http_restricted",
        action="append",
        metavar="GROUP,…:HEADER=VALUE",
        help="only for callers that send this header: groups of HTTP endpoints; repeatable",
    )
    serve.add_argument(
        "--grpc-restricted-protocol",
        dest="grpc_restricted",
        action="append",
        metavar="GROUP,…:KEY=VALUE",
        help="the same for gRPC: the header is triton-grpc-protocol-KEY; repeatable",
    )
    serve.add_argument(
        "--trace-file", metavar="FILE", help="where traces go that clients switch on (none: they cannot)"
    )

    bring = command("import", _import, "Put a model into the Bento model store.", state)
    bring.add_argument("path", metavar="PATH", type=Path, help="a model file or folder")
    bring.add_argument("--name", required=True, help="name of the model")
    bring.add_argument("--version", default="", help="version (BentoML makes one up)")
    bring.add_argument(
        "--example", metavar="FILE", type=Path, help="an .npz or .npy file of inputs to try the model with"
    )
    bring.add_argument(
        "--input",
        dest="inputs",
        action="append",
        default=[],
        metavar="NAME:DATATYPE:SHAPE",
        help="an input of a model that does not describe itself, as in image:FP32:-1,3,224,224; repeatable",
    )
    bring.add_argument("--runtime", default="", help="onnx, tensorflow, torchscript or python, where it is not clear")

    command("list", _list, "List the models and versions in the repositories.", place, state)

    inspect = command("inspect", _inspect, "Print a model's configuration and signature as YAML.", place, state)
    inspect.add_argument("model", metavar="NAME[:VERSION]")

    infer = command("infer", _infer, "Ask a running server.", place, state)
    infer.add_argument("model", metavar="NAME[:VERSION]")
    infer.add_argument(
        "--input",
        dest="inputs",
        action="append",
        required=True,
        metavar="NAME=VALUE",
        help="JSON, FILE.npy, FILE.npz or @FILE; repeatable",
    )
    infer.add_argument("--url", default=os.environ.get("EKIBEN_URL", _DEFAULT_URL), help=f"the server ({_DEFAULT_URL})")
    infer.add_argument("--cacert", metavar="FILE", help="trust only these CAs, for https")
    infer.add_argument("--cert", metavar="FILE", help="certificate to show, where the server asks for one")
    infer.add_argument("--key", metavar="FILE", help="its private key")
    infer.add_argument(
        "--header",
        dest="headers",
        action="append",
        metavar="NAME=VALUE",
        help="what the server asks for where it is restricted; repeatable",
    )
    infer.add_argument("--json", action="store_true", help="print the answer as JSON")

    add_options(command("conformance", _conformance, "Check any server of the Open Inference Protocol."))
    return top


def _serve(arguments: argparse.Namespace) -> int:
    """Become `bentoml serve`. What is wrong with the settings is said here, before any process is started."""
    options = {name: getattr(arguments, name, None) for name in Settings.__struct_fields__}
    if options["repositories"]:
        options["repositories"] = [_absolute(each) for each in options["repositories"]]
    settings = Settings.load(arguments.config, os.environ, options)
    _open(settings)
    _check_tls(settings)
    options |= {name: getattr(settings, name) or None for name in FILES}
    if settings.trace_file and not Path(settings.trace_file).parent.is_dir():
        raise InvalidSettings(f"trace_file must lie in a folder that exists, got '{settings.trace_file}'")
    for name in ("state_dir", "trace_file"):  # absolute: the server may have another working directory
        options[name] = getattr(settings, name) or None
    host = _address(settings.host)
    _check_port(host, settings.port, "--port")
    _check_port(host, settings.grpc_port, "--grpc-port")
    environment = {**os.environ, **to_environment({**options, "host": host, "port": settings.port})}
    environment[PARENT_VARIABLE] = str(os.getpid())
    if arguments.config:
        environment["EKIBEN_CONFIG"] = _absolute(arguments.config)
    command = [sys.executable, "-m", "bentoml", "serve", SERVICE, "--working-dir", str(service_folder())]
    command += ["--timeout-graceful-shutdown", str(GRACE_SECONDS)]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


def _import(arguments: argparse.Namespace) -> int:
    settings = Settings.load(arguments.config, os.environ, {"state_dir": arguments.state_dir})
    numbers = VersionNumbers(Path(settings.state_dir) / NUMBERS_FILE).words(arguments.name)
    for word, number in numbers.items():
        if number == number_in(arguments.version):
            raise InvalidSettings(
                f"'{arguments.name}' has a version {number} already: it is '{word}'; choose a number above "
                f"{max(numbers.values())}, or a word"
            )
    if sys.stderr.isatty():
        print(f"importing {arguments.path}: it is tried in a real runner before it is stored …", file=sys.stderr)
    importer = importlib.import_module("ekiben.importer")
    tag = importer.import_model(
        arguments.path,
        name=arguments.name,
        version=arguments.version,
        example=arguments.example,
        inputs=[tensor_spec(text) for text in arguments.inputs],
        runtime=arguments.runtime,
    )
    print(tag)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    reader = _reader(arguments)
    models = reader.models()
    if not models:
        print(f"ekiben: no models in {reader.describe()}; `ekiben import PATH --name NAME` stores one", file=sys.stderr)
        return 0
    rows = [row for model in models for row in _rows(model)]
    print(_table(("NAME", "VERSION", "WORD", "WANTED", "RUNTIME", "SIZE", "CREATED", "LABELS"), rows))
    for model in models:
        if model.error:
            _fail(f"{model.name}: {model.error}", _FAILURE)
        for version in model.versions:
            if version.error:
                _fail(f"{model.name} version {_both_names(version)}: {version.error}", _FAILURE)
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    model, version = _find(_reader(arguments), arguments.model)
    if version.error:
        raise NotFound(f"model '{model.name}' version {version.number}: {version.error}")
    about = {
        "name": model.name,
        "version": version.number,
        **({"word": version.word} if version.word else {}),
        "wanted": version.number in model.wanted(),
        "path": version.path,
        "size_bytes": _size_bytes(Path(version.path)),
        "created": _date(version.created),
        "labels": dict(version.labels),
    }
    settings, problem = version.settings, ""
    if not settings.signatures:
        source = VersionSource(model.name, version.number, version.path, settings, version.word)
        try:
            settings = msgspec.structs.replace(settings, signatures=asyncio.run(_signatures(source)))
        except LoadFailed as error:
            problem = error.message
    sys.stdout.write(yaml.safe_dump(about, sort_keys=False, allow_unicode=True) + full_yaml(settings))
    return _fail(f"the signature cannot be read: {problem}", _FAILURE) if problem else 0


async def _signatures(source: VersionSource) -> dict[str, Signature]:
    """As the model itself has them: read in a runner, for no framework is imported here."""
    runner = Runner(source, source.settings, SYSTEM_CLOCK, lambda _: None, usable_cores())
    try:
        return dict((await runner.start()).signatures)
    finally:
        await runner.stop()


def _infer(arguments: argparse.Namespace) -> int:
    ask = importlib.import_module("ekiben.ask")
    given = {name: getattr(arguments, name) for name in ("cacert", "cert", "key", "headers")}
    url = arguments.url if "://" in arguments.url else f"http://{arguments.url}"
    print(
        ask.ask(
            url,
            {name: value for name, value in given.items() if value},
            arguments.model,
            arguments.inputs,
            lambda: _find(_reader(arguments), arguments.model),
            as_json=arguments.json,
        )
    )
    return 0


def _conformance(arguments: argparse.Namespace) -> int:
    conformance = importlib.import_module("ekiben.conformance.command")
    try:
        status: int = conformance.run_command(arguments)
    except Unavailable as error:
        return _fail(error.message, _USAGE)
    return status


def _fail(message: str, status: int) -> int:
    print(f"ekiben: {' '.join(message.split())}", file=sys.stderr)
    return status


def _reader(arguments: argparse.Namespace) -> Reader:
    """What `ekiben serve` would serve from here: with what service.py declares, where the store is looked into."""
    options = {"repositories": arguments.repositories, "state_dir": arguments.state_dir}
    settings = Settings.load(arguments.config, os.environ, options)
    if settings.repositories and STORE not in settings.repositories:
        return _open(settings)
    try:
        declared = declared_reader()
    except LoadFailed as error:
        _fail(error.message, _FAILURE)
        declared = None
    return _open(settings) if declared is None else declared(settings)


def _open(settings: Settings) -> Reader:
    return open_repositories(
        settings.repositories or (STORE,), home=bentoml_home(os.environ), state_directory=Path(settings.state_dir)
    )


def _absolute(path: str) -> str:
    return path if path == STORE else str(Path(path).expanduser().absolute())


def _address(host: str) -> str:
    """The host as an IP address, which is all that BentoML takes."""
    try:
        return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
    except ValueError:
        raise InvalidSettings(f"host must be an IP address, like 127.0.0.1 or 0.0.0.0, got '{host}'") from None


def _check_tls(settings: Settings) -> None:
    """Raise InvalidSettings for files that cannot be used; say what clients will refuse."""
    ports = (settings.http_tls, settings.grpc_tls if settings.grpc_port else None)
    for files in {files for files in ports if files is not None}:
        flaw = load_identity(files).flaw
        if flaw:
            print(f"ekiben: clients will refuse the certificate '{files.cert}': {flaw}", file=sys.stderr)


def _check_port(host: str, port: int, option: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Unavailable(
                f"port {port} on {host} cannot be listened on: {error.strerror}; choose another with {option}"
            ) from None


def _find(reader: Reader, name: str) -> tuple[AvailableModel, AvailableVersion]:
    """A model and one of its versions: the one named after a colon, else the newest wanted, else the newest."""
    name, _, wanted = name.partition(":")
    models = {model.name: model for model in reader.models()}
    if name not in models:
        known = f"; it has {', '.join(models)}" if models else ""
        raise NotFound(f"{reader.describe()} has no model '{name}'{known}")
    model = models[name]
    if model.error and not model.versions:
        raise NotFound(f"model '{name}': {model.error}")
    numbers = model.wanted() or tuple(version.number for version in model.versions)
    for version in model.versions:
        if wanted in (version.word, str(version.number)) if wanted else version.number == numbers[-1]:
            return model, version
    have = ", ".join(_both_names(version) for version in model.versions)
    raise NotFound(f"model '{name}' has no version '{wanted}'; it has {have}")


def _both_names(version: AvailableVersion) -> str:
    return f"{version.number} ({version.word})" if version.word else str(version.number)


def _rows(model: AvailableModel) -> list[tuple[str, ...]]:
    if not model.versions:
        return [(model.name, "-", "", "error", "", "", "", "")]
    try:
        wanted = () if model.error else model.wanted()
    except InvalidSettings:
        wanted = ()
    return [
        (
            model.name,
            str(version.number),
            version.word,
            "error" if version.error or model.error else "yes" if version.number in wanted else "no",
            version.settings.runtime,
            _size(_size_bytes(Path(version.path))),
            _date(version.created),
            ",".join(f"{key}={value}" for key, value in sorted(version.labels.items())),
        )
        for version in model.versions
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    )


def _size_bytes(path: Path) -> int:
    """Of all files below, a linked file counting as the file; linked folders are not followed."""
    total = 0
    for folder, _, files in os.walk(path):
        for file in files:
            try:
                total += (Path(folder) / file).stat().st_size
            except OSError:
                continue  # A link to nowhere takes no space.
    return total


def _size(size_bytes: int) -> str:
    value, unit = float(size_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size_bytes} B"


def _date(epoch: float) -> str:
    return datetime.fromtimestamp(epoch).astimezone().isoformat(" ", "seconds")


if __name__ == "__main__":
    sys.exit(main())
