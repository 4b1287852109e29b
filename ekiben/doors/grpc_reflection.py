"""gRPC server reflection, v1 and v1alpha: tools list the services and get their .proto files as descriptors."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Final, final

from ekiben.doors.grpc_calls import Call, Methods
from ekiben.wire.h2.codes import Status
from ekiben.wire.protos.grpc import REFLECTION, REFLECTION_ALPHA
from ekiben.wire.protos.schema import Schema

__all__ = ["GrpcReflection"]


@final
class GrpcReflection:
    """Tells of the services in some schemas, and of itself."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        self._schemas = (*schemas, REFLECTION, REFLECTION_ALPHA)
        self._services = sorted({service for schema in self._schemas for service in schema.services})
        self.methods: Final = Methods(
            {},
            {
                f"/{schema.services[0]}/ServerReflectionInfo": partial(self._info, schema)
                for schema in (REFLECTION, REFLECTION_ALPHA)
            },
        )

    async def _info(self, schema: Schema, messages: AsyncIterator[memoryview], _call: Call) -> AsyncIterator[bytes]:
        async for data in messages:
            request = schema.parse("ServerReflectionRequest", data)
            reply = schema.message("ServerReflectionResponse")(valid_host=request.host, original_request=request)
            self._answer(request, reply)
            yield reply.SerializeToString()

    def _answer(self, request: Any, reply: Any) -> None:
        asked = request.WhichOneof("message_request")
        files: list[bytes] = []
        what = ""
        match asked:
            case "list_services":
                for service in self._services:
                    reply.list_services_response.service.add(name=service)
                return
            case "file_by_filename":
                what = request.file_by_filename
                files = self._files(what)
            case "file_containing_symbol":
                what = request.file_containing_symbol
                files = self._files_with(what)
            case "all_extension_numbers_of_type":
                what = request.all_extension_numbers_of_type
                if self._files_with(what):
                    # Messages of proto3 have no extensions.
                    reply.all_extension_numbers_response.base_type_name = what
                    return
            case "file_containing_extension":
                extension = request.file_containing_extension
                what = f"{extension.containing_type} {extension.extension_number}"
            case _:
                reply.error_response.error_code = Status.INVALID_ARGUMENT
                reply.error_response.error_message = "the request asks for nothing"
                return
        if files:
            reply.file_descriptor_response.file_descriptor_proto.extend(files)
        else:
            reply.error_response.error_code = Status.NOT_FOUND
            reply.error_response.error_message = f"{asked}: '{what}' is not found"

    def _files_with(self, symbol: str) -> list[bytes]:
        for schema in self._schemas:
            name = schema.file_of(symbol)
            if name is not None:
                return self._files(name)
        return []

    def _files(self, name: str) -> list[bytes]:
        """The file, then those it may need: all before it in its schema."""
        for schema in self._schemas:
            if name in schema.files:
                names = list(schema.files)
                return [schema.files[each] for each in reversed(names[: names.index(name) + 1])]
        return []
