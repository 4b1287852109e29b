"""The main job: a photo goes in, the right label comes out, by every door, from three frameworks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import skimage
import tritonclient.http as triton
from numpy.typing import NDArray

from ekiben.preprocess import decode, parse, prepare
from ekiben.repository.config import read_settings
from tests.conftest import ROOT, Serve, Server

COFFEE = Path(skimage.__file__).parent / "data" / "coffee.png"
ESPRESSO = 967
FRAMEWORKS = ("onnx", "tensorflow", "torchscript")


@pytest.fixture(scope="module")
def demo_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BENTOML_HOME with the demo models imported."""
    home = tmp_path_factory.mktemp("home")
    build = [sys.executable, "scripts/build_models.py", "--import"]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "BENTOML_HOME": str(home)}, check=True, capture_output=True)
    return home


@pytest.fixture(scope="module")
def demo(serve: Serve, demo_home: Path) -> Server:
    """The demo models, as `ekiben serve` serves them from the store."""
    return serve(home=demo_home)


def pixels() -> NDArray[np.float32]:
    """What a client sends that prepares the image itself."""
    settings = read_settings(ROOT / "models" / "efficientnet_onnx" / "model.yaml")
    assert settings.preprocess is not None
    declaration = parse(settings.preprocess, "efficientnet_onnx")
    return prepare(declaration, [decode(COFFEE.read_bytes(), declaration.max_pixels)])


def scores(server: Server, model: str, *, binary: bool) -> NDArray[np.float32]:
    client = triton.InferenceServerClient(server.host, network_timeout=120)
    given = triton.InferInput("image", [1, 3, 224, 224], "FP32")
    given.set_data_from_numpy(pixels(), binary_data=binary)
    wanted = [triton.InferRequestedOutput("scores", binary_data=binary)]
    answer = client.infer(model, [given], outputs=wanted).as_numpy("scores")
    client.close()
    return np.asarray(answer)


def curl(server: Server, model: str) -> str:
    """The README's call."""
    command = ["curl", "--silent", "--fail", "-F", f"image=@{COFFEE}", "-F", f"model={model}", f"{server.url}/classify"]
    return str(json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[0]["label"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_curl_with_a_photo_answers_espresso(demo: Server, framework: str) -> None:
    assert curl(demo, f"efficientnet_{framework}") == "espresso"


CLIENT = """
import json, pathlib, sys, bentoml
url, photo = sys.argv[1:]
with bentoml.SyncHTTPClient(url, timeout=120) as client:
    labels = [client.classify(image=pathlib.Path(photo), model=f"efficientnet_{framework}")[0]
              for framework in ("onnx", "tensorflow", "torchscript")]
    chances = [client.predict(model=f"income_{framework}", inputs={"features": [[0.5] * 29]})["probability"]
               for framework in ("onnx", "tensorflow", "torchscript")]
print(json.dumps([labels, chances]))
"""


def test_the_python_client_of_bentoml_is_answered(demo: Server) -> None:
    command = [sys.executable, "-W", "ignore", "-c", CLIENT, demo.url, str(COFFEE)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    labels, chances = json.loads(done.stdout)
    assert [label["label"] for label in labels] == ["espresso"] * 3
    assert [label["score"] for label in labels] == pytest.approx([0.951] * 3, abs=0.001)
    np.testing.assert_allclose(chances, [chances[0]] * 3, atol=1e-5)


def test_tritonclient_answers_espresso_and_the_three_frameworks_agree_on_every_class(demo: Server) -> None:
    answers = {
        (framework, binary): scores(demo, f"efficientnet_{framework}", binary=binary)
        for framework in FRAMEWORKS
        for binary in (True, False)
    }
    reference = answers["onnx", True]
    assert reference.shape == (1, 1000)
    for answer in answers.values():
        assert int(answer[0].argmax()) == ESPRESSO
        np.testing.assert_allclose(answer, reference, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("model", "inputs", "status", "words"),
    [
        ("nope", {}, 404, "Request for unknown model: 'nope' is not found"),
        (
            "income_onnx",
            {"features": [[0.5] * 28]},
            400,
            "unexpected shape for input 'features' for model 'income_onnx'",
        ),
        ("income_onnx", {"features": [["a"] * 29]}, 400, "values do not fit without loss"),
        ("income_onnx", {"features": [[1], [1, 2]]}, 400, "is not a tensor"),
        ("magika", {"bytes": [[0.5] * 2048]}, 400, "takes INT32"),
    ],
)
def test_typed_apis_answer_bad_input_clearly(
    demo: Server, model: str, inputs: dict[str, object], status: int, words: str
) -> None:
    body = json.dumps({"model": model, "inputs": inputs})
    command = ["curl", "-s", "-w", "\n%{http_code}", "-H", "content-type: application/json", "-d", body]
    done = subprocess.run([*command, f"{demo.url}/predict"], check=True, capture_output=True, text=True)
    text, _, code = done.stdout.rpartition("\n")
    assert (int(code), words in text) == (status, True), text


def test_an_image_that_is_none_is_refused(demo: Server, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(COFFEE.read_bytes()[:5000])
    command = ["curl", "-s", "-w", "\n%{http_code}", "-F", f"image=@{tmp_path / 'a.png'}", f"{demo.url}/classify"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.endswith("\n400"), done.stdout


def test_docs_and_metrics_are_bentomls_with_ours(demo: Server) -> None:
    assert demo.status("/") == 200
    assert demo.status("/docs.json") == 200
    metrics = subprocess.run(["curl", "-s", f"{demo.url}/metrics"], check=True, capture_output=True, text=True).stdout
    assert "bentoml_service_request_total" in metrics
    assert 'ekiben_requests_total{model="efficientnet_onnx",version="1"}' in metrics


def test_the_built_bento_serves_its_models_from_an_empty_store(serve: Serve, demo_home: Path, tmp_path: Path) -> None:
    bento = tmp_path / "ekiben.bento"
    bentoml_program = str(Path(sys.executable).with_name("bentoml"))
    built_in = {**os.environ, "BENTOML_HOME": str(demo_home), "BENTOML_DO_NOT_TRACK": "true"}
    moved_to = {**built_in, "BENTOML_HOME": str(tmp_path / "other")}
    for command, environment in (
        (["build"], built_in),
        (["export", "ekiben:latest", str(bento)], built_in),
        (["import", str(bento)], moved_to),
    ):
        done = subprocess.run(
            [bentoml_program, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [bentoml_program, "serve", "ekiben:latest"]
    server = serve(home=tmp_path / "other", command=command, folder=elsewhere)
    for framework in FRAMEWORKS:
        assert curl(server, f"efficientnet_{framework}") == "espresso"
    server.end()
