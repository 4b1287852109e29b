"""Images of every mode become the same pixels; damaged and hostile ones a clear refusal."""

import io
import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from ekiben.errors import InvalidRequest, TooLarge
from ekiben.preprocess import ImageDeclaration, decode, prepare

MANY = 1_000_000

HEIGHT, WIDTH = 3, 5
GREY = np.arange(HEIGHT * WIDTH, dtype=np.uint8).reshape(HEIGHT, WIDTH) * 16
COLOURS = np.stack([GREY, GREY[::-1], GREY[:, ::-1]], axis=-1)
GREY_RGB = np.stack([GREY] * 3, axis=-1)
NOISE = Image.fromarray(np.random.default_rng(7).integers(0, 256, (64, 64), np.uint8))


def encoded(image: Image.Image, format_name: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format_name, **options)
    return file.getvalue()


def empty_png(width: int, height: int) -> bytes:
    """A PNG of any size, RGB, by its header; there are no pixels in it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def declaration(**changes: object) -> ImageDeclaration:
    fields: dict[str, object] = {"input": "i", "output": "o", "size": (HEIGHT, WIDTH), "interpolation": "nearest"}
    return ImageDeclaration(**(fields | changes))  # type: ignore[arg-type]  # one function for every field


def palette() -> Image.Image:
    return Image.fromarray(COLOURS).quantize(HEIGHT * WIDTH)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.fromarray(COLOURS), COLOURS),
        (Image.fromarray(GREY), GREY_RGB),
        (Image.fromarray(GREY > 100), np.where(GREY_RGB > 100, 255, 0)),
        (Image.fromarray(GREY.astype(np.uint16) * 256 + 7), GREY_RGB),
        (palette(), np.asarray(palette().convert("RGB"))),
        (Image.fromarray(COLOURS).convert("RGBA"), COLOURS),
        (Image.fromarray(np.dstack([COLOURS, np.zeros_like(GREY)])), np.full_like(COLOURS, 255)),
        (Image.fromarray(np.dstack([GREY, np.full_like(GREY, 255)])), GREY_RGB),
    ],
    ids=["RGB", "L", "1", "16 bits", "P", "RGBA opaque", "RGBA transparent", "LA"],
)
def test_modes(image: Image.Image, expected: NDArray[np.uint8]) -> None:
    for given_image in (image, encoded(image)):
        pixels = decode(given_image, MANY)
        assert pixels.dtype == np.uint8
        np.testing.assert_array_equal(pixels, expected)


def test_palette_with_a_transparent_colour_is_on_white() -> None:
    image = palette()
    image.info["transparency"] = image.getpixel((0, 0))
    np.testing.assert_array_equal(decode(encoded(image), MANY)[0, 0], [255, 255, 255])


@pytest.mark.parametrize("mode", ["CMYK", "L", "RGB"])
def test_jpeg_modes(mode: str) -> None:
    image = Image.new("RGB", (16, 16), (200, 200, 200)).convert(mode)
    pixels = decode(encoded(image, "JPEG", quality=95), MANY)
    assert np.abs(pixels.astype(int) - 200).max() <= 2


@pytest.mark.parametrize("format_name", ["BMP", "GIF", "PNG", "PPM", "TIFF", "WEBP"])
def test_formats(format_name: str) -> None:
    options = {"lossless": True, "exact": True} if format_name == "WEBP" else {}
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(GREY_RGB), format_name, **options), MANY), GREY_RGB)


@pytest.mark.parametrize("format_name", ["GIF", "MPO", "TIFF"])
def test_first_of_several_frames(format_name: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], format_name, save_all=True, append_images=frames[1:])
    np.testing.assert_allclose(decode(data, MANY)[0, 0], [255, 0, 0], atol=2)


@pytest.mark.parametrize(
    ("orientation", "stored"),
    [
        (1, lambda upright: upright),
        (2, lambda upright: upright[:, ::-1]),
        (3, lambda upright: upright[::-1, ::-1]),
        (4, lambda upright: upright[::-1]),
        (5, lambda upright: upright.transpose(1, 0, 2)),
        (6, lambda upright: np.rot90(upright, 1)),
        (7, lambda upright: upright[::-1, ::-1].transpose(1, 0, 2)),
        (8, lambda upright: np.rot90(upright, -1)),
        (99, lambda upright: upright),
    ],
)
@pytest.mark.parametrize("format_name", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation(
    orientation: int, stored: Callable[[NDArray[np.uint8]], NDArray[np.uint8]], format_name: str
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True, "exact": True} if format_name == "WEBP" else {}
    image = Image.fromarray(np.ascontiguousarray(stored(COLOURS)))
    np.testing.assert_array_equal(decode(encoded(image, format_name, exif=exif, **options), MANY), COLOURS)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_damaged_exif_is_ignored() -> None:
    data = encoded(Image.new("RGB", (8, 8), "white"), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert decode(data, MANY).shape == (8, 8, 3)


def test_too_many_pixels_are_refused_by_the_header() -> None:
    with pytest.raises(TooLarge, match=r"5 by 3, 15 pixels, and preprocess\.max_pixels is 14"):
        decode(encoded(Image.fromarray(COLOURS)), 14)
    assert decode(encoded(Image.fromarray(COLOURS)), 15).shape == COLOURS.shape
    for side in (10_000, 50_000):
        with pytest.raises(TooLarge, match=r"preprocess\.max_pixels"):
            decode(empty_png(side, side), MANY)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the image is empty"),
        (b"hello, world", "12 bytes that start with b'hello, w' are not an image that can be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "are not an image that can be read"),
        (b"\x89PNG\r\n\x1a\n", "are not an image that can be read"),
        (encoded(NOISE)[:-900], r"\(PNG format, 64 by 64, mode L\) cannot be decoded: it is truncated or damaged"),
        (encoded(NOISE, "JPEG")[:-900], "it is truncated or damaged"),
        (encoded(Image.fromarray(GREY.astype(np.float32)), "TIFF"), "mode F .* whose range is unknown"),
    ],
    ids=["empty", "text", "postscript", "signature only", "short png", "short jpeg", "floats"],
)
def test_refusals(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        decode(data, MANY)


def test_image_of_a_format_that_is_not_read() -> None:
    image = Image.open(io.BytesIO(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"))
    with pytest.raises(InvalidRequest, match="images of format EPS are not read"):
        decode(image, MANY)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM"]),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=8),
    st.integers(0, 4000),
)
def test_damage_is_decoded_or_refused(format_name: str, damage: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(encoded(Image.fromarray(np.repeat(np.repeat(COLOURS, 8, 0), 8, 1)), format_name))
    for place, value in damage:
        data[place % len(data)] = value
    try:
        pixels = decode(bytes(data[: len(data) - cut % 64]), MANY)
    except InvalidRequest:
        return
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3


def test_prepare_normalises_channel_by_channel() -> None:
    tensor = prepare(declaration(mean=(1, 2, 3), scale=(2, 4, 8)), [COLOURS, COLOURS[::-1]])
    assert tensor.shape == (2, 3, HEIGHT, WIDTH)
    assert tensor.dtype == np.float32
    assert tensor.flags.c_contiguous
    for channel, (mean, scale) in enumerate([(1, 2), (2, 4), (3, 8)]):
        np.testing.assert_array_equal(tensor[0, channel], (COLOURS[..., channel].astype(np.float32) - mean) / scale)
        np.testing.assert_array_equal(tensor[1, channel], tensor[0, channel, ::-1])


def test_prepare_layout_and_colour() -> None:
    np.testing.assert_array_equal(prepare(declaration(layout="NHWC"), [COLOURS])[0], COLOURS)
    np.testing.assert_array_equal(prepare(declaration(colour="BGR"), [COLOURS])[0, 0], COLOURS[..., 2])
    grey = prepare(declaration(colour="L", mean=0.0, scale=2.0), [GREY_RGB])
    np.testing.assert_array_equal(grey, GREY[None, None] / np.float32(2))


def test_prepare_cuts_the_middle_out() -> None:
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6] = 9
    square = declaration(size=(4, 4), resize="crop")
    assert (prepare(square, [wide]) == 9).all()
    stretched = declaration(size=(4, 4), resize="stretch")
    np.testing.assert_array_equal(prepare(stretched, [wide])[0, 0, 0], [0, 9, 9, 0])
    half = declaration(size=(4, 4), crop_fraction=0.5)
    inner = np.zeros((8, 8, 3), np.uint8)
    inner[2:6, 2:6] = 7
    assert (prepare(half, [inner]) == 7).all()


def test_prepare_of_extreme_shapes_and_of_none() -> None:
    line = np.full((1, 3000, 3), 5, np.uint8)
    assert (prepare(declaration(crop_fraction=0.5), [line]) == 5).all()
    assert prepare(declaration(), []).shape == (0, 3, HEIGHT, WIDTH)
