"""Our tables of messages are the public ones."""

from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from ekiben.errors import InvalidRequest
from ekiben.wire.protos.oip import OIP
from ekiben.wire.protos.schema import ProtoFile, Schema


def _fields(message: descriptor_pb2.DescriptorProto, path: str, into: dict[str, set[tuple[Any, ...]]]) -> None:
    into[path] = {
        (
            field.number,
            field.name,
            field.type,
            field.label,
            field.type_name,
            message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else "",
        )
        for field in message.field
    }
    for inner in message.nested_type:
        _fields(inner, f"{path}.{inner.name}", into)


def _read(serialized: bytes) -> tuple[descriptor_pb2.FileDescriptorProto, dict[str, set[tuple[Any, ...]]]]:
    file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
    messages: dict[str, set[tuple[Any, ...]]] = {}
    for message in file.message_type:
        _fields(message, message.name, messages)
    return file, messages


def test_service_is_tritons() -> None:
    ours, messages = _read(OIP.files["grpc_service.proto"])
    triton, theirs = _read(service_pb2.DESCRIPTOR.serialized_pb)
    assert messages == theirs
    methods = {
        (method.name, method.input_type, method.output_type, method.client_streaming, method.server_streaming)
        for method in ours.service[0].method
    }
    assert methods == {
        (method.name, method.input_type, method.output_type, method.client_streaming, method.server_streaming)
        for method in triton.service[0].method
    }


def test_model_config_is_part_of_tritons() -> None:
    ours, messages = _read(OIP.files["model_config.proto"])
    triton, theirs = _read(model_config_pb2.DESCRIPTOR.serialized_pb)
    for name, fields in messages.items():
        assert fields <= theirs[name], name
    enums = {enum.name: [(value.number, value.name) for value in enum.value] for enum in triton.enum_type}
    for enum in ours.enum_type:
        assert [(value.number, value.name) for value in enum.value] == enums[enum.name]


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("inference.GRPCInferenceService", "grpc_service.proto"),
        ("inference.GRPCInferenceService.ModelInfer", "grpc_service.proto"),
        ("inference.ModelInferRequest.InferInputTensor", "grpc_service.proto"),
        ("inference.DataType", "model_config.proto"),
        ("inference.Nothing", None),
        ("", None),
    ],
)
def test_files_by_symbol(symbol: str, file: str | None) -> None:
    assert OIP.file_of(symbol) == file


def test_message_that_is_none() -> None:
    with pytest.raises(InvalidRequest, match=r"not a well-formed inference\.ModelReadyRequest message"):
        OIP.parse("ModelReadyRequest", b"\x0a\x05x")


def test_table_with_a_mistake() -> None:
    with pytest.raises(ValueError, match="'1 name' is not of the form"):
        Schema(ProtoFile("x.proto", "x", {"X": "1 name"}))
