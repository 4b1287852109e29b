"""What is the Python runtime's own: a user's file, its mistakes, and its neighbours."""

import contextlib
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ekiben.errors import LoadFailed
from ekiben.runtimes.base import DEFAULT_SIGNATURE, LoadContext, decoupled
from ekiben.runtimes.python import PythonSession
from ekiben.types import Signature, TensorSpec

MakeContext = Callable[..., LoadContext]

FLOATS = {DEFAULT_SIGNATURE: Signature((TensorSpec("x", "FP32", (-1,)),), (TensorSpec("y", "FP32", (-1,)),))}
TEXT = {DEFAULT_SIGNATURE: Signature((TensorSpec("x", "BYTES", (-1,)),), (TensorSpec("y", "BYTES", (-1,)),))}
X = np.array([1, 2], np.float32)


def write(folder: Path, text: str, name: str = "model.py") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(textwrap.dedent(text))


def test_load_infer_and_close_are_called(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        from pathlib import Path

        from ekiben.types import Signature, TensorSpec

        class Model:
            signature = Signature((TensorSpec("x", "FP32", (-1,)),), (TensorSpec("y", "FP32", (-1,)),))

            def load(self, context):
                self.context = context
                self.factor = float((context.path / "factor.txt").read_text()) * context.parameters["gain"]

            def infer(self, inputs):
                return {"y": inputs["x"] * self.factor, "unasked": "no tensor"}

            def close(self):
                (self.context.path / "closed").write_text(self.context.device)
        """,
    )
    (tmp_path / "factor.txt").write_text("3")
    session = PythonSession(make_context(parameters={"gain": 2}))

    assert session.signatures == FLOATS
    assert session.run(DEFAULT_SIGNATURE, {"x": X}, ["y"])["y"].tolist() == [6, 12]
    session.close()
    assert (tmp_path / "closed").read_text() == "cpu"
    assert not (tmp_path / "__pycache__").exists()


def test_what_model_yaml_declares_wins(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        class Model:
            signature = "of another kind"
            def infer(self, inputs):
                return {"y": [1, 2]}
        """,
    )

    session = PythonSession(make_context(signatures=FLOATS))

    assert session.signatures == FLOATS
    assert session.run(DEFAULT_SIGNATURE, {"x": X}, ["y"])["y"].dtype == np.float32
    with pytest.raises(LoadFailed, match="no signature: declare one"):
        PythonSession(make_context())


def test_two_models_with_the_same_file_names_do_not_meet(tmp_path: Path, make_context: MakeContext) -> None:
    for name, factor in (("one", 1), ("two", 2)):
        write(tmp_path / name, f"FACTOR = {factor}\n", "helper.py")
        write(
            tmp_path / name,
            """
            from .helper import FACTOR
            class Model:
                def infer(self, inputs):
                    return {"y": inputs["x"] * FACTOR}
            """,
        )
    one = PythonSession(make_context(path=tmp_path / "one", signatures=FLOATS))
    two = PythonSession(make_context(path=tmp_path / "two", signatures=FLOATS))

    assert one.run(DEFAULT_SIGNATURE, {"x": X}, ["y"])["y"].tolist() == [1, 2]
    assert two.run(DEFAULT_SIGNATURE, {"x": X}, ["y"])["y"].tolist() == [2, 4]
    one.close()
    assert two.run(DEFAULT_SIGNATURE, {"x": X}, ["y"])["y"].tolist() == [2, 4]
    two.close()


def test_files_beside_it_may_be_imported_by_their_names(tmp_path: Path, make_context: MakeContext) -> None:
    for factor in (5, 6):
        folder = tmp_path / str(factor)
        write(folder, f"FACTOR = {factor}\n", "ekiben_test_helper.py")
        write(
            folder,
            """
            import ekiben_test_helper
            class Model:
                def infer(self, inputs):
                    return {"y": inputs["x"] * ekiben_test_helper.FACTOR}
            """,
        )
        session = PythonSession(make_context(path=folder, signatures=FLOATS))

        assert session.run(DEFAULT_SIGNATURE, {"x": X}, ["y"])["y"].tolist() == [factor, 2 * factor]
        session.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Model:\n    def infer(self) return 1\n", r"model\.py:2: SyntaxError: "),
        ("import a_package_that_is_not_there\n", r"model\.py:1: ModuleNotFoundError: No module named 'a_package_"),
        (
            "class Model:\n    infer = print\n    def load(self, context):\n        raise ValueError('no weights')\n",
            r"model\.py:4: ValueError: no weights",
        ),
        ("import sys\nsys.exit('bye')\n", r"model\.py:2: SystemExit: bye"),
        ("class Modell: ...\n", "'model.py' defines no class `Model`"),
        ("Model = 3\n", "'model.py' defines no class `Model`"),
        ("class Model: ...\n", r"has no method infer\(self, inputs\)"),
        ("class Model:\n    async def infer(self, inputs): ...\n", "must be a plain function, not async"),
        ("class Model:\n    async def infer(self, inputs): yield\n", "must be a plain function, not async"),
    ],
)
def test_mistakes_in_the_file_are_told_with_their_place(
    text: str, message: str, tmp_path: Path, make_context: MakeContext
) -> None:
    (tmp_path / "model.py").write_text(text)

    with pytest.raises(LoadFailed, match=f"^model 'fish' version 7 on device 'cpu': .*{message}"):
        PythonSession(make_context(signatures=FLOATS))


def test_another_signature_is_refused(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, "class Model:\n    def infer(self, inputs): ...\n")

    with pytest.raises(LoadFailed, match="has one signature, 'serving_default', and not 'classify'"):
        PythonSession(make_context(signatures={**FLOATS, "classify": FLOATS[DEFAULT_SIGNATURE]}))


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ("3", TypeError, "must return a dict of outputs, it returned int"),
        ("{'z': inputs['x']}", ValueError, "returned no output 'y', only 'z'"),
        ("{'y': inputs['x'].astype('float64')}", ValueError, "output 'y' came as FP64, but the signature says FP32"),
        ("{'y': inputs['x'][None]}", ValueError, r"came with shape \[1, 2\], but the signature says \[-1\]"),
        ("1 / 0", ZeroDivisionError, "division by zero"),
        ("(each for each in [inputs])", TypeError, "returned generator; say `decoupled: true` in model.yaml"),
    ],
)
def test_answers_that_are_wrong_fail_the_batch_only(
    returned: str, error: type[Exception], message: str, tmp_path: Path, make_context: MakeContext
) -> None:
    write(
        tmp_path,
        f"""
        class Model:
            def infer(self, inputs):
                if inputs["x"][0] < 0:
                    return {returned}
                return {{"y": inputs["x"]}}
        """,
    )
    session = PythonSession(make_context(signatures=FLOATS))

    with pytest.raises(error, match=message):
        session.run(DEFAULT_SIGNATURE, {"x": -X}, ["y"])
    assert session.run(DEFAULT_SIGNATURE, {"x": X}, ["y"])["y"].tolist() == [1, 2]
    session.close()


@pytest.mark.parametrize("returned", ["['a', 'é']", "np.array(['a', 'é'])", "np.array([b'a', 'é'], object)"])
def test_text_is_welcome_as_bytes(returned: str, tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        f"""
        import numpy as np
        class Model:
            def infer(self, inputs):
                return {{"y": {returned}}}
        """,
    )
    session = PythonSession(make_context(signatures=TEXT))

    answer = session.run(DEFAULT_SIGNATURE, {"x": np.array([b""], np.object_)}, ["y"])["y"]

    assert answer.tolist() == [b"a", "é".encode()]
    session.close()


def test_bytes_outputs_hold_nothing_else(tmp_path: Path, make_context: MakeContext) -> None:
    write(tmp_path, "class Model:\n    def infer(self, inputs):\n        return {'y': [3]}\n")
    session = PythonSession(make_context(signatures=TEXT))

    with pytest.raises(TypeError, match="output 'y' is BYTES, but holds int"):
        session.run(DEFAULT_SIGNATURE, {"x": np.array([b""], np.object_)}, ["y"])
    session.close()


def test_an_infer_that_yields_makes_the_session_decoupled(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        class Model:
            def infer(self, inputs):
                self.ended = 0
                try:
                    for factor in (1, 2, 3):
                        yield {"y": inputs["x"] * factor, "unasked": "no tensor"}
                finally:
                    self.ended += 1
        """,
    )
    session = PythonSession(make_context(signatures=FLOATS))
    assert decoupled(session) is session

    assert [each["y"].tolist() for each in session.stream(DEFAULT_SIGNATURE, {"x": X}, ["y"])] == [
        [1, 2],
        [2, 4],
        [3, 6],
    ]
    assert session._model.ended == 1
    with contextlib.closing(session.stream(DEFAULT_SIGNATURE, {"x": X}, ["y"])) as responses:
        next(responses)
        assert session._model.ended == 0
    assert session._model.ended == 1


def test_a_response_that_is_wrong_ends_the_generator(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        class Model:
            ended = False
            def infer(self, inputs):
                try:
                    yield {"y": inputs["x"].astype("int32")}
                    raise SystemExit("not reached")
                finally:
                    self.ended = True
        """,
    )
    session = PythonSession(make_context(signatures=FLOATS))

    with pytest.raises(ValueError, match="came as INT32, but the signature says FP32"):
        list(session.stream(DEFAULT_SIGNATURE, {"x": X}, ["y"]))
    assert session._model.ended


def test_what_model_yaml_says_makes_a_function_decoupled(tmp_path: Path, make_context: MakeContext) -> None:
    write(
        tmp_path,
        """
        class Model:
            def infer(self, inputs):
                return [{"y": [1]}, {"y": [2, 3]}]
        """,
    )
    assert decoupled(PythonSession(make_context(signatures=FLOATS))) is None
    session = PythonSession(make_context(signatures=FLOATS, decoupled=True))
    assert decoupled(session) is session
    assert [each["y"].tolist() for each in session.stream(DEFAULT_SIGNATURE, {"x": X}, ["y"])] == [[1], [2, 3]]
