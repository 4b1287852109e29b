"""The trace and logging extensions on HTTP: GET reads the settings, POST changes them and answers what holds then."""

from collections.abc import Mapping
from typing import Any, Final, final

import orjson

from ekiben.doors.http_calls import Answer, Fields, Handler, Receive, small_body
from ekiben.doors.served import check_served
from ekiben.engine.engine import Engine
from ekiben.extensions.log_settings import LogSettings
from ekiben.extensions.traces import Traces
from ekiben.wire.oip_paths import Target

__all__ = ["OipHttpSettings"]


@final
class OipHttpSettings:
    """Built once per engine; its handlers are called on the engine's loop."""

    def __init__(self, engine: Engine, traces: Traces, log_settings: LogSettings) -> None:
        self._engine = engine
        self._traces = traces
        self._log_settings = log_settings
        self.handlers: Final[Mapping[str, Handler]] = {
            "trace_settings": self._trace_settings,
            "update_trace_settings": self._update_trace_settings,
            "log_settings": self._read_log_settings,
            "update_log_settings": self._update_log_settings,
        }

    async def _trace_settings(self, target: Target, _receive: Receive, _fields: Fields) -> Answer:
        check_served(self._engine, target.model)
        return Answer(200, orjson.dumps(self._traces.values(target.model)))

    async def _update_trace_settings(self, target: Target, receive: Receive, fields: Fields) -> Answer:
        changes = await small_body(receive, fields, dict[str, Any])
        check_served(self._engine, target.model)
        self._traces.update(target.model, changes)
        return Answer(200, orjson.dumps(self._traces.values(target.model)))

    async def _read_log_settings(self, _target: Target, _receive: Receive, _fields: Fields) -> Answer:
        return Answer(200, orjson.dumps(self._log_settings.values()))

    async def _update_log_settings(self, _target: Target, receive: Receive, fields: Fields) -> Answer:
        self._log_settings.update(await small_body(receive, fields, dict[str, Any]))
        return Answer(200, orjson.dumps(self._log_settings.values()))
