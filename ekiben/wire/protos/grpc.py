"""gRPC's own services: health checking and server reflection (grpc.health.v1, grpc.reflection.v1 and v1alpha)."""

from typing import Final

from ekiben.wire.protos.schema import ProtoFile, Schema

__all__ = ["HEALTH", "REFLECTION", "REFLECTION_ALPHA"]

HEALTH: Final = Schema(
    ProtoFile(
        "grpc/health/v1/health.proto",
        "grpc.health.v1",
        {
            "HealthCheckRequest": "1 service string",
            "HealthCheckResponse": "1 status HealthCheckResponse.ServingStatus",
        },
        {"HealthCheckResponse.ServingStatus": "UNKNOWN SERVING NOT_SERVING SERVICE_UNKNOWN"},
        {
            "Health": (
                "Check HealthCheckRequest > HealthCheckResponse; Watch HealthCheckRequest > stream HealthCheckResponse"
            )
        },
    )
)

_REFLECTION_MESSAGES: Final = {
    "ServerReflectionRequest": (
        "1 host string; 3 file_by_filename string@message_request; 4 file_containing_symbol string@message_request; "
        "5 file_containing_extension ExtensionRequest@message_request; "
        "6 all_extension_numbers_of_type string@message_request; 7 list_services string@message_request"
    ),
    "ExtensionRequest": "1 containing_type string; 2 extension_number int32",
    "ServerReflectionResponse": (
        "1 valid_host string; 2 original_request ServerReflectionRequest; "
        "4 file_descriptor_response FileDescriptorResponse@message_response; "
        "5 all_extension_numbers_response ExtensionNumberResponse@message_response; "
        "6 list_services_response ListServiceResponse@message_response; "
        "7 error_response ErrorResponse@message_response"
    ),
    "FileDescriptorResponse": "1 file_descriptor_proto bytes*",
    "ExtensionNumberResponse": "1 base_type_name string; 2 extension_number int32*",
    "ListServiceResponse": "1 service ServiceResponse*",
    "ServiceResponse": "1 name string",
    "ErrorResponse": "1 error_code int32; 2 error_message string",
}
_REFLECTION_SERVICE: Final = {
    "ServerReflection": "ServerReflectionInfo stream ServerReflectionRequest > stream ServerReflectionResponse"
}

REFLECTION: Final = Schema(
    ProtoFile(
        "grpc/reflection/v1/reflection.proto",
        "grpc.reflection.v1",
        _REFLECTION_MESSAGES,
        services=_REFLECTION_SERVICE,
    )
)
REFLECTION_ALPHA: Final = Schema(
    ProtoFile(
        "grpc/reflection/v1alpha/reflection.proto",
        "grpc.reflection.v1alpha",
        _REFLECTION_MESSAGES,
        services=_REFLECTION_SERVICE,
    )
)
"""The same messages under the older name, which many tools still ask for first."""
