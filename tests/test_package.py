"""What `import ekiben` gives."""

import subprocess
import sys

import ekiben
import ekiben.repository.selection
import ekiben.runner.base
from ekiben import declare


def test_runner_and_repository_are_calls_whatever_was_imported_before() -> None:
    assert ekiben.runner is declare.runner
    assert ekiben.repository is declare.repository


def test_the_public_names_are_there() -> None:
    for name in ekiben.__all__:
        assert getattr(ekiben, name) is not None


def test_importing_the_package_costs_no_framework_and_no_bentoml() -> None:
    heavy = ("bentoml", "torch", "tensorflow", "onnxruntime", "starlette", "numpy")
    code = f"import sys, ekiben; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
