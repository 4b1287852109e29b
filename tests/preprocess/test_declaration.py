"""Declarations are checked once, and what is wrong is named with its value and its model."""

import pytest

from ekiben.errors import InvalidSettings
from ekiben.preprocess import ImageDeclaration, parse

LEAST = {"kind": "image", "input": "image", "output": "scores", "size": [4, 6]}


def test_parses_every_field() -> None:
    plain = {
        **LEAST,
        "resize": "stretch",
        "crop_fraction": 0.5,
        "interpolation": "lanczos",
        "colour": "BGR",
        "layout": "NHWC",
        "mean": [1, 2, 3],
        "scale": 255,
        "activation": "softmax",
        "top_k": 3,
        "max_pixels": 100,
    }
    assert parse(plain, "m") == ImageDeclaration(
        input="image",
        output="scores",
        size=(4, 6),
        resize="stretch",
        crop_fraction=0.5,
        interpolation="lanczos",
        colour="BGR",
        layout="NHWC",
        mean=(1.0, 2.0, 3.0),
        scale=255.0,
        activation="softmax",
        top_k=3,
        max_pixels=100,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "sound"}, "kind must be one of image, got 'sound'"),
        ({"sizes": 3}, "unknown key 'sizes'; did you mean 'size'?"),
        ({"size": [4]}, "size: expected `array` of length 2, got 1"),
        ({"top_k": "5"}, "top_k must be int, got '5'"),
        ({"size": [4, 0]}, "size must be two sides of 1 to 8192, got [4, 0]"),
        ({"resize": "pad"}, "resize must be one of crop, stretch, got 'pad'"),
        ({"crop_fraction": 0}, "crop_fraction must be over 0 and at most 1, got 0.0"),
        (
            {"interpolation": "cubic"},
            "interpolation must be one of nearest, bilinear, bicubic, lanczos, got 'cubic'",
        ),
        ({"colour": "CMYK"}, "colour must be one of RGB, BGR, L, got 'CMYK'"),
        ({"layout": "HWC"}, "layout must be one of NCHW, NHWC, got 'HWC'"),
        ({"mean": [1, 2]}, "mean must be one number or 3 for colour 'RGB', got [1.0, 2.0]"),
        ({"mean": float("nan")}, "mean must be finite, got nan"),
        ({"scale": [1, 0, 1]}, "scale divides and must not be 0, got [1.0, 0.0, 1.0]"),
        ({"activation": "relu"}, "activation must be one of none, softmax, got 'relu'"),
        ({"top_k": 0}, "top_k must be 1 or more, got 0"),
        ({"max_pixels": 0}, "max_pixels must be 1 to 178956970, got 0"),
    ],
)
def test_says_what_is_wrong(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        parse({**LEAST, **changes}, "m")
    assert caught.value.message == f"model 'm': preprocess: {reason}"


def test_requires_what_has_no_default() -> None:
    with pytest.raises(InvalidSettings, match=r"model 'm': preprocess: .*missing required field `input`"):
        parse({}, "m")
