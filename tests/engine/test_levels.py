"""Priority levels: whose timeout holds, and which rules each level has."""

import pytest

from ekiben.engine.levels import levels_of
from ekiben.types import Batching, QueuePolicy, Request


@pytest.mark.parametrize(
    ("model_us", "own_us", "allowed", "patience_s"),
    [
        (0, 0, True, 0),
        (5_000, 0, True, 0.005),
        (5_000, 2_000, True, 0.002),
        (5_000, 5_000, True, 0.005),
        (5_000, 9_000, True, 0.005),
        (0, 9_000, True, 0.009),
        (0, 1, True, 1e-6),
        (0, (1 << 64) - 1, True, ((1 << 64) - 1) / 1e6),
        (5_000, 2_000, False, 0.005),
        (0, 2_000, False, 0),
    ],
)
def test_a_request_may_only_shorten_its_timeout_and_only_where_that_is_allowed(
    model_us: int, own_us: int, allowed: bool, patience_s: float
) -> None:
    (level,) = levels_of(Batching(timeout_us=model_us, allow_timeout_override=allowed))
    assert level.patience_s(Request("m", {}, timeout_us=own_us)) == patience_s


def test_a_level_has_its_own_rules_and_else_those_of_the_model() -> None:
    batching = Batching(
        max_queue_rows=9,
        timeout_us=7_000_000,
        allow_timeout_override=False,
        priority_levels=3,
        default_priority=2,
        priority_policies={
            1: QueuePolicy(max_queue_rows=2, timeout_us=0, timeout_action="delay", allow_timeout_override=True),
            3: QueuePolicy(timeout_us=1_000_000),
        },
    )
    assert [(each.number, each.bound, each.timeout_s, each.delays, each.overrides) for each in levels_of(batching)] == [
        (1, 2, 0, True, True),
        (2, 9, 7, False, False),
        (3, 9, 1, False, False),
    ]
