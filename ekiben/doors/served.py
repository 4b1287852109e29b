"""Whether settings may be kept for a model: both doors of the trace extension ask."""

from ekiben.engine.engine import Engine
from ekiben.errors import InvalidRequest, NotFound, NotReady

__all__ = ["check_served"]


def check_served(engine: Engine, model: str) -> None:
    """'' is the server itself. Raises InvalidRequest, as Triton does, for a model of which no version is loaded."""
    if not model:
        return
    try:
        engine.version(model)
    except (NotFound, NotReady) as error:
        raise InvalidRequest(f"Request for unknown model : {model} ({error.message})") from None
