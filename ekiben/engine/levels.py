"""Priority levels: the rules of each for those who wait in it, from the model's settings."""

from typing import Final, TypeVar, final

from ekiben.types import Batching, QueuePolicy, Request

__all__ = ["Level", "levels_of"]

T = TypeVar("T")

_AS_ALL: Final = QueuePolicy()


@final
class Level:
    """One level's rules, and how much of it waits."""

    __slots__ = ("bound", "delays", "number", "overrides", "rows", "timeout_s", "waiting")

    def __init__(self, number: int, batching: Batching, policy: QueuePolicy) -> None:
        """`number` is 1 for the best level, 0 where there are none. What `policy` leaves open is as in `batching`."""
        self.number: Final = number
        self.bound: Final = _chosen(policy.max_queue_rows, batching.max_queue_rows)
        self.timeout_s: Final = _chosen(policy.timeout_us, batching.timeout_us) / 1e6
        """0: no limit."""
        self.delays: Final = _chosen(policy.timeout_action, batching.timeout_action) == "delay"
        self.overrides: Final = _chosen(policy.allow_timeout_override, batching.allow_timeout_override)
        self.rows = 0
        self.waiting = 0

    def patience_s(self, request: Request) -> float:
        """How long a request may wait: as long as all, or as it says itself if that is shorter. 0: no limit."""
        own_s = request.timeout_us / 1e6
        return own_s if own_s and self.overrides and not 0 < self.timeout_s < own_s else self.timeout_s


def levels_of(batching: Batching) -> tuple[Level, ...]:
    """The levels from the best one on; one, where the model has no priorities."""
    if not batching.priority_levels:
        return (Level(0, batching, _AS_ALL),)
    policies = batching.priority_policies
    return tuple(
        Level(number, batching, policies.get(number, _AS_ALL)) for number in range(1, batching.priority_levels + 1)
    )


def _chosen(own: T | None, common: T) -> T:
    return common if own is None else own
