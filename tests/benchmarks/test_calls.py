import json

import numpy as np

from benchmarks.calls import bentoml_call, binary_call, json_call

ROWS = np.array([[0.5, -1.25], [2, 3.0001]], np.float32)


def test_json_call_speaks_the_open_inference_protocol() -> None:
    call = json_call("mlp", "x", ROWS)

    assert call.path == "/v2/models/mlp/infer"
    assert json.loads(call.body) == {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [0.5, -1.25, 2, 3.0001]}]
    }
    answer = b'{"model_name":"mlp","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[1,2.5]}]}'
    np.testing.assert_array_equal(call.read({}, answer), np.array([1, 2.5], np.float32))


def test_binary_call_puts_raw_numbers_behind_the_header() -> None:
    call = binary_call("net", "x", "y", ROWS)

    length = int(call.headers["Inference-Header-Content-Length"])
    header = json.loads(call.body[:length])
    assert header["inputs"][0]["parameters"] == {"binary_data_size": 16}
    assert header["outputs"] == [{"name": "y", "parameters": {"binary_data": True}}]
    assert call.body[length:] == ROWS.tobytes()
    answer = call.read({"Inference-Header-Content-Length": "3"}, b"{ }" + ROWS.tobytes())
    np.testing.assert_array_equal(answer, ROWS.ravel())


def test_bentoml_call_names_the_argument() -> None:
    call = bentoml_call(ROWS)

    assert call.path == "/predict"
    assert json.loads(call.body) == {"x": [[0.5, -1.25], [2, 3.0001]]}
    np.testing.assert_array_equal(call.read({}, b"[[1,2],[3,4]]"), np.array([1, 2, 3, 4], np.float32))
