"""The gRPC port of a running server, by clients that nobody here wrote."""

import queue
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.conftest import Server

MIB = 1 << 20


@pytest.fixture
def client(golden: Server) -> Iterator[Any]:
    """tritonclient, connected."""
    made = triton.InferenceServerClient(golden.grpc)
    yield made
    made.close()


def tensor(name: str, value: np.ndarray[Any, Any]) -> Any:
    given = triton.InferInput(name, list(value.shape), triton_datatype(value))
    given.set_data_from_numpy(value)
    return given


def triton_datatype(value: np.ndarray[Any, Any]) -> str:
    return {"int32": "INT32", "float32": "FP32", "object": "BYTES"}[value.dtype.name]


def test_health_metadata_and_statistics(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert not client.is_model_ready("unloaded")
    assert client.get_server_metadata().name == "ekiben"
    metadata = client.get_model_metadata("simple")
    assert [(spec.name, spec.datatype, list(spec.shape)) for spec in metadata.inputs] == [
        ("INPUT0", "INT32", [-1, 16]),
        ("INPUT1", "INT32", [-1, 16]),
    ]
    assert client.get_model_config("simple").config.max_batch_size == 8
    assert client.get_inference_statistics("simple").model_stats[0].name == "simple"


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_inference(client: Any, compression: str | None) -> None:
    rows = np.arange(32, dtype=np.int32).reshape(2, 16)
    answer = client.infer(
        "simple",
        [tensor("INPUT0", rows), tensor("INPUT1", rows)],
        request_id="7",
        compression_algorithm=compression,
        client_timeout=60,
    )
    assert answer.get_response().id == "7"
    assert (answer.as_numpy("OUTPUT0") == rows * 2).all()
    assert (answer.as_numpy("OUTPUT1") == 0).all()


def test_text_and_large_tensors(client: Any) -> None:
    words = np.array([[b"a", b"", b"\x00\xff"]], np.object_)
    assert (client.infer("identity_bytes", [tensor("INPUT0", words)]).as_numpy("OUTPUT0") == words).all()
    large = np.random.default_rng(1).random((1, 64 * MIB // 4), np.float32)
    answer = client.infer("identity_fp32", [tensor("INPUT0", large)], client_timeout=120)
    assert (answer.as_numpy("OUTPUT0") == large).all()


def test_streams_answer_many_and_stay_up_over_an_error(client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    rows = np.arange(16, dtype=np.int32).reshape(1, 16)
    for number in range(200):
        name = "nope" if number == 100 else "simple"
        client.async_stream_infer(name, [tensor("INPUT0", rows), tensor("INPUT1", rows)], request_id=str(number))
    got = [answers.get(timeout=60) for _ in range(200)]
    client.stop_stream()
    errors = [error for _, error in got if error is not None]
    assert len(errors) == 1
    assert "Request for unknown model: 'nope' is not found" in str(errors[0])
    assert sorted(int(result.get_response().id) for result, _ in got if result is not None) == [
        number for number in range(200) if number != 100
    ]


def test_errors_have_their_codes(client: Any) -> None:
    rows = np.zeros((1, 15), np.int32)
    for model, code, words in (
        ("nope", "StatusCode.NOT_FOUND", "unknown model: 'nope'"),
        ("simple", "StatusCode.INVALID_ARGUMENT", "unexpected shape for input 'INPUT0'"),
    ):
        with pytest.raises(triton.InferenceServerException) as caught:
            client.infer(model, [tensor("INPUT0", rows), tensor("INPUT1", rows)])
        assert (caught.value.status(), words in str(caught.value)) == (code, True)


def test_many_callers_at_once_are_batched(client: Any, golden: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    rows = np.arange(16, dtype=np.int32).reshape(1, 16)
    before = client.get_inference_statistics("simple").model_stats[0]
    for _ in range(500):
        client.async_infer(
            "simple",
            [tensor("INPUT0", rows), tensor("INPUT1", rows)],
            callback=lambda result, error: answers.put((result, error)),
        )
    got = [answers.get(timeout=60) for _ in range(500)]
    assert [error for _, error in got if error is not None] == []
    after = client.get_inference_statistics("simple").model_stats[0]
    assert after.inference_count - before.inference_count == 500
    assert after.execution_count - before.execution_count < 500


def test_a_bare_channel_finds_health_and_is_told_of_unknown_methods(golden: Server) -> None:
    with grpc.insecure_channel(golden.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=30) == b"\x08\x01"
        assert check(b"\x0a\x1einference.GRPCInferenceService", timeout=30) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/Nope")(b"", timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_two_ports_count_together(client: Any, golden: Server) -> None:
    rows = np.arange(16, dtype=np.int32).reshape(1, 16)
    client.infer("simple", [tensor("INPUT0", rows), tensor("INPUT1", rows)])
    with urllib.request.urlopen(f"{golden.url}/v2/models/simple/stats", timeout=30) as reply:
        assert b'"inference_count":0' not in reply.read()
