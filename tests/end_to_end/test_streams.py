"""Streams of a real server, read as they come: by curl, by http.client, by callers that leave or dawdle."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.conftest import Serve, Server
from tests.end_to_end.test_processes import command, engine_of, runners_of

TELLER = """
import pathlib, time
FOLDER = pathlib.Path(__file__).parents[2]

class Model:
    def infer(self, inputs):
        '''Tells each word; `wait:NAME` first waits for a file, `many` never ends, `raise` fails.'''
        text = inputs["text_input"][0, 0].decode()
        told = 0
        try:
            for word in text.split():
                if word.startswith("wait:"):
                    while not (FOLDER / word[5:]).exists():
                        time.sleep(0.005)
                    continue
                if word == "nothing":
                    return
                if word == "raise":
                    raise ValueError("the story ends badly")
                while word == "many":
                    (FOLDER / "told").write_text(str(told))
                    yield {"text_output": [[f"{told} " + "x" * 100_000]]}
                    told += 1
                yield {"text_output": [[word]]}
        finally:
            (FOLDER / f"ended-{text.split()[0]}").touch()
"""
DOUBLE = """
class Model:
    def infer(self, inputs):
        return {"y": inputs["x"] * 2}
"""
TELLS = """
runtime: python
execution_timeout_ms: {limit}
signatures:
  serving_default:
    inputs: [{{name: text_input, datatype: BYTES, shape: [-1, 1]}}]
    outputs: [{{name: text_output, datatype: BYTES, shape: [-1, 1]}}]
"""
DOUBLES = """
runtime: python
signatures:
  serving_default:
    inputs: [{name: x, datatype: FP32, shape: [-1, 2]}]
    outputs: [{name: y, datatype: FP32, shape: [-1, 2]}]
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Decoupled models `teller` and `hasty`, whose callers must read within a second, and a plain one, `double`."""
    folder = tmp_path_factory.mktemp("models")
    for name, code, settings in (
        ("teller", TELLER, TELLS.format(limit=60_000)),
        ("hasty", TELLER, TELLS.format(limit=1000)),
        ("double", DOUBLE, DOUBLES),
    ):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(code)
        (folder / name / "model.yaml").write_text(settings)
    return folder


@pytest.fixture(scope="module")
def server(serve: Serve, models: Path) -> Server:
    return serve("--repository", str(models))


def tell(server: Server, text: str, model: str = "teller") -> HTTPResponse:
    return ask(server, f"/v2/models/{model}/generate_stream", {"text_input": text})


def ask(server: Server, path: str, body: object) -> HTTPResponse:
    """Closing the response, or reading it to its end, closes the connection."""
    connection = HTTPConnection(server.host, timeout=120)
    connection.request("POST", path, json.dumps(body), {"connection": "close"})
    return connection.getresponse()


def events(reply: HTTPResponse) -> Iterator[dict[str, str]]:
    """Each event as soon as it is there."""
    while line := reply.readline():
        assert line.startswith(b"data: ")
        assert reply.readline() == b"\n"
        yield json.loads(line[6:])


def words(reply: HTTPResponse) -> list[str]:
    return [event["text_output"] for event in events(reply)]


def double(server: Server) -> float:
    client = triton.InferenceServerClient(server.host)
    given = triton.InferInput("x", [1, 2], "FP32")
    given.set_data_from_numpy(np.array([[3, 4]], np.float32))
    answer = client.infer("double", [given]).as_numpy("y")
    client.close()
    return float(answer[0, 1])


def resident_mib(pid: int) -> int:
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0]) // 1024


def test_curl_sees_each_event_before_the_next_is_computed(server: Server, models: Path) -> None:
    url = f"{server.url}/v2/models/teller/generate_stream"
    body = json.dumps({"text_input": "once wait:go upon"})
    with subprocess.Popen(["curl", "-sSN", "-i", "-d", body, url], stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        head = "".join(iter(curl.stdout.readline, "\n"))
        assert head.startswith("HTTP/1.1 200")
        assert "content-type: text/event-stream; charset=utf-8" in head.lower()
        told = {"model_name": "teller", "model_version": "1"}
        assert (
            curl.stdout.readline()
            == "data: " + json.dumps(told | {"text_output": "once"}, separators=(",", ":")) + "\n"
        )
        assert curl.stdout.readline() == "\n"
        # The model waits, and harms nobody meanwhile: only other streams of its own wait with it.
        assert double(server) == 8
        (models / "go").touch()
        assert json.loads(curl.stdout.readline()[6:]) == told | {"text_output": "upon"}
        assert curl.stdout.read() == "\n"
    assert curl.returncode == 0


def test_generate_takes_exactly_one_response(server: Server) -> None:
    def generate(model: str, body: object) -> tuple[int, dict[str, object]]:
        reply = ask(server, f"/v2/models/{model}/generate", body)
        return reply.status, json.loads(reply.read())

    told = {"model_name": "teller", "model_version": "1", "text_output": "one"}
    assert generate("teller", {"text_input": "one", "id": "7"}) == (200, {"id": "7"} | told)
    for text in ("nothing", "one two"):
        status, reply = generate("teller", {"text_input": text})
        assert (status, "generate expects model to produce exactly 1 response" in str(reply["error"])) == (400, True)
    assert generate("double", {"x": [1, 2, 3, 4]})[1]["y"] == [2, 4, 6, 8]


def test_an_error_after_the_first_event_is_an_event_and_ends_the_stream(server: Server) -> None:
    reply = tell(server, "a b raise")
    told = list(events(reply))
    assert [event.get("text_output") for event in told] == ["a", "b", None]
    assert told[2] == {"error": "model 'teller' version 1 failed: the story ends badly"}
    reply = tell(server, "raise")
    assert (reply.status, reply.headers["content-type"]) == (500, "application/json")
    assert "the story ends badly" in json.loads(reply.read())["error"]


def test_a_caller_that_leaves_stops_the_model(server: Server, models: Path) -> None:
    reply = tell(server, "leaver many")
    assert [next(events(reply))["text_output"], next(events(reply))["text_output"][:2]] == ["leaver", "0 "]
    assert not (models / "ended-leaver").exists()
    reply.close()
    server.wait((models / "ended-leaver").exists, 60)
    assert words(tell(server, "and on it goes")) == ["and", "on", "it", "goes"]


def test_a_caller_that_does_not_read_costs_no_memory_and_loses_nothing(server: Server, models: Path) -> None:
    before = resident_mib(engine_of(server))
    (models / "told").unlink(missing_ok=True)
    reply = tell(server, "dawdler many")
    server.wait(lambda: (models / "told").exists() and int((models / "told").read_text() or 0) >= 64, 60)
    for _ in range(200):
        assert double(server) == 8
    assert int((models / "told").read_text()) < 1000, "the model went on though nobody read"
    assert resident_mib(engine_of(server)) < before + 60
    told = events(reply)
    assert next(told)["text_output"] == "dawdler"
    for number in range(1200):
        assert next(told)["text_output"].split()[0] == str(number)
    reply.close()
    server.wait((models / "ended-dawdler").exists, 60)


def test_a_caller_that_dawdles_too_long_loses_its_stream_and_not_the_others_theirs(
    server: Server, models: Path
) -> None:
    reply = tell(server, "sleeper many", "hasty")
    server.wait((models / "ended-sleeper").exists, 60)
    assert words(tell(server, "the next", "hasty")) == ["the", "next"]
    *_, last = events(reply)
    assert "took no response for longer than execution_timeout_ms 1000" in last["error"]


def test_a_runner_killed_in_mid_stream_is_an_event_and_the_next_stream_is_whole(server: Server) -> None:
    reply = tell(server, "victim wait:never more")
    told = events(reply)
    assert next(told)["text_output"] == "victim"
    (runner,) = [pid for pid in runners_of(server) if "teller:1" in command(pid)]
    os.kill(runner, signal.SIGKILL)
    assert "the runner died in mid-stream" in next(told)["error"]
    assert list(told) == []
    assert words(tell(server, "whole again")) == ["whole", "again"]
    assert double(server) == 8


def test_calls_that_take_one_response_refuse_a_decoupled_model(server: Server) -> None:
    for module, address, refusal in (
        (triton, server.host, "HTTP end point doesn't support models with decoupled transaction policy"),
        (triton_grpc, server.grpc, "ModelInfer RPC doesn't support models with decoupled transaction policy"),
    ):
        client = module.InferenceServerClient(address)
        given = module.InferInput("text_input", [1, 1], "BYTES")
        given.set_data_from_numpy(np.array([["a"]], np.object_))
        with pytest.raises(InferenceServerException, match=refusal):
            client.infer("teller", [given])
        client.close()


def test_streams_are_counted(server: Server) -> None:
    def counted() -> tuple[int, int]:
        client = triton.InferenceServerClient(server.host)
        (statistics,) = client.get_inference_statistics("teller")["model_stats"]
        client.close()
        stats = statistics["inference_stats"]
        return stats["success"]["count"], stats["fail"]["count"]

    before = counted()
    words(tell(server, "a b c"))
    list(events(tell(server, "a raise")))
    assert counted() == (before[0] + 1, before[1] + 1)


def test_the_call_that_the_server_suggests_answers(serve: Serve, models: Path) -> None:
    alone = serve("--repository", str(models), "--model-control", "explicit", "--load-model", "teller")
    alone.wait(lambda: "Try: curl" in alone.log)
    (suggested,) = re.findall("Try: (curl .*)", alone.log)
    assert suggested.startswith("curl -N ")
    answer = subprocess.run(
        suggested.replace('[""]', '"hello"'), shell=True, capture_output=True, text=True, check=True
    )
    assert answer.stdout.count("data: ") == 1
    assert "hello" in answer.stdout
