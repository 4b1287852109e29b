"""The Open Inference Protocol's paths under /v2: which verb of which model a path asks for."""

import urllib.parse
from collections.abc import Mapping
from typing import Final

import msgspec

__all__ = ["METHODS", "UPDATES", "Target", "target_of"]

METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "server_metadata": ("GET",),
    "server_live": ("GET",),
    "server_ready": ("GET",),
    "model_metadata": ("GET",),
    "model_ready": ("GET",),
    "model_config": ("GET",),
    "statistics": ("GET",),
    "infer": ("POST",),
    "generate": ("POST",),
    "generate_stream": ("POST",),
    "index": ("POST",),
    "load": ("POST",),
    "unload": ("POST",),
    "shared_memory_status": ("GET",),
    "shared_memory_register": ("POST",),
    "shared_memory_unregister": ("POST",),
    "cuda_shared_memory_status": ("GET",),
    "cuda_shared_memory_register": ("POST",),
    "cuda_shared_memory_unregister": ("POST",),
    "trace_settings": ("GET", "POST"),
    "log_settings": ("GET", "POST"),
}
"""Verb → the HTTP methods that it takes."""

UPDATES: Final[Mapping[str, str]] = {
    "trace_settings": "update_trace_settings",
    "log_settings": "update_log_settings",
}
"""Verb of a path where GET reads and POST changes → the verb of its POST."""

_MODEL_VERBS: Final = {
    "infer": "infer",
    "ready": "model_ready",
    "config": "model_config",
    "stats": "statistics",
    "generate": "generate",
    "generate_stream": "generate_stream",
}


class Target(msgspec.Struct, frozen=True):
    """What a path asks for.

    `model` '' is the server or all models, `version` '' the model's own choice, `region` '' all regions.
    """

    verb: str
    model: str = ""
    version: str = ""
    region: str = ""


def target_of(raw_path: bytes) -> Target | None:
    """None for a path that is not the protocol's. Takes the path as sent, so that %2F stays inside a name."""
    try:
        parts = [urllib.parse.unquote(part.decode("ascii"), errors="strict") for part in raw_path.split(b"/")]
    except UnicodeDecodeError:
        return None
    match parts[1:]:
        case ["v2"]:
            return Target("server_metadata")
        case ["v2", "health", "live" | "ready" as state]:
            return Target(f"server_{state}")
        case ["v2", "models", "stats"]:
            return Target("statistics")
        case ["v2", "models", model, *rest] if model:
            return _model_target(model, rest)
        case ["v2", "repository", "index"] | ["v2", "repository", _, "index"]:
            return Target("index")
        case ["v2", "repository", "models", model, "load" | "unload" as verb] if model:
            return Target(verb, model)
        case ["v2", "repository", _, "models", model, "load" | "unload" as verb] if model:
            return Target(verb, model)
        case ["v2", "trace", "setting"]:
            return Target("trace_settings")
        case ["v2", "logging"]:
            return Target("log_settings")
        case ["v2", "systemsharedmemory" | "cudasharedmemory" as kind, *rest]:
            return _region_target("" if kind == "systemsharedmemory" else "cuda_", rest)
    return None


def _model_target(model: str, rest: list[str]) -> Target | None:
    version = ""
    if len(rest) >= 2 and rest[0] == "versions":
        version = rest[1]
        if not version:
            return None
        rest = rest[2:]
    match rest:
        case []:
            return Target("model_metadata", model, version)
        case [verb] if verb in _MODEL_VERBS:
            return Target(_MODEL_VERBS[verb], model, version)
        case ["trace", "setting"]:
            return Target("trace_settings", model)
    return None


def _region_target(kind: str, rest: list[str]) -> Target | None:
    match rest:
        case ["status" | "unregister" as verb]:
            return Target(f"{kind}shared_memory_{verb}")
        case ["region", region, "status" | "register" | "unregister" as verb] if region:
            return Target(f"{kind}shared_memory_{verb}", region=region)
    return None
