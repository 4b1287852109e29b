"""Triton's ModelConfig as JSON, as a load may carry it."""

from typing import Any

import pytest

from ekiben.errors import InvalidSettings
from ekiben.repository.config_json import MOST_CONFIG_BYTES, read_json
from ekiben.types import Batching, Instances, ModelSettings, Signature, TensorSpec
from ekiben.wire.oip_documents import model_config_body


def _read(text: str) -> Any:
    warnings: list[str] = []
    return read_json(text, "m", warnings.append), warnings


def test_keys_may_be_in_either_case() -> None:
    snake = _read('{"backend": "onnxruntime", "max_batch_size": 8, "version_policy": {"all": {}}}')
    camel = _read('{"backend": "onnxruntime", "maxBatchSize": "8", "versionPolicy": {"all": {}}}')
    assert snake == camel
    assert snake[0] == ModelSettings(runtime="onnx", batching=Batching(max_batch_size=8), version_policy="all")


def test_an_empty_object_leaves_all_to_the_model() -> None:
    assert _read(" {}\n") == (ModelSettings(), [])


def test_what_the_server_says_of_a_model_can_be_given_back() -> None:
    signature = Signature(
        (TensorSpec("a", "FP32", (-1, 4)), TensorSpec("t", "BYTES", (-1, 1), optional=True)),
        (TensorSpec("o", "BOOL", (-1, -1)),),
    )
    settings = ModelSettings(
        runtime="torchscript",
        file="net.pt",
        batching=Batching(max_batch_size=8, max_delay_us=100, preferred_sizes=(4, 8)),
        instances=(Instances("gpu:1", 2), Instances("cpu", 3)),
        signatures={"serving_default": signature},
        labels={"o": "labels.txt"},
        version_policy=(1, 3),
        parameters={"x": "1"},
    )
    text = model_config_body("m", "pytorch_libtorch", settings, signature).decode()
    assert _read(text) == (settings, ["config: not supported yet, and without effect: optimization"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["must be a JSON object", "''"]),
        ("[]", ["must be a JSON object", "'[]'"]),
        ("null", ["must be a JSON object"]),
        ("not JSON " * 100, ["must be a JSON object", "'not JSON", "..."]),
        ("{", ["Expecting property name"]),
        ('{"max_batch_size": 8} x', ["Extra data"]),
        ('{"a":' * 5000, ["recursion"]),
        ('{"name": "m", "name": "m"}', ["duplicate"]),
        ('{"max_batchsize": 8}', ["unknown field 'max_batchsize' in ModelConfig", "did you mean 'max_batch_size'?"]),
        ('{"input": [{"name": "x", "datatype": 3}]}', ["unknown field 'datatype' in ModelInput", "'data_type'"]),
        ('{"max_batch_size": "x"}', ["'x'"]),
        ('{"max_batch_size": NaN}', ["max_batch_size", "nan"]),
        ('{"max_batch_size": -1}', ["max_batch_size must be 0 or more, got -1"]),
        ('{"max_batch_size": 1e40}', ["out of range"]),
        ('{"max_batch_size": true}', ["True"]),
        ('{"input": [{"data_type": "TYPE_X"}]}', ["TYPE_X"]),
        ('{"name": "\\ud800"}', ["surrogate"]),
        ('{"name": "other"}', ["'other'", "'m'", "must agree"]),
        ('{"backend": "caffe"}', ["backend 'caffe' is not supported"]),
        ('{"ensemble_scheduling": {}}', ["not supported yet: ensemble_scheduling"]),
        ('{"default_model_filename": "../x"}', ["must lie inside", "'../x'"]),
        ('{"output": [{"name": "o", "label_filename": "/etc/passwd"}]}', ["no input is declared"]),
        ('{"name": "' + "m" * MOST_CONFIG_BYTES + '"}', [f"{MOST_CONFIG_BYTES} are the limit"]),
    ],
)
def test_what_is_wrong_is_named(text: str, words: list[str]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        _read(text)
    assert caught.value.message.startswith("config: ")
    assert "inference." not in caught.value.message
    for word in words:
        assert word in caught.value.message
