"""Images: bytes from anyone → pixels → the tensor a model takes. All of it computes; call it off the event loop."""

import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ekiben.errors import InvalidRequest, TooLarge
from ekiben.preprocess.declaration import CHANNELS, ImageDeclaration

__all__ = ["FORMATS", "Pixels", "decode", "prepare"]

Pixels = NDArray[np.uint8]
"""[height, width, 3], RGB."""

FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of what is read; its other formats are rare, and some run another program."""

_ACCEPTED: Final = (*FORMATS, "MPO")
"""What an opened image may call itself: a JPEG with a second picture in it, as cameras write, is MPO then."""

_ORIENTATION_TAG: Final = 0x0112
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation → what undoes it."""

_RESAMPLING: Final = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def decode(image: bytes | bytearray | memoryview | Image.Image, max_pixels: int) -> Pixels:
    """The pixels of an encoded image, or of a Pillow image, upright (EXIF), on white where it is transparent.

    Of several frames the first. Of 16 bits a value the upper 8. Raises InvalidRequest when it cannot be read, and
    TooLarge, before decoding, when it has more than `max_pixels` pixels (`preprocess.max_pixels`).
    """
    opened = image if isinstance(image, Image.Image) else _open(image)
    width, height = opened.size
    if opened.format is not None and opened.format not in _ACCEPTED:
        raise InvalidRequest(f"images of format {opened.format} are not read; send one of {', '.join(FORMATS)}")
    if width < 1 or height < 1:
        raise InvalidRequest(f"the image has no pixels: it is {width} wide and {height} high")
    if width * height > max_pixels:
        raise TooLarge(
            f"the image is {width} by {height}, {width * height} pixels, and preprocess.max_pixels is {max_pixels}"
        )
    try:
        opened.load()
        upright = _UPRIGHT.get(_orientation(opened))
        return np.asarray(_to_rgb(opened if upright is None else opened.transpose(upright)))
    except InvalidRequest:
        raise
    except Exception as error:  # decoders raise almost anything for damaged data
        raise InvalidRequest(
            f"the image ({opened.format or 'no'} format, {width} by {height}, mode {opened.mode}) cannot be decoded: "
            "it is truncated or damaged"
        ) from error


def prepare(declaration: ImageDeclaration, images: Sequence[Pixels]) -> NDArray[np.float32]:
    """The tensor a model takes for these images: f32 [N, channels, height, width], or [N, height, width, channels]."""
    height, width = declaration.size
    channels = CHANNELS[declaration.colour]
    values = np.empty((len(images), height, width, channels), np.float32)
    for row, image in zip(values, images, strict=True):
        row[:] = _resized(declaration, image).reshape(height, width, channels)
    values -= np.asarray(declaration.mean, np.float32)
    values /= np.asarray(declaration.scale, np.float32)
    if declaration.layout == "NCHW":
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    return values


def _open(data: bytes | bytearray | memoryview) -> Image.Image:
    if not data:
        raise InvalidRequest("the image is empty")
    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooLarge("the image has far more pixels than preprocess.max_pixels allows") from error
    except Exception as error:  # likewise for damaged headers
        raise InvalidRequest(
            f"{len(data)} bytes that start with {bytes(data[:8])!r} are not an image that can be read; "
            f"send one of {', '.join(FORMATS)}"
        ) from error


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1 (upright) where there is none, or none that can be read."""
    try:
        value: object = image.getexif().get(_ORIENTATION_TAG)
    except Exception:  # EXIF data is often damaged, and the image is good without it
        return 1
    return value if isinstance(value, int) else 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise InvalidRequest(
            f"the image has mode {image.mode} (32 bits a value), whose range is unknown; send 8 or 16 bits a value"
        )
    if image.has_transparency_data:
        transparent = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, transparent).convert("RGB")
    return image.convert("RGB")


def _resized(declaration: ImageDeclaration, pixels: Pixels) -> NDArray[Any]:
    """u8 [height, width] or [height, width, 3] of the declared size and colour."""
    image = Image.fromarray(pixels)
    height, width = declaration.size
    if declaration.resize == "crop":
        largest = min(image.width / width, image.height / height) * declaration.crop_fraction
        cut_width, cut_height = max(1, int(width * largest)), max(1, int(height * largest))
        left, top = (image.width - cut_width) // 2, (image.height - cut_height) // 2
        image = image.crop((left, top, left + cut_width, top + cut_height))
    image = image.resize((width, height), _RESAMPLING[declaration.interpolation])
    if declaration.colour == "L":
        return np.asarray(image.convert("L"))
    values = np.asarray(image)
    return values[..., ::-1] if declaration.colour == "BGR" else values
