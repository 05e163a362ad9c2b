"""Types of files by their first bytes, and the size of images by headers that may lie."""

import struct
from contextlib import suppress

import pytest

from crawler.examples import pictures
from crawler.sites.images import MAX_SEGMENTS, is_cut_off, size_of, type_of

TONES = [[0, 255, 128], [64, 200, 10]]
JPEG, PNG = pictures.jpeg(TONES), pictures.png(TONES)
GIF = b"GIF89a" + struct.pack("<HH", 24, 16) + b"\x80\0\0" + bytes(6) + b";"


def riff(chunk: bytes) -> bytes:
    """A WebP file with one chunk."""
    content = b"WEBP" + chunk
    return b"RIFF" + struct.pack("<I", len(content)) + content


def bmp(header: bytes) -> bytes:
    """A BMP file without pixels."""
    return b"BM" + struct.pack("<I", 14 + len(header)) + bytes(4) + struct.pack("<I", 54) + header


def box(name: bytes, *content: bytes) -> bytes:
    """A box of an AVIF or HEIC file."""
    inner = b"".join(content)
    return struct.pack(">I", 8 + len(inner)) + name + inner


def heif(brand: bytes, *sizes: tuple[int, int]) -> bytes:
    """An image with tiles or a thumbnail of these sizes."""
    boxes = [box(b"ispe", bytes(4), struct.pack(">II", *size)) for size in sizes]
    meta = box(b"meta", bytes(4), box(b"hdlr", bytes(20)), box(b"iprp", box(b"ipco", *boxes)))
    return box(b"ftyp", brand, bytes(4)) + meta + box(b"mdat", bytes(9))


LOSSY = riff(b"VP8 " + struct.pack("<I", 10) + b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 24, 16))
LOSSLESS = riff(b"VP8L" + struct.pack("<IBI", 5, 0x2F, 23 | 15 << 14))
EXTENDED = riff(
    b"VP8X" + struct.pack("<II", 10, 0) + (23).to_bytes(3, "little") + (15).to_bytes(3, "little")
)
GOOD = [
    ("image/jpeg", JPEG), ("image/png", PNG), ("image/gif", GIF), ("image/webp", LOSSY),
    ("image/webp", LOSSLESS), ("image/webp", EXTENDED),
    ("image/bmp", bmp(struct.pack("<IiiHH", 40, 24, 16, 1, 24) + bytes(24))),
    ("image/bmp", bmp(struct.pack("<IiiHH", 40, 24, -16, 1, 24) + bytes(24))),
    ("image/bmp", bmp(struct.pack("<IHHHH", 12, 24, 16, 1, 24))),
    ("image/avif", heif(b"avif", (8, 8), (24, 16))),
    ("image/heic", heif(b"heic", (24, 16))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "body"), GOOD)
def test_images_tell_their_size(kind: str, body: bytes) -> None:
    """Each type is known by its bytes, and its size by its header; of several sizes in one file
    the largest counts."""
    assert type_of(body) == kind
    assert size_of(body, kind) == (24, 16)
    assert not is_cut_off(body, kind)


@pytest.mark.parametrize(("kind", "body"), GOOD)
def test_a_header_that_is_cut_off_is_broken(kind: str, body: bytes) -> None:
    """Wherever a file ends, its size is read, or it is said to be broken: nothing else happens."""
    for length in range(12, len(body)):
        part = body[:length]
        if type_of(part) != kind:
            continue
        with suppress(ValueError):
            assert size_of(part, kind) in ((24, 16), (8, 8))


@pytest.mark.parametrize(
    ("kind", "body"), [("image/jpeg", JPEG), ("image/png", PNG), ("image/gif", GIF[:-1] + b"\0\0")]
)
def test_a_missing_end_is_noticed(kind: str, body: bytes) -> None:
    """A file whose server broke off without saying so is not whole."""
    cut = body[: len(body) - 8] if kind != "image/gif" else body
    assert is_cut_off(cut, kind)
    assert size_of(cut, kind) == (24, 16)


def test_rubbish_behind_a_jpeg_is_no_missing_end() -> None:
    """Cameras and servers append bytes of their own."""
    assert not is_cut_off(JPEG + bytes(100), "image/jpeg")


def png_of(width: int, height: int) -> bytes:
    return PNG[:16] + struct.pack(">II", width, height) + PNG[24:]


@pytest.mark.parametrize(("width", "height"), [(0, 16), (24, 0), (0, 0)])
def test_an_image_of_no_size_is_broken(width: int, height: int) -> None:
    """A header that says there is nothing to see lies."""
    with pytest.raises(ValueError, match="pixels"):
        size_of(png_of(width, height), "image/png")


def test_the_largest_dimensions_are_only_numbers() -> None:
    """Four thousand million pixels a side cost no memory."""
    most = (1 << 32) - 1
    assert size_of(png_of(most, most), "image/png") == (most, most)


@pytest.mark.parametrize(
    "hostile",
    [
        b"\xff\xd8" + b"\xff\xe1\0\2" * 5_000_000,
        b"\xff\xd8" + b"\xff" * 20_000_000,
        b"\xff\xd8" + b"\xff\xe1\0\0" * 1_000,
        b"\xff\xd8\xff\xe1\xff\xff",
        b"\xff\xd8\xff\xda" + bytes(1_000),
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8\xff\xd0rubbish",
    ],
    ids=["endless segments", "endless fill", "no length", "beyond the end", "no size", "at once",
         "no marker"],
)  # fmt: skip
def test_a_hostile_jpeg_ends_soon(hostile: bytes) -> None:
    """The work on a header is bounded, whatever it says."""
    with pytest.raises(ValueError, match="header"):
        size_of(hostile, "image/jpeg")


@pytest.mark.parametrize(
    "hostile",
    [
        box(b"ftyp", b"avif", bytes(4)) + box(b"free") * (MAX_SEGMENTS + 1),
        box(b"ftyp", b"avif", bytes(4)) + struct.pack(">I", 4) + b"meta" + bytes(90),
        box(b"ftyp", b"avif", bytes(4)) + struct.pack(">I4sQ", 1, b"meta", 1 << 63),
        box(b"ftyp", b"avif", bytes(4)) + struct.pack(">I4sQ", 1, b"meta", 3) + bytes(99),
        box(b"ftyp", b"avif", bytes(4)),
    ],
    ids=["many boxes", "short box", "huge box", "short large box", "no size"],
)
def test_a_hostile_avif_ends_soon(hostile: bytes) -> None:
    """Boxes without end, without length or beyond the file are said to be broken."""
    with pytest.raises(ValueError, match="header"):
        size_of(hostile, "image/avif")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"%PDF-1.7\n", "application/pdf"),
        (b"PK\x03\x04rest", "application/zip"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
        (b"<?xml version='1.0'?>\n<!-- made by hand -->\n<svg>", "image/svg+xml"),
        (b"<!doctype html><svg>", ""),
        (b"BMW and other makes", ""),
        (b"plain text", ""),
        (b"", ""),
    ],
)
def test_other_types(body: bytes, kind: str) -> None:
    """Documents are known by their first bytes; text is not taken for an image."""
    assert type_of(body) == kind
    assert size_of(body, kind) is None
