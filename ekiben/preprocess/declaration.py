"""What `preprocess:` in a model's `model.yaml` says, as a value that is checked once.

preprocess:
  kind: image
  input: image              # the model's tensors
  output: scores
  size: [224, 224]          # height, width
  resize: crop              # crop: cut out the middle first; stretch: the whole image, whatever its shape
  crop_fraction: 0.875      # of the largest cut that fits
  interpolation: bicubic    # nearest, bilinear, bicubic, lanczos
  colour: RGB               # RGB, BGR, L (grey)
  layout: NCHW              # or NHWC
  mean: [127, 127, 127]     # each value 0…255 becomes (value - mean) / scale; one number, or one a channel
  scale: [128, 128, 128]
  activation: none          # softmax: the scores are logits
  top_k: 5
"""

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from ekiben.errors import InvalidSettings
from ekiben.plain import convert

__all__ = ["CHANNELS", "INTERPOLATIONS", "ImageDeclaration", "parse"]

CHANNELS: Final[Mapping[str, int]] = {"RGB": 3, "BGR": 3, "L": 1}
"""Colour → number of channels."""

INTERPOLATIONS: Final = ("nearest", "bilinear", "bicubic", "lanczos")

_LARGEST_SIDE: Final = 8192
_MOST_PIXELS: Final = 178_956_970
"""Pillow refuses images with more, whatever is declared."""


class ImageDeclaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How an image becomes a model's input, and its scores labels; the fields are explained at the head of the module.

    Raises InvalidSettings for a value that makes no sense.
    """

    input: str
    output: str
    size: tuple[int, int]
    kind: str = "image"
    resize: str = "crop"
    crop_fraction: float = 1.0
    interpolation: str = "bilinear"
    colour: str = "RGB"
    layout: str = "NCHW"
    mean: float | tuple[float, ...] = 0.0
    scale: float | tuple[float, ...] = 1.0
    activation: str = "none"
    top_k: int = 5
    max_pixels: int = 64_000_000
    """An image with more is refused before it is decoded."""

    def __post_init__(self) -> None:
        _one_of("kind", self.kind, ("image",))
        _one_of("resize", self.resize, ("crop", "stretch"))
        _one_of("interpolation", self.interpolation, INTERPOLATIONS)
        _one_of("colour", self.colour, tuple(CHANNELS))
        _one_of("layout", self.layout, ("NCHW", "NHWC"))
        _one_of("activation", self.activation, ("none", "softmax"))
        if not all(1 <= side <= _LARGEST_SIDE for side in self.size):
            raise InvalidSettings(f"size must be two sides of 1 to {_LARGEST_SIDE}, got {list(self.size)}")
        if not 0 < self.crop_fraction <= 1:
            raise InvalidSettings(f"crop_fraction must be over 0 and at most 1, got {self.crop_fraction}")
        if self.top_k < 1:
            raise InvalidSettings(f"top_k must be 1 or more, got {self.top_k}")
        if not 1 <= self.max_pixels <= _MOST_PIXELS:
            raise InvalidSettings(f"max_pixels must be 1 to {_MOST_PIXELS}, got {self.max_pixels}")
        self._check_channels("mean", self.mean)
        self._check_channels("scale", self.scale)
        if self.scale == 0 or (isinstance(self.scale, tuple) and 0 in self.scale):
            raise InvalidSettings(f"scale divides and must not be 0, got {_plain(self.scale)}")

    def _check_channels(self, name: str, value: float | tuple[float, ...]) -> None:
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(value, tuple) and len(value) != CHANNELS[self.colour]:
            raise InvalidSettings(
                f"{name} must be one number or {CHANNELS[self.colour]} for colour '{self.colour}', got {_plain(value)}"
            )
        if not all(map(math.isfinite, values)):
            raise InvalidSettings(f"{name} must be finite, got {_plain(value)}")


def parse(plain: Mapping[str, object], model: str) -> ImageDeclaration:
    """The declaration in plain data (`ModelSettings.preprocess`) of `model`.

    Raises InvalidSettings that names the model, the field and its value.
    """
    return convert(plain, ImageDeclaration, f"model '{model}': preprocess")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidSettings(f"{name} must be one of {', '.join(known)}, got '{value}'")


def _plain(value: float | tuple[float, ...]) -> float | list[float]:
    return list(value) if isinstance(value, tuple) else value
