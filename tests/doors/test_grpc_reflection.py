"""Server reflection: a tool that knows nothing finds the services and all their messages."""

import asyncio
from typing import Any

import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from ekiben.doors.grpc_reflection import GrpcReflection
from ekiben.wire.protos.grpc import HEALTH, REFLECTION, REFLECTION_ALPHA
from ekiben.wire.protos.oip import OIP
from ekiben.wire.protos.schema import Schema
from tests.doors.grpc_house import serving, stream


def _ask(schema: Schema, *questions: dict[str, Any]) -> list[Any]:
    async def talk() -> list[bytes]:
        reflection = GrpcReflection([OIP, HEALTH])
        asked = [schema.message("ServerReflectionRequest")(**question).SerializeToString() for question in questions]
        async with serving(reflection.methods) as address, grpc.aio.insecure_channel(address) as channel:
            return await stream(channel, f"/{schema.services[0]}/ServerReflectionInfo", asked)

    return [schema.parse("ServerReflectionResponse", reply) for reply in asyncio.run(talk())]


@pytest.mark.parametrize("schema", [REFLECTION, REFLECTION_ALPHA])
def test_every_service_can_be_explored(schema: Schema) -> None:
    (listed,) = _ask(schema, {"list_services": "*", "host": "h"})
    assert (listed.valid_host, listed.original_request.list_services) == ("h", "*")
    services = [each.name for each in listed.list_services_response.service]
    assert services == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
    ]
    pool = descriptor_pool.DescriptorPool()
    for reply in _ask(schema, *({"file_containing_symbol": service} for service in services)):
        for serialized in reversed(reply.file_descriptor_response.file_descriptor_proto):
            pool.AddSerializedFile(serialized)
    for service in services:
        assert pool.FindServiceByName(service).methods
    infer = pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name["ModelInfer"]
    assert infer.input_type.fields_by_name["raw_input_contents"].number == 7


def test_files_and_what_is_not_there() -> None:
    named, extensions, *missing = _ask(
        REFLECTION,
        {"file_by_filename": "model_config.proto"},
        {"all_extension_numbers_of_type": "inference.ModelInferRequest"},
        {"file_by_filename": "nope.proto"},
        {"file_containing_symbol": "inference.Nope"},
        {"all_extension_numbers_of_type": "inference.Nope"},
        {"file_containing_extension": {"containing_type": "inference.ModelInferRequest", "extension_number": 5}},
    )
    (file,) = named.file_descriptor_response.file_descriptor_proto
    assert descriptor_pb2.FileDescriptorProto.FromString(file).package == "inference"
    assert extensions.all_extension_numbers_response.base_type_name == "inference.ModelInferRequest"
    assert not extensions.all_extension_numbers_response.extension_number
    assert [reply.error_response.error_code for reply in missing] == [5, 5, 5, 5]
    assert missing[0].error_response.error_message == "file_by_filename: 'nope.proto' is not found"


def test_question_without_one() -> None:
    (reply,) = _ask(REFLECTION, {})
    assert (reply.error_response.error_code, reply.error_response.error_message) == (3, "the request asks for nothing")
