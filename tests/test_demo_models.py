"""The demo models, built from their recipes and run in their real runtimes, give the right answers."""

import importlib.util
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from ekiben.plain import convert, load_yaml
from ekiben.preprocess import Label, decode, parse, prepare, rank
from ekiben.types import ModelSettings

ROOT: Final = Path(__file__).resolve().parent.parent
NAMES: Final = sorted(path.parent.name for path in ROOT.glob("models/*/recipe.py"))
FRAMEWORKS: Final = ("onnx", "tensorflow", "torchscript")

Arrays = dict[str, NDArray[np.float32]]
Run = Callable[..., Arrays]

PHOTOS: Final = {
    "skimage/data/coffee.png": ({967}, 0.95),
    "skimage/data/camera.png": ({872}, 0.94),
    "skimage/data/chelsea.png": ({281, 282, 285}, None),
    "sklearn/datasets/images/china.jpg": ({698}, 0.36),
    "sklearn/datasets/images/flower.jpg": ({985}, 0.33),
}
"""File inside an installed package → the classes that are right, and the score to two places where it is known."""


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of built models; they are built first where they are not."""
    subprocess.run([sys.executable, "scripts/build_models.py"], cwd=ROOT, check=True, capture_output=True)
    return ROOT / "build" / "models"


@pytest.fixture
def run(built: Path, tmp_path: Path) -> Run:
    """run(name, input=array, …) → the model's outputs by name."""

    def run_model(name: str, **inputs: NDArray[np.generic]) -> Arrays:
        given, results = tmp_path / "inputs.npz", tmp_path / "outputs.npz"
        np.savez(given, **inputs)  # type: ignore[arg-type]  # numpy types its keyword arguments as its own flag
        done = subprocess.run(
            [sys.executable, "tests/run_demo_model.py", built / name, given, results],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        with np.load(results) as outputs:
            return dict(outputs)

    return run_model


def settings_of(name: str) -> ModelSettings:
    return convert(load_yaml(ROOT / "models" / name / "model.yaml"), ModelSettings, name)


def packaged(file: str) -> bytes:
    package, _, inside = file.partition("/")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], inside).read_bytes()


def photos(name: str) -> NDArray[np.float32]:
    """The photos as the model wants them."""
    plain = settings_of(name).preprocess
    assert plain is not None
    declaration = parse(plain, name)
    return prepare(declaration, [decode(packaged(file), declaration.max_pixels) for file in PHOTOS])


def best(name: str, scores: NDArray[np.float32], labels: Path) -> list[Label]:
    plain = settings_of(name).preprocess
    assert plain is not None
    return [row[0] for row in rank(parse(plain, name), scores, labels.read_text(encoding="utf-8").splitlines())]


@pytest.mark.parametrize("name", NAMES)
def test_folder_is_complete(name: str, built: Path) -> None:
    settings = convert(load_yaml(built / name / "model.yaml"), ModelSettings, name)
    signature = settings.signatures["serving_default"]
    sizes = {spec.name: spec.shape[-1] for spec in signature.outputs}
    for output, file in settings.labels.items():
        labels = (built / name / file).read_text(encoding="utf-8").splitlines()
        assert len(labels) == sizes[output]
        assert all(labels)
    if settings.preprocess is not None:
        declaration = parse(settings.preprocess, name)
        assert declaration.input in {spec.name for spec in signature.inputs}
        assert declaration.output in settings.labels


def test_efficientnets_agree_and_are_right(run: Run, built: Path) -> None:
    scores = {}
    for framework in FRAMEWORKS:
        name = f"efficientnet_{framework}"
        scores[framework] = run(name, image=photos(name))["scores"]
        assert scores[framework].shape == (len(PHOTOS), 1000)
        labels = best(name, scores[framework], built / name / "labels.txt")
        for label, (classes, score) in zip(labels, PHOTOS.values(), strict=True):
            assert label.index in classes
            assert score is None or label.score == pytest.approx(score, abs=0.005)
        assert [labels[number].label for number in (0, 1, 3, 4)] == ["espresso", "tripod", "palace", "daisy"]
    for framework in FRAMEWORKS:
        np.testing.assert_allclose(scores[framework], scores["onnx"], rtol=0, atol=1e-4)
        np.testing.assert_allclose(scores[framework].sum(axis=1), 1, atol=1e-5)


def test_a_batch_answers_as_its_rows_do_alone(run: Run) -> None:
    images = photos("efficientnet_onnx")
    together = run("efficientnet_onnx", image=images)["scores"]
    np.testing.assert_allclose(run("efficientnet_onnx", image=images[:1])["scores"], together[:1], atol=1e-5)


def test_incomes_agree_and_tell_rows_apart(run: Run) -> None:
    random = np.random.default_rng(7)
    features = (random.random((64, 29)) < 0.25).astype(np.float32)
    features[:, :2] = random.random((64, 2))
    chances = {name: run(f"income_{name}", features=features)["probability"] for name in FRAMEWORKS}
    for framework in FRAMEWORKS:
        assert chances[framework].shape == (64, 1)
        np.testing.assert_allclose(chances[framework], chances["onnx"], rtol=0, atol=1e-6)
    assert 0 <= chances["onnx"].min() < 0.3
    assert 0.7 < chances["onnx"].max() <= 1


def test_anomaly_tells_anomalies(run: Run, built: Path) -> None:
    (requirement,) = (ROOT / "models" / "anomaly" / "packages.txt").read_text().split()
    file = built.parent / "packages" / requirement / "river" / "datasets" / "shuttle.csv.gz"
    rows = np.loadtxt(file, np.float32, delimiter=",", skiprows=1)
    score = run("anomaly", readings=rows[:, :-1])["score"]
    assert score.shape == (len(rows), 1)
    assert roc_auc_score(rows[:, -1], score[:, 0]) > 0.99
    assert np.mean((score[:, 0] > 0.5) == rows[:, -1]) > 0.99


def magika_bytes(content: bytes) -> NDArray[np.int32]:
    """The first and the last 1,024 bytes without the white space around, 256 where there are none."""
    start, end = content.lstrip()[:1024], content.rstrip()[-1024:]
    row = np.full(2048, 256, np.int32)
    row[: len(start)] = list(start)
    row[2048 - len(end) :] = list(end)
    return row


def test_magika_knows_kinds_of_files(run: Run, built: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("notes.txt", "remember the lunch box\n" * 100)
    contents = {
        "python": Path(__file__).read_bytes(),
        "zip": archive.getvalue(),
        "png": packaged("skimage/data/coffee.png"),
        "jpeg": packaged("sklearn/datasets/images/china.jpg"),
    }
    rows = np.stack([magika_bytes(content) for content in contents.values()])
    scores = run("magika", bytes=rows)["target_label"]
    labels = (built / "magika" / "labels.txt").read_text(encoding="utf-8").splitlines()
    assert [labels[index] for index in scores.argmax(axis=1)] == list(contents)


def test_silero_answers_and_carries_its_state(run: Run) -> None:
    sound = np.random.default_rng(7).normal(0, 0.1, (2, 576)).astype(np.float32)
    start = np.zeros((2, 2, 128), np.float32)
    first = run("silero_vad", input=sound, state=start, sr=np.array(16_000, np.int64))
    assert first["output"].shape == (2, 1)
    assert first["stateN"].shape == (2, 2, 128)
    second = run("silero_vad", input=sound, state=first["stateN"])
    assert ((second["output"] >= 0) & (second["output"] <= 1)).all()
    assert (second["output"] != first["output"]).all()
    np.testing.assert_array_equal(run("silero_vad", input=sound, state=start)["output"], first["output"])


@pytest.mark.usefixtures("built")
def test_a_second_build_does_nothing_and_imports_no_framework() -> None:
    code = (
        "import runpy, sys; sys.argv = ['scripts/build_models.py']\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "print(sorted({'torch', 'tensorflow', 'onnx', 'onnxruntime', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines == [*(f"{name}: built already" for name in NAMES), "[]"]


@pytest.mark.usefixtures("built")
def test_import_is_idempotent_and_a_changed_recipe_is_a_new_version(tmp_path: Path) -> None:
    def imported() -> str:
        command = [sys.executable, "scripts/build_models.py", "--import", "--models", "anomaly"]
        environment = {**os.environ, "BENTOML_HOME": str(tmp_path)}
        done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
        return done.stdout

    assert "anomaly: imported as anomaly:1 in" in imported()
    assert "anomaly: imported already, as version 1" in imported()
    mark = tmp_path / "models" / "anomaly" / "1" / "recipe.sha256"
    mark.write_text("another recipe")
    assert "anomaly: imported as anomaly:2 in" in imported()
    assert "anomaly: imported already, as version 2" in imported()


def test_an_unknown_model_is_refused_by_name() -> None:
    command = [sys.executable, "scripts/build_models.py", "--models", "resnet"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "resnet" in done.stderr
