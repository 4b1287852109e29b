"""Points that load and unload a model, where the user allows it (--allow-load).

They come last: a server may count a model that was unloaded as one that is not ready.
"""

from typing import Final
from urllib.parse import quote

from ekiben.conformance.context import NO_SUCH_MODEL, Context, on_path
from ekiben.conformance.grpc_call import attempted, optional
from ekiben.conformance.infer_reply import answered, refused
from ekiben.conformance.points import point, triton

_LOOK_SECONDS: Final = 0.05
"""Between two looks at whether a model is ready."""


@point("X6c", "A model can be loaded, unloaded, and loaded again", triton("model_repository"))
def load(context: Context) -> None:
    name = quote(context.changeable(), safe="")

    def ready() -> bool:
        return context.http.get(f"/v2/models/{name}/ready").status == 200

    # Afterwards the model is as it was found.
    for verb in ("load", "unload", "load") if ready() else ("load", "unload", "load", "unload"):
        answered(on_path(context.http.post(f"/v2/repository/models/{name}/{verb}")))
        while ready() != (verb == "load"):
            context.deadline.wait(_LOOK_SECONDS)


@point("X6d", "A model that does not exist cannot be loaded", triton("model_repository"))
def load_unknown(context: Context) -> None:
    context.changeable()
    refused(on_path(context.http.post(f"/v2/repository/models/{NO_SUCH_MODEL}/load")), "a load of no such model")


@point("G22", "A model can be loaded, unloaded, and loaded again", triton("model_repository"))
def load_by_grpc(context: Context) -> None:
    name = context.changeable()
    # Afterwards the model is as it was found.
    verbs = ("Load", "Unload", "Load") if _ready(context, name) else ("Load", "Unload", "Load", "Unload")
    for verb in verbs:
        optional(context.grpc, f"RepositoryModel{verb}", model_name=name)
        while _ready(context, name) != (verb == "Load"):
            context.deadline.wait(_LOOK_SECONDS)


def _ready(context: Context, name: str) -> bool:
    code, reply = attempted(context.grpc, "ModelReady", name=name)
    return code == "OK" and bool(reply.ready)
