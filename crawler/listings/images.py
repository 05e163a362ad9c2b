"""What images look like: hashes that survive another size and another compression."""

import io
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

MAX_PIXELS = 50_000_000
MAX_BYTES = 20_000_000
NEAR = 3
"""Hashes that differ in up to so many bits are of one image."""
_WIDTH, _HEIGHT = 9, 8
_MIN_CHANGES = 6
"""An image with fewer differences, such as a blank one, looks like too many others."""


@lru_cache(maxsize=1)
def _pillow() -> "ModuleType | None":
    try:
        from PIL import Image
    except ImportError:
        return None
    return Image


def can_look() -> bool:
    """Whether the extra `images` is installed."""
    return _pillow() is not None


def dhash(data: bytes, max_pixels: int = MAX_PIXELS) -> str | None:
    """Return the difference hash of an image as 16 hex digits.

    None if the bytes are no image, or one that is too large or looks like nothing.
    """
    pillow = _pillow()
    if pillow is None or len(data) > MAX_BYTES:
        return None
    try:
        with pillow.open(io.BytesIO(data)) as image:
            if image.width * image.height > max_pixels:
                return None
            image.draft("L", (_WIDTH * 8, _HEIGHT * 8))
            small = image.convert("L").resize((_WIDTH, _HEIGHT))
    except Exception:  # decoders fail in many ways on what a server sends
        return None
    pixels = small.tobytes()
    bits = [
        pixels[row * _WIDTH + column] > pixels[row * _WIDTH + column + 1]
        for row in range(_HEIGHT)
        for column in range(_WIDTH - 1)
    ]
    if not _MIN_CHANGES <= sum(bits) <= len(bits) - _MIN_CHANGES:
        return None
    return f"{sum(bit << at for at, bit in enumerate(bits)):016x}"
