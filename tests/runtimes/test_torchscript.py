"""What is TorchScript's own: a signature must be declared, and inputs go by name or by position."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch

from ekiben.errors import LoadFailed
from ekiben.runtimes.base import DEFAULT_SIGNATURE, LoadContext
from ekiben.runtimes.torchscript import TorchscriptSession
from ekiben.runtimes.torchscript_probe import infer_signature
from ekiben.types import Signature, Tensor, TensorSpec

MakeContext = Callable[..., LoadContext]

ONES = np.ones((2, 3), np.float32)


class Minus(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a - b


class Named(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"twice": x + x, "half": x / 2}


class Nested(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        return x, (x + 1, x + 2)


class WithMethod(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    @torch.jit.export  # type: ignore[untyped-decorator]
    def negate(self, x: torch.Tensor) -> torch.Tensor:
        return -x


class Stateful(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = state + x.sum()
        return x * state, state


class InPlace(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


class Parameter(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kept


class Checked(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x < 0).any()):
            raise ValueError("x must not be negative")
        return x


class Boxes(NamedTuple):
    box: torch.Tensor
    score: torch.Tensor


class Detector(torch.nn.Module):  # type: ignore[misc]
    def forward(self, image: torch.Tensor) -> Boxes:
        return Boxes(image.mean((2, 3)), image.amax(1))


def save(module: Any, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module).save(str(folder / "model.pt"))


def signature(inputs: str, outputs: str, datatype: str = "FP32") -> dict[str, Signature]:
    """Of tensors of rank 2, by their names."""
    return {
        DEFAULT_SIGNATURE: Signature(
            tuple(TensorSpec(name, datatype, (-1, -1)) for name in inputs.split()),
            tuple(TensorSpec(name, datatype, (-1, -1)) for name in outputs.split()),
        )
    }


def run(session: TorchscriptSession, outputs: str, **inputs: Tensor) -> list[float]:
    """The first value of each output."""
    names = outputs.split()
    answer = session.run(DEFAULT_SIGNATURE, inputs, names)
    return [float(answer[name].reshape(-1)[0]) for name in names]


def test_a_signature_must_be_declared(tmp_path: Path, make_context: MakeContext) -> None:
    save(Minus(), tmp_path)

    with pytest.raises(LoadFailed, match=r"signatures: serving_default:.* --example FILE\.npz"):
        TorchscriptSession(make_context())


@pytest.mark.parametrize(
    ("inputs", "difference"), [("a b", 4.0), ("b a", 4.0), ("x y", 3.0), ("y x", -3.0), ("x__1 y__0", -3.0)]
)
def test_inputs_go_by_name_by_position_or_by_index(
    inputs: str, difference: float, tmp_path: Path, make_context: MakeContext
) -> None:
    save(Minus(), tmp_path)
    session = TorchscriptSession(make_context(signatures=signature(inputs, "out")))
    given = {"a": 6, "b": 2, "x": 5, "y": 2, "x__1": 5, "y__0": 2}
    tensors = {name: ONES * np.float32(given[name]) for name in inputs.split()}

    assert run(session, "out", **tensors) == [difference]


def test_too_few_inputs_are_refused_when_it_loads(tmp_path: Path, make_context: MakeContext) -> None:
    save(Minus(), tmp_path)

    with pytest.raises(LoadFailed, match="the inputs a are given, but the model takes a, b"):
        TorchscriptSession(make_context(signatures=signature("a", "out")))


@pytest.mark.parametrize(
    ("module", "outputs", "values"),
    [
        (Named(), "half twice", [0.5, 2.0]),
        (Nested(), "a b c", [1.0, 2.0, 3.0]),
        (Nested(), "o__2 o__0 o__1", [3.0, 1.0, 2.0]),
    ],
)
def test_outputs_by_name_by_position_or_by_index(
    module: Any, outputs: str, values: list[float], tmp_path: Path, make_context: MakeContext
) -> None:
    save(module, tmp_path)
    session = TorchscriptSession(make_context(signatures=signature("x", outputs)))

    assert run(session, outputs, x=ONES) == values


@pytest.mark.parametrize(
    ("module", "outputs", "message"),
    [
        (Named(), "half third", "no tensor 'third', only 'twice', 'half'"),
        (Nested(), "a b", "returned 3 tensors, its signature has 2"),
    ],
)
def test_an_output_that_is_not_there_is_named(
    module: Any, outputs: str, message: str, tmp_path: Path, make_context: MakeContext
) -> None:
    save(module, tmp_path)
    session = TorchscriptSession(make_context(signatures=signature("x", outputs)))

    with pytest.raises(RuntimeError, match=message):
        run(session, outputs, x=ONES)


def test_an_output_of_another_type_than_declared_is_an_error(tmp_path: Path, make_context: MakeContext) -> None:
    save(Nested(), tmp_path)
    declared = signature("x", "a b c", "FP64")
    session = TorchscriptSession(make_context(signatures=declared))

    with pytest.raises(ValueError, match="output 'a' came as FP32, but the signature says FP64"):
        run(session, "a", x=ONES)


def test_another_signature_calls_the_method_of_its_name(tmp_path: Path, make_context: MakeContext) -> None:
    save(WithMethod(), tmp_path)
    one = signature("x", "y")[DEFAULT_SIGNATURE]
    session = TorchscriptSession(make_context(signatures={DEFAULT_SIGNATURE: one, "negate": one}))

    assert session.run("negate", {"x": ONES}, ["y"])["y"][0, 0] == -1
    with pytest.raises(LoadFailed, match="no exported method 'invert'"):
        TorchscriptSession(make_context(signatures={DEFAULT_SIGNATURE: one, "invert": one}))


def test_state_is_an_input_and_an_output(tmp_path: Path, make_context: MakeContext) -> None:
    save(Stateful(), tmp_path)
    session = TorchscriptSession(make_context(signatures=signature("x state", "y stateN")))
    state = np.zeros((1, 1), np.float32)

    for total in (6, 12, 18):
        answer = session.run(DEFAULT_SIGNATURE, {"x": ONES, "state": state}, ["y", "stateN"])
        state = answer["stateN"]
        assert state.tolist() == [[total]]


def test_a_model_that_works_in_place_spares_inputs_that_are_read_only(
    tmp_path: Path, make_context: MakeContext
) -> None:
    save(InPlace(), tmp_path)
    session = TorchscriptSession(make_context(signatures=signature("x", "y")))
    x = ONES.copy()
    x.flags.writeable = False

    assert run(session, "y", x=x) == [2.0]
    assert x.tolist() == ONES.tolist()


def test_what_the_caller_gets_is_not_the_models_own(tmp_path: Path, make_context: MakeContext) -> None:
    save(Parameter(), tmp_path)
    session = TorchscriptSession(make_context(signatures=signature("x", "y")))

    session.run(DEFAULT_SIGNATURE, {"x": ONES}, ["y"])["y"][:] = 9

    assert run(session, "y", x=ONES) == [1.0]


def test_what_the_model_raises_is_told_in_one_line(tmp_path: Path, make_context: MakeContext) -> None:
    save(Checked(), tmp_path)
    session = TorchscriptSession(make_context(signatures=signature("x", "y")))

    with pytest.raises(Exception, match=r"^[^\n]*x must not be negative$"):
        run(session, "y", x=-ONES)
    assert run(session, "y", x=ONES) == [1.0]


def test_bfloat16_is_computed(tmp_path: Path, make_context: MakeContext) -> None:
    save(Minus(), tmp_path)
    session = TorchscriptSession(make_context(signatures=signature("a b", "c", "BF16")))
    a = np.array([[1.5, 2.5]], ml_dtypes.bfloat16)

    answer = session.run(DEFAULT_SIGNATURE, {"a": a, "b": a[:, ::-1]}, ["c"])["c"]

    assert answer.dtype == ml_dtypes.bfloat16
    assert answer.tolist() == [[-1, 1]]


def test_bytes_are_refused(tmp_path: Path, make_context: MakeContext) -> None:
    save(Minus(), tmp_path)

    with pytest.raises(LoadFailed, match="'a' as BYTES; PyTorch has no such tensor"):
        TorchscriptSession(make_context(signatures=signature("a b", "c", "BYTES")))


def test_a_signature_is_inferred_from_an_example() -> None:
    found = infer_signature(lambda given: {"y": given["x"] @ np.ones((3, 5), np.float32)}, {"x": ONES}, {})

    assert found == Signature((TensorSpec("x", "FP32", (-1, 3)),), (TensorSpec("y", "FP32", (-1, 5)),))


def test_a_model_that_does_not_follow_the_rows_has_no_batch_dimension() -> None:
    found = infer_signature(lambda given: {"y": given["x"].sum(0)}, {"x": ONES}, {})

    assert found == Signature((TensorSpec("x", "FP32", (2, 3)),), (TensorSpec("y", "FP32", (3,)),))


def test_a_model_that_refuses_more_rows_has_no_batch_dimension() -> None:
    def only_two(given: Any) -> dict[str, Tensor]:
        return {"y": given["x"].reshape(2, 3)}

    assert infer_signature(only_two, {"x": ONES}, {}).outputs == (TensorSpec("y", "FP32", (2, 3)),)


def test_free_dimensions_of_the_inputs_are_found_again_in_the_outputs() -> None:
    image = TensorSpec("image", "FP32", (-1, 3, -1, -1))

    def halve(given: Any) -> dict[str, Tensor]:
        return {"small": given["image"][:, :1, ::2, ::2], "mean": given["image"].mean((2, 3))}

    found = infer_signature(halve, {"image": np.zeros((2, 3, 8, 8), np.float32)}, {"image": image})

    assert found.inputs == (image,)
    assert found.outputs == (TensorSpec("small", "FP32", (-1, 1, -1, -1)), TensorSpec("mean", "FP32", (-1, 3)))
