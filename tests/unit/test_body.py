"""Bodies: every coding, every layer, and a limit that nothing gets around."""

import gzip
import random
import struct
import sys
import zlib
from collections.abc import Callable

import brotli
import pytest

from crawler.errors import FetchError, OwnShortage
from crawler.fetch.body import MAX_PIECES, Body
from crawler.fetch.budget import Budget, Memory

if sys.version_info >= (3, 14):
    from compression.zstd import CompressionParameter, ZstdCompressor
    from compression.zstd import compress as zstd_compress
else:
    from backports.zstd import CompressionParameter, ZstdCompressor
    from backports.zstd import compress as zstd_compress

PAGE = b"<p>hello</p>" * 1000


def read(encoding: str, data: bytes, limit: int = 1_000_000, step: int = 100) -> bytes:
    """What comes out when the data arrives in small pieces."""
    body = Body(encoding, limit)
    for begin in range(0, len(data), step):
        body.feed(data[begin : begin + step])
    return body.finish()[1]


def endless_name(size: int) -> bytes:
    """A gzip header whose file name does not end: a decoder takes it in and puts nothing out."""
    return struct.pack("<4BI2B", 0x1F, 0x8B, 8, 8, 0, 0, 255) + b"x" * size


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("", PAGE),
        ("identity", PAGE),
        ("gzip", gzip.compress(PAGE)),
        ("x-gzip", gzip.compress(PAGE)),
        ("gzip", gzip.compress(PAGE[:6000]) + gzip.compress(PAGE[6000:])),
        ("gzip", gzip.compress(PAGE) + b"\0\0padding"),
        ("deflate", zlib.compress(PAGE)),
        ("deflate", zlib.compress(PAGE)[2:-4]),
        ("br", brotli.compress(PAGE)),
        (" GZIP , br", brotli.compress(gzip.compress(PAGE))),
        ("none", PAGE),
        ("gzip, identity, ,", gzip.compress(PAGE)),
        ("UTF-8", PAGE),
        ("gzip, sugar", PAGE),
    ],
)
def test_codings_are_undone(encoding: str, data: bytes) -> None:
    """Whatever the coding and however small the pieces, the page comes out."""
    assert read(encoding, data) == PAGE
    assert read(encoding, data, step=1) == PAGE


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", lambda data: zlib.compress(data, wbits=-15)),
    "br": ("br", lambda data: brotli.compress(data, quality=4)),
    "zstd": ("zstd", zstd_compress),
    "raw deflate, gzip": (
        "deflate, gzip",
        lambda data: gzip.compress(zlib.compress(data, wbits=-15)),
    ),
}


@pytest.mark.parametrize("how", PACKERS)
def test_whatever_the_library_packs_comes_out_whole(how: str) -> None:
    """Bodies of every kind whose length is near a multiple of what a decoder puts out at a time."""
    coding, pack = PACKERS[how]
    chance = random.Random(14)
    kinds = (b" ", b"<tr><td>Parcel</td><td>Owner</td></tr>\n", chance.randbytes(997))
    lengths = [n * 65_536 + more for n in (1, 2, 5) for more in (-1, 0, 1, 7, 60, 259, 300, 514)]
    lengths += [chance.randrange(400_000) for _ in range(20)]
    for kind in kinds:
        for length in lengths:
            page = (kind * (length // len(kind) + 1))[:length]
            assert read(coding, pack(page), step=chance.choice((100, 9_999, 1 << 20))) == page


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("step", [999, 65_536, 10_000_000])
def test_a_page_whose_end_unpacks_to_much_is_whole(coding: str, step: int) -> None:
    """The last bytes of a coded body may stand for more than a decoder puts out at a time."""
    page = random.Random(1).randbytes(100_000) + b" " * 900_000
    pack = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "br": brotli.compress,
        "zstd": zstd_compress,
    }[coding]
    assert read(coding, pack(page), step=step) == page


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "br"])
def test_a_bomb_is_stopped_at_the_limit(encoding: str) -> None:
    """A page that grows beyond the limit is refused for good."""
    data = bytes(50_000_000)
    packed = brotli.compress(data, quality=1) if encoding == "br" else gzip.compress(data)
    packed = gzip.compress(packed) if "," in encoding else packed
    with pytest.raises(FetchError) as caught:
        read(encoding, packed)
    assert caught.value.reason == "too_large"


def test_a_layer_that_swallows_everything_is_stopped_too() -> None:
    """What lies between two layers counts like what comes out: nothing is decoded for ever."""
    data = gzip.compress(gzip.compress(endless_name(60_000_000)))
    with pytest.raises(FetchError) as caught:
        read("gzip, gzip, gzip", data)
    assert caught.value.reason == "too_large"


@pytest.mark.parametrize(
    ("encoding", "data", "reason"),
    [
        ("gzip", PAGE, "bad_encoding"),
        ("br", b"\xff" * 100, "bad_encoding"),
        ("gzip", gzip.compress(PAGE)[:50], "truncated"),
        ("br", brotli.compress(PAGE)[:10], "truncated"),
        ("compress", gzip.compress(PAGE), "unknown_encoding"),
        ("gzip, compress", gzip.compress(PAGE), "unknown_encoding"),
        ("gzip, gzip, gzip, gzip, gzip", PAGE, "unknown_encoding"),
    ],
)
def test_broken_codings_are_named(encoding: str, data: bytes, reason: str) -> None:
    """A body that is not what it says, or ends too soon, is an error with its own reason."""
    with pytest.raises(FetchError) as caught:
        read(encoding, data)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("", PAGE),
        ("gzip", gzip.compress(PAGE)),
        ("br", brotli.compress(PAGE)),
        ("gzip, gzip", gzip.compress(gzip.compress(PAGE))),
    ],
)
def test_a_body_can_be_cut(encoding: str, data: bytes) -> None:
    """Where the beginning will do, exactly so much of it is there, and nothing more is wanted."""
    body = Body(encoding, 5000, cut=True)
    fed = 0
    while not body.full and fed < len(data):
        body.feed(data[fed : fed + 10])
        fed += 10
    raw, decoded = body.finish()

    assert body.full
    assert decoded == PAGE[:5000]
    assert data.startswith(raw)


def test_a_small_body_is_not_cut() -> None:
    """What fits is whole, and still truncated where its coding breaks off."""
    body = Body("gzip", 20_000, cut=True)
    body.feed(gzip.compress(PAGE))
    assert body.finish()[1] == PAGE
    assert not body.full

    body = Body("gzip", 20_000, cut=True)
    body.feed(gzip.compress(PAGE)[:30])
    with pytest.raises(FetchError) as caught:
        body.finish()
    assert caught.value.reason == "truncated"


EMPTY_ZSTD = bytes.fromhex("28b52ffd2000010000")
"""A frame with nothing in it."""
SKIPPED_ZSTD = struct.pack("<II", 0x184D2A50, 0)
PIECES = {"gzip": gzip.compress(b""), "zstd": EMPTY_ZSTD, "zstd skipped": SKIPPED_ZSTD}
WRAPPED = {
    "": lambda data: data,
    "gzip": gzip.compress,
    "br": brotli.compress,
    "deflate": zlib.compress,
}


@pytest.mark.parametrize("outer", WRAPPED)
@pytest.mark.parametrize("kind", PIECES)
def test_a_body_of_countless_empty_pieces_is_refused(kind: str, outer: str) -> None:
    """A million empty frames take a few kilobytes on the wire: in whatever layer, so many pieces
    are enough."""
    coding = f"{kind.split(maxsplit=1)[0]}, {outer}".rstrip(", ")
    data = WRAPPED[outer](PIECES[kind] * (MAX_PIECES + 100))
    with pytest.raises(FetchError) as caught:
        read(coding, data, step=100_000)
    assert caught.value.reason == "too_large"
    assert "pieces" in caught.value.message


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_decoding_is_looked_at_inside_the_loop(coding: str) -> None:
    """Whatever the coding, a single piece that is fed can cost too much."""
    packed = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "br": lambda data: brotli.compress(data, quality=1),
        "zstd": zstd_compress,
    }[coding](bytes(50_000_000))
    now = iter(range(1_000_000))
    body = Body(coding, 100_000_000, budget=Budget(3.0, clock=lambda: float(next(now))))
    with pytest.raises(FetchError) as caught:
        body.feed(packed)
    assert caught.value.reason == "too_costly"


@pytest.mark.parametrize(("coding", "packed"), [("gzip", gzip.compress(PAGE)), ("", PAGE)])
def test_a_body_counts_as_what_it_takes(coding: str, packed: bytes) -> None:
    """As received and as decoded, once where both are the same; a page beyond the process's share
    gives way."""
    memory = Memory()
    other = Budget(memory=memory)
    other.hold(1000)
    body = Body(coding, 1_000_000, budget=Budget(memory=memory))
    body.feed(packed)
    assert body.finish()[1] == PAGE
    assert memory.used == 1000 + len(packed) + (len(PAGE) if coding else 0)

    other.hold(memory.most - memory.used)
    with pytest.raises(OwnShortage):
        Body(coding, 1_000_000, budget=Budget(memory=memory)).feed(packed)


@pytest.mark.parametrize(
    ("coding", "window"),
    [("br", 5_000_000), ("zstd", 5_000_000), ("gzip", 1 << 15), ("zstd, br", 10_000_000)],
)
def test_what_decoders_keep_counts_while_they_work(coding: str, window: int) -> None:
    """A window is as large as what was put out, up to what the coding allows; at the end it is free
    again."""
    pack = {
        "br": lambda raw: brotli.compress(raw, quality=1),
        "zstd": zstd_compress,
        "gzip": gzip.compress,
    }
    packed = random.Random(1).randbytes(5_000_000)
    for name in coding.split(", "):
        packed = pack[name](packed)
    memory = Memory()
    body = Body(coding, 10_000_000, budget=Budget(memory=memory))

    body.feed(packed)
    kept = memory.used - len(packed) - 5_000_000
    assert kept == pytest.approx(window, rel=0.01)
    body.finish()
    assert memory.used == len(packed) + 5_000_000


def test_a_window_beyond_the_standard_is_refused() -> None:
    """No page can make a decoder keep more than eight megabytes of it (RFC 9659)."""
    packer = ZstdCompressor(options={CompressionParameter.window_log: 24})
    wide = packer.compress(PAGE) + packer.flush()
    with pytest.raises(FetchError) as caught:
        read("zstd", wide, step=100_000)
    assert caught.value.reason == "bad_encoding"
