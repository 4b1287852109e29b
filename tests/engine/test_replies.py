"""What a consumer sees of a request's responses."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from ekiben.engine.replies import MOST_BYTES, MOST_RESPONSES, Replies
from ekiben.errors import RunnerDied
from ekiben.types import Response, Tensor

END = Response("m", "1", {})


def response(*numbers: int) -> Response:
    return Response("m", "1", {"y": np.array(numbers, np.uint8)})


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def make(moved: Callable[[], None] | None = None) -> tuple[Replies, "asyncio.Future[Response]"]:
    future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    return Replies(future, moved), future


async def numbers(replies: Replies) -> list[list[int]]:
    return [each.outputs["y"].tolist() async for each in replies]


def test_the_one_response_of_a_plain_request() -> None:
    async def test() -> None:
        replies, future = make()
        taking = asyncio.create_task(numbers(replies))
        await asyncio.sleep(0)
        future.set_result(response(1, 2))
        assert await taking == [[1, 2]]
        assert await numbers(replies) == []

    run(test)


def test_responses_in_order_and_then_the_end() -> None:
    async def test() -> None:
        replies, future = make()
        replies.put(response(1))
        taking = asyncio.create_task(numbers(replies))
        await asyncio.sleep(0)
        replies.put(response(2))
        await asyncio.sleep(0)
        replies.put(response(3))
        future.set_result(END)
        assert await taking == [[1], [2], [3]]

    run(test)


def test_a_stream_without_responses() -> None:
    async def test() -> None:
        replies, future = make()
        future.set_result(END)
        assert await numbers(replies) == []
        assert not replies.begun

    run(test)


def test_an_error_comes_after_what_came_before_it_and_once() -> None:
    async def test() -> None:
        replies, future = make()
        replies.put(response(1))
        future.set_exception(RunnerDied("gone"))
        assert (await anext(replies)).outputs["y"].tolist() == [1]
        with pytest.raises(RunnerDied, match="gone"):
            await anext(replies)
        assert await numbers(replies) == []

    run(test)


def test_it_is_full_by_count_or_by_bytes_and_says_when_something_is_taken() -> None:
    async def test() -> None:
        taken: list[bool] = []
        replies, _ = make(lambda: taken.append(replies.full))
        for _ in range(MOST_RESPONSES):
            assert not replies.full
            replies.put(response(1))
        assert replies.full
        await anext(replies)
        assert taken == [False]

        replies, _ = make(lambda: taken.append(replies.full))
        for size in (MOST_BYTES - 1, MOST_BYTES):
            replies.put(Response("m", "1", {"y": np.zeros(size, np.uint8)}))
            assert replies.full == (size == MOST_BYTES)
        await anext(replies)
        await anext(replies)
        assert taken == [False, True, False]

    run(test)


def test_text_counts_with_what_it_holds() -> None:
    async def test() -> None:
        replies, _ = make()
        text: Tensor = np.array([[b"x" * MOST_BYTES]], np.object_)
        replies.put(Response("m", "1", {"y": text}))
        assert replies.full

    run(test)


def test_a_consumer_that_closes_takes_nothing_more_and_says_so_once() -> None:
    async def test() -> None:
        calls: list[bool] = []
        replies, future = make(lambda: calls.append(future.cancelled()))
        replies.put(response(1))
        replies.close()
        replies.close()
        assert calls == [True]
        assert not replies.full
        assert await numbers(replies) == []

    run(test)


def test_closing_after_the_end_is_fine_and_leaves_no_unseen_error() -> None:
    async def test() -> None:
        unseen: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        replies, future = make()
        future.set_exception(RunnerDied("gone"))
        await asyncio.sleep(0)
        replies.close()
        del replies, future
        await asyncio.sleep(0)
        assert unseen == []

    run(test)


def test_a_consumer_whose_wait_is_cancelled_can_come_again() -> None:
    async def test() -> None:
        replies, future = make()
        waiting = asyncio.ensure_future(anext(replies))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not future.done()
        replies.put(response(7))
        future.set_result(END)
        assert await numbers(replies) == [[7]]

    run(test)
