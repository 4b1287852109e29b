"""The trace and logging extensions on gRPC: TraceSetting and LogSettings, which read without settings and else change.

A setting without a value is cleared, as null is on HTTP.
"""

from typing import Any, Final, final

from ekiben.doors.grpc_calls import Call, Methods
from ekiben.doors.served import check_served
from ekiben.engine.engine import Engine
from ekiben.extensions.log_settings import LogSettings
from ekiben.extensions.traces import Traces
from ekiben.wire.protos.oip import OIP

__all__ = ["OipGrpcSettings"]


@final
class OipGrpcSettings:
    """Built once per engine; its methods are called on the engine's loop."""

    def __init__(self, engine: Engine, traces: Traces, log_settings: LogSettings) -> None:
        self._engine = engine
        self._traces = traces
        self._log_settings = log_settings
        path = f"/{OIP.services[0]}/"
        unary = {path + "TraceSetting": self._trace_setting, path + "LogSettings": self._log_setting}
        self.methods: Final = Methods(unary, {})

    def _trace_setting(self, data: memoryview, _call: Call) -> bytes:
        request = OIP.parse("TraceSettingRequest", data)
        model: str = request.model_name
        check_served(self._engine, model)
        self._traces.update(model, {name: list(setting.value) for name, setting in request.settings.items()})
        reply = OIP.message("TraceSettingResponse")()
        for name, value in self._traces.values(model).items():
            reply.settings[name].value.extend([value] if isinstance(value, str) else value)
        return bytes(reply.SerializeToString())

    def _log_setting(self, data: memoryview, _call: Call) -> bytes:
        request = OIP.parse("LogSettingsRequest", data)
        self._log_settings.update({name: _chosen(setting) for name, setting in request.settings.items()})
        reply = OIP.message("LogSettingsResponse")()
        for name, value in self._log_settings.values().items():
            kind = (
                "bool_param"
                if isinstance(value, bool)
                else "uint32_param"
                if isinstance(value, int)
                else "string_param"
            )
            setattr(reply.settings[name], kind, value)
        return bytes(reply.SerializeToString())


def _chosen(setting: Any) -> object:
    kind = setting.WhichOneof("parameter_choice")
    return None if kind is None else getattr(setting, kind)
