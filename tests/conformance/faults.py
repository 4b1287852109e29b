"""What faults are made of: whom they concern, and how they change a request or a reply of the little server."""

import json
import re
from collections.abc import Callable
from typing import Any

from tests.conformance.little_http import LENGTH, Answered, Answerer, Asked, Fault, as_json

When = Callable[[Asked, Answered], bool]
"""Whether a request, and the honest reply to it, are concerned."""


def on(path: str, method: str = "") -> When:
    """Requests of a path, as a pattern; `method` '' is any."""
    pattern = re.compile(path)
    return lambda asked, _: bool(pattern.fullmatch(asked.path)) and method in ("", asked.method)


def says(text: str) -> When:
    """Requests that are honestly refused with that in the message."""
    return lambda _, answered: answered.status >= 400 and text.encode() in answered.body


def has(*texts: bytes) -> When:
    """Requests whose body has all of these."""
    return lambda asked, _: all(text in asked.body for text in texts)


def lacks(*texts: bytes) -> When:
    """Requests whose body has none of these."""
    return lambda asked, _: not any(text in asked.body for text in texts)


def header(name: str, value: str | None = None) -> When:
    """Requests with a header, of any value or of this."""
    return lambda asked, _: name in asked.headers and value in (None, asked.headers[name])


def no_header(name: str) -> When:
    """Requests without a header."""
    return lambda asked, _: name not in asked.headers


def succeeds(_: Asked, answered: Answered) -> bool:
    """Requests whose honest reply is a success."""
    return answered.status == 200


INFER = on(r"/v2/models/.*/infer", "POST")


def reply(change: Callable[[Answered], Answered], *when: When) -> Fault:
    """Change the replies that are concerned."""

    def fault(asked: Asked, answer: Answerer) -> Answered:
        honest = answer(asked)
        return change(honest) if all(each(asked, honest) for each in when) else honest

    return fault


def request(change: Callable[[Asked], Asked], *when: When) -> Fault:
    """Change the requests that are concerned, before they are answered."""

    def fault(asked: Asked, answer: Answerer) -> Answered:
        return answer(change(asked) if all(each(asked, Answered(0)) for each in when) else asked)

    return fault


def status(number: int, *when: When) -> Fault:
    """Another status, and a body to go with it."""
    return reply(lambda _: as_json({"error": "a fault"} if number >= 400 else {}, number), *when)


def document(change: Callable[[Any], Any], *when: When) -> Fault:
    """Change the JSON of successes, in place or by returning another. Blobs behind it stay."""

    def changed(honest: Answered) -> Answered:
        length = int(honest.headers.get(LENGTH, len(honest.body)))
        parsed = json.loads(honest.body[:length])
        made = change(parsed)
        head = json.dumps(parsed if made is None else made).encode()
        headers = {**honest.headers, LENGTH: str(len(head))} if LENGTH in honest.headers else honest.headers
        return Answered(honest.status, head + honest.body[length:], headers)

    def plain(_: Asked, answered: Answered) -> bool:
        return succeeds(_, answered) and "content-encoding" not in answered.headers

    return reply(changed, plain, *when)


def outputs(change: Callable[[dict[str, Any]], None], *when: When) -> Fault:
    """Change each output of the inference replies that are concerned."""

    def every(parsed: dict[str, Any]) -> None:
        for output in parsed["outputs"]:
            change(output)

    return document(every, INFER, *when)


def body(old: bytes, new: bytes, *when: When) -> Fault:
    """Put other bytes for some in replies."""
    return reply(lambda honest: Answered(honest.status, honest.body.replace(old, new), honest.headers), *when)


def asking(old: bytes, new: bytes, *when: When) -> Fault:
    """Put other bytes, as many, for some in requests."""
    assert len(old) == len(new)
    return request(lambda asked: asked._replace(body=asked.body.replace(old, new)), *when)


def headers(change: dict[str, str], *when: When) -> Fault:
    """Other headers in replies."""
    return reply(lambda honest: Answered(honest.status, honest.body, {**honest.headers, **change}), *when)


def first_time(fault: Fault, *when: When) -> Fault:
    """Only the first request that is concerned meets the fault. `when` must not look at the reply."""
    met: list[Asked] = []

    def once(asked: Asked, answer: Answerer) -> Answered:
        if not met and all(each(asked, Answered(0)) for each in when):
            met.append(asked)
            return fault(asked, answer)
        return answer(asked)

    return once


def put(**members: Any) -> Callable[[dict[str, Any]], None]:
    """Set members of a document."""
    return lambda parsed: parsed.update(members)


def drop(*names: str) -> Callable[[dict[str, Any]], None]:
    """Take members out of a document."""

    def change(parsed: dict[str, Any]) -> None:
        for name in names:
            parsed.pop(name, None)

    return change
