"""Protobuf messages built from compact tables, in descriptor pools of our own.

A pool is private because a client library in the same process may register the same names in the default one.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from ekiben.errors import InvalidRequest

__all__ = ["ProtoFile", "Schema"]

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_FIELD_FORM: Final = re.compile(
    r"(?P<number>\d+) (?P<name>\w+) (?P<type>[\w.]+|map<\w+,[\w.]+>)(?P<repeated>\*?)(?:@(?P<oneof>\w+))?"
)
_METHOD_FORM: Final = re.compile(
    r"(?P<name>\w+) (?P<takes_many>stream )?(?P<input>\w+) > (?P<gives_many>stream )?(?P<output>\w+)"
)


class ProtoFile(msgspec.Struct, frozen=True):
    """One .proto file (proto3) as tables. Types are those of its own package or of the files before it with the same.

    `messages`: message → its fields as `number name type`, between `; `; `*` is repeated, `@x` puts it into oneof x.
    `enums`: enum → its values in order, from 0. `services`: service → its methods as `name input > output`. A dotted
    name lies in the one before the dot.
    """

    name: str
    package: str
    messages: Mapping[str, str]
    enums: Mapping[str, str] = {}
    services: Mapping[str, str] = {}


@final
class Schema:
    """Message classes of some files, and the files themselves as reflection sends them."""

    def __init__(self, *files: ProtoFile) -> None:
        """Each file may use what the files before it declare."""
        self.services: Final = tuple(f"{file.package}.{service}" for file in files for service in file.services)
        self._pool = descriptor_pool.DescriptorPool()
        self._package = files[-1].package
        self._classes: dict[str, type[Any]] = {}
        self.files: Final[dict[str, bytes]] = {}
        """File name → serialized FileDescriptorProto, in an order in which each comes after those it needs."""
        known: set[str] = set()
        for file in files:
            known |= {f"{file.package}.{name}" for name in (*file.messages, *file.enums)}
            enums = {f"{each.package}.{name}" for each in files for name in each.enums}
            serialized = _descriptor(file, list(self.files), known, enums).SerializeToString()
            self._pool.AddSerializedFile(serialized)
            self.files[file.name] = serialized

    def message(self, name: str) -> type[Any]:
        """The class of a message of the last file's package."""
        found = self._classes.get(name)
        if found is None:
            descriptor = self._pool.FindMessageTypeByName(f"{self._package}.{name}")
            found = self._classes[name] = message_factory.GetMessageClass(descriptor)
        return found

    def parse(self, name: str, data: memoryview | bytes) -> Any:
        """A message of that name from its bytes. Raises InvalidRequest."""
        try:
            return self.message(name).FromString(data)
        except DecodeError:
            raise InvalidRequest(f"the request is not a well-formed {self._package}.{name} message") from None

    def file_of(self, symbol: str) -> str | None:
        """The name of the file that declares a message, enum, service, method or field by its full name."""
        owner = symbol.rpartition(".")[0]
        try:
            # The pool does not find methods by itself.
            return str(self._pool.FindFileContainingSymbol(owner if owner in self.services else symbol).name)
        except KeyError:
            return None


def _descriptor(
    file: ProtoFile, needed: list[str], known: set[str], enums: set[str]
) -> descriptor_pb2.FileDescriptorProto:
    made = descriptor_pb2.FileDescriptorProto(name=file.name, package=file.package, syntax="proto3", dependency=needed)
    messages: dict[str, descriptor_pb2.DescriptorProto] = {}
    for path in sorted(file.messages, key=lambda path: path.count(".")):
        outer, _, name = path.rpartition(".")
        message = messages[outer].nested_type.add() if outer else made.message_type.add()
        message.name = name
        messages[path] = message
    for path, values in file.enums.items():
        outer, _, name = path.rpartition(".")
        enum = messages[outer].enum_type.add() if outer else made.enum_type.add()
        enum.name = name
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    for path, fields in file.messages.items():
        for form in _forms(_FIELD_FORM, path, fields):
            _add_field(messages[path], f"{file.package}.{path}", file.package, form, known, enums)
    for name, methods in file.services.items():
        service = made.service.add(name=name)
        for form in _forms(_METHOD_FORM, name, methods):
            service.method.add(
                name=form["name"],
                input_type=f".{file.package}.{form['input']}",
                output_type=f".{file.package}.{form['output']}",
                client_streaming=bool(form["takes_many"]),
                server_streaming=bool(form["gives_many"]),
            )
    return made


def _forms(pattern: re.Pattern[str], path: str, texts: str) -> Iterator[re.Match[str]]:
    for text in filter(None, texts.split("; ")):
        form = pattern.fullmatch(text)
        if form is None:
            raise ValueError(f"{path}: '{text}' is not of the form {pattern.pattern}")
        yield form


def _add_field(
    message: descriptor_pb2.DescriptorProto,
    path: str,
    package: str,
    form: re.Match[str],
    known: set[str],
    enums: set[str],
) -> None:
    field = message.field.add(name=form["name"], number=int(form["number"]), label=_FIELD.LABEL_OPTIONAL)
    kind = form["type"]
    if kind.startswith("map<"):
        key, _, value = kind[len("map<") : -1].partition(",")
        entry = message.nested_type.add(name="".join(part.title() for part in form["name"].split("_")) + "Entry")
        entry.options.map_entry = True
        _set_type(entry.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL), package, key, known, enums)
        _set_type(entry.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL), package, value, known, enums)
        field.label = _FIELD.LABEL_REPEATED
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{path}.{entry.name}"
        return
    if form["repeated"]:
        field.label = _FIELD.LABEL_REPEATED
    if form["oneof"]:
        names = [oneof.name for oneof in message.oneof_decl]
        if form["oneof"] not in names:
            names.append(message.oneof_decl.add(name=form["oneof"]).name)
        field.oneof_index = names.index(form["oneof"])
    _set_type(field, package, kind, known, enums)


def _set_type(
    field: descriptor_pb2.FieldDescriptorProto, package: str, kind: str, known: set[str], enums: set[str]
) -> None:
    name = f"{package}.{kind}"
    if name in known:
        field.type = _FIELD.TYPE_ENUM if name in enums else _FIELD.TYPE_MESSAGE
        field.type_name = f".{name}"
    else:
        field.type = _FIELD.Type.Value(f"TYPE_{kind.upper()}")
