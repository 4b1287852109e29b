"""Streams through real runner processes: each response as it is computed, only when it is asked for, and to its end."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ekiben.runner.base import Batch, Died, Executed, Outcome, Raised, TensorParts
from ekiben.runner.supervisor import Runner
from ekiben.testing import until
from ekiben.types import Instances, Signature, TensorSpec
from tests.runner.talk import TALK, Call, notes, run, started, whole

# Responses


def test_each_yield_is_a_response_and_the_last_reply_is_empty(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as runner:
            call = Call(runner, "a", "b")
            first = await call.next()
            assert isinstance(first, Executed)
            assert first.more
            assert first.outputs["said"].tolist() == [b"a"]
            assert min(first.input_ns, first.compute_ns, first.output_ns) > 0
            call.go_on()
            second = await call.next()
            assert isinstance(second, Executed)
            assert second.more
            assert (second.outputs["said"].tolist(), second.input_ns) == ([b"b"], 0)
            call.go_on()
            await call.ended()
            assert notes(tmp_path) == ["begin2", "end", "whole"]
            assert await whole(runner) == []

    run(main())


def test_a_response_may_have_any_number_of_rows_and_any_size(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as runner:
            said = await whole(runner, "a", "rows", "none", "big", "many", "b")
            assert [len(rows) for rows in said] == [1, 3, 0, 2, 20_000, 1]
            assert said[1] == ["a", "b", "c"]
            assert [len(text) for text in said[3]] == [5_000_000, 1]
            assert said[5] == ["b"]

    run(main())


def test_nothing_is_computed_before_it_is_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as runner:
            call = Call(runner, "a", "file", "file")
            assert await call.said() == ["a"]
            for text in ("written", "and again"):
                (tmp_path / "file").write_text(text)
                call.go_on()
                assert await call.said() == [text]

    run(main())


def test_an_answer_too_long_for_a_packet_goes_through_the_arena(tmp_path: Path) -> None:
    names = ["n" * 500 + str(number) for number in range(200)]
    signature = Signature(TALK.inputs, tuple(TensorSpec(name, "INT32", (-1,)) for name in names))
    code = f"""
class Model:
    def infer(self, inputs):
        for number in range(3):
            yield dict.fromkeys({names!r}, [number])
"""

    async def main() -> None:
        async with started(tmp_path, code, signature=signature) as runner:
            slot, answers = runner.idle(), asyncio.Queue[Outcome]()
            assert slot is not None
            parts = [TensorParts("what", "BYTES", [np.empty(0, np.object_)])]
            runner.submit(slot, Batch("serving_default", parts, names), answers.put_nowait)
            for number in range(3):
                outcome = await answers.get()
                assert isinstance(outcome, Executed)
                assert outcome.outputs[names[-1]].tolist() == [number]
                runner.advance(slot, stop=False)

    run(main())


# Ends


def test_stopping_closes_the_generator(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as runner:
            call = Call(runner, "a", "b", "c")
            await call.said()
            call.go_on()
            await call.said()
            call.stop()
            await call.ended()
            assert notes(tmp_path) == ["begin3", "end"]
            assert await whole(runner, "d") == [["d"]]

    run(main())


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("raise", "no more of this"),
        ("exit", "gone"),
        ("float", "output 'said' is BYTES, but holds float"),
        ("flat", "came with shape [], but the signature says [-1]"),
        ("nothing", "yielded no output 'said'"),
        ("list", "it yielded list"),
    ],
)
def test_an_error_ends_the_stream_after_what_came_before(tmp_path: Path, word: str, words: str) -> None:
    async def main() -> None:
        async with started(tmp_path) as runner:
            for before in ([], ["a", "b"]):
                call = Call(runner, *before, word, "never")
                for text in before:
                    assert await call.said() == [text]
                    call.go_on()
                outcome = await call.next()
                assert isinstance(outcome, Raised)
                assert words in outcome.message
                assert notes(tmp_path)[-1] == "end"
            assert await whole(runner, "d") == [["d"]]

    run(main())


def test_a_generator_that_will_not_end_is_an_error_and_the_runner_lives(tmp_path: Path) -> None:
    code = """
class Model:
    def infer(self, inputs):
        while True:
            try:
                yield {"said": ["again"]}
            except GeneratorExit:
                pass
"""

    async def main() -> None:
        async with started(tmp_path, code) as runner:
            pid = runner.pid
            for _ in range(2):
                call = Call(runner, "a")
                assert await call.said() == ["again"]
                call.stop()
                assert await call.next() == Raised("generator ignored GeneratorExit")
            assert runner.pid == pid

    run(main())


def test_a_runner_that_dies_in_mid_stream_says_so_after_what_came_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as runner:
            call = Call(runner, "a", "kill")
            assert await call.said() == ["a"]
            call.go_on()
            outcome = await call.next()
            assert isinstance(outcome, Died)
            assert "SIGKILL" in outcome.reason
            assert not outcome.timed_out
            await until(lambda: runner.ready)
            assert await whole(runner, "b") == [["b"]]

    run(main())


def test_a_stream_of_a_runner_that_died_while_it_waited_can_be_told_to_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as runner:
            call = Call(runner, "a", "b")
            await call.said()
            os.kill(runner.pid, signal.SIGKILL)
            assert isinstance(await call.next(), Died)
            call.go_on()
            await until(lambda: runner.ready)
            call.stop()
            assert await whole(runner, "c") == [["c"]]

    run(main())


def test_the_end_of_the_engine_ends_the_generator_in_good_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as runner:
            call = Call(runner, "a", "b")
            await call.said()
            await runner.stop()
            assert isinstance(await call.next(), Died)
            assert notes(tmp_path) == ["begin2", "end", "closed"]

    run(main())


# The execution limit


def test_a_response_that_takes_too_long_ends_the_runner(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, execution_timeout_ms=500) as runner:
            call = Call(runner, "a", "hang")
            await call.said()
            call.go_on()
            outcome = await call.next()
            assert isinstance(outcome, Died)
            assert outcome.timed_out

    run(main())


def test_the_limit_does_not_run_while_the_stream_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, execution_timeout_ms=500) as runner:
            call = Call(runner, "a", "b", "hang")
            await call.said()
            assert runner._process is not None
            (channel,) = runner._process._channels
            await until(lambda: channel.timer is None)  # it ran out, while the stream waited
            call.go_on()
            assert await call.said() == ["b"]
            call.go_on()
            assert isinstance(await call.next(), Died)

    run(main())


# Several calls


def test_a_call_behind_a_stream_is_answered_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as runner:
            first = Call(runner, "a", "b")
            second = Call(runner, "c", "d")
            assert (first.slot is not second.slot, runner.idle()) == (True, None)
            assert await first.said() == ["a"]
            first.go_on()
            assert await first.said() == ["b"]
            first.go_on()
            await first.ended()
            assert await second.said() == ["c"]
            third = Call(runner, "e")
            second.stop()
            await second.ended()
            assert await third.said() == ["e"]
            third.go_on()
            await third.ended()
            assert notes(tmp_path) == ["begin2", "end", "whole", "begin2", "end", "begin1", "end", "whole"]

    run(main())


def test_instances_stream_side_by_side(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path, instances=(Instances(count=2),)) as runner:
            calls = [Call(runner, "a", "b"), Call(runner, "c", "d")]
            assert [await call.said() for call in calls] == [["a"], ["c"]]
            for call in calls:
                call.go_on()
            assert [await call.said() for call in calls] == [["b"], ["d"]]

    run(main())


def test_a_model_that_only_yields_what_it_was_given_keeps_it_to_the_end(tmp_path: Path) -> None:
    """The arrays given live in the arena, beside the outputs, until the stream ends."""
    code = """
class Model:
    def infer(self, inputs):
        for size in (1, 100_000, 3):
            yield {"y": inputs["x"].repeat(size, axis=0)}
        yield {"y": inputs["x"]}
"""
    signature = Signature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),))
    given = np.array([[1.5, np.nan], [3, -np.inf]], np.float32)

    async def main() -> None:
        async with started(tmp_path, code, signature=signature) as runner:
            slot, answers = runner.idle(), asyncio.Queue[Outcome]()
            assert slot is not None
            runner.submit(
                slot, Batch("serving_default", [TensorParts("x", "FP32", [given])], ["y"]), answers.put_nowait
            )
            for size in (1, 100_000, 3, 1):
                outcome = await answers.get()
                assert isinstance(outcome, Executed)
                assert np.array_equal(outcome.outputs["y"], given.repeat(size, axis=0), equal_nan=True)
                runner.advance(slot, stop=False)

    run(main())


def test_two_nexts_for_one_response_end_the_runner_and_not_the_engine(tmp_path: Path) -> None:
    async def main() -> None:
        changes: list[bool] = []
        on_change: Callable[[Runner], None] = lambda runner: changes.append(runner.ready)  # noqa: E731 - annotated
        async with started(tmp_path, on_change=on_change) as runner:
            call = Call(runner, "a")
            await call.said()
            call.go_on()
            call.go_on()
            await call.ended()
            await until(lambda: changes == [False, True])
            assert await whole(runner, "b") == [["b"]]

    run(main())
