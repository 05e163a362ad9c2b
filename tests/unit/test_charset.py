"""Charsets: what a browser would read is what is stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.fetch.charset import decode

RUSSIAN = "Кадастровый номер участка, площадь и владелец"
JAPANESE = "不動産の登記情報、所在地と面積、所有者の氏名"
HTML = "text/html"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\xef\xbb\xbfcaf\xc3\xa9", ("café", "utf-8")),
        ("\ufeffcafé".encode("utf-16-le"), ("café", "utf-16le")),
        ("\ufeffcafé".encode("utf-16-be"), ("café", "utf-16be")),
    ],
)
def test_a_byte_order_mark_wins_over_the_header(body: bytes, expected: tuple[str, str]) -> None:
    """A byte order mark decides, whatever the header says, and is no part of the text."""
    assert decode(body, "text/html; charset=iso-8859-5") == expected


def test_the_header_wins_over_meta() -> None:
    """Where header and page disagree, the header is right."""
    body = f'<meta charset="utf-8">{RUSSIAN}'.encode("cp1251")

    text, name = decode(body, "text/html; charset=windows-1251")

    assert text.endswith(RUSSIAN)
    assert name == "windows-1251"


@pytest.mark.parametrize(
    "meta",
    [
        '<meta charset="koi8-r">',
        "<META CHARSET=KOI8-R>",
        '<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">',
        '<?xml version="1.0" encoding="koi8-r"?>',
        "<!-- " + "x" * 3_000 + ' --><meta charset="koi8-r">',
    ],
)
def test_the_page_declares_its_charset(meta: str) -> None:
    """Without a charset in the header, the declaration near the beginning of the page counts."""
    text, name = decode((meta + RUSSIAN).encode("koi8-r"), HTML)

    assert text.endswith(RUSSIAN)
    assert name == "koi8-r"


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("latin-1", "windows-1252"),
        ("ISO-8859-1", "windows-1252"),
        ("us-ascii", "windows-1252"),
        ("iso-8859-9", "windows-1254"),
        ("gb2312", "gb18030"),
        ("GBK", "gb18030"),
        ("shift_jis", "shift_jis"),
        ("x-sjis", "shift_jis"),
        ("ks_c_5601-1987", "euc-kr"),
        ("big5", "big5"),
        ("utf-16", "utf-16le"),
        ('"UTF-8"', "utf-8"),
    ],
)
def test_labels_mean_what_they_mean_to_browsers(label: str, name: str) -> None:
    """Labels are read by the WHATWG standard, in which many old names mean a larger charset."""
    assert decode(b"", f"text/html; charset={label}")[1] == name


def test_the_larger_charset_is_used() -> None:
    """A page that says Latin-1 has typographic quotes, one that says GB2312 has rarer characters."""
    assert decode(b"\x93quoted\x94 \x80 5", "text/html; charset=iso-8859-1")[0] == "“quoted” € 5"
    assert decode("㐀镕".encode("gb18030"), "text/html; charset=gb2312")[0] == "㐀镕"


@pytest.mark.parametrize(
    "label", ["klingon", "utf-7", "base64", "rot13", "unicode_escape", "punycode", "idna", "undefined"]
)
def test_an_unknown_charset_falls_through(label: str) -> None:
    """A charset that is unknown, or a mere codec of Python's, leaves the decision to the next rule."""
    assert decode('<meta charset="utf-8">é'.encode(), f"text/html; charset={label}") == (
        '<meta charset="utf-8">é',
        "utf-8",
    )
    assert decode(f'<meta charset="{label}">é'.encode(), HTML) == (f'<meta charset="{label}">é', "utf-8")


def test_meta_cannot_mean_utf_16() -> None:
    """A declaration that could be read byte by byte does not stand in UTF-16: UTF-8 is meant."""
    body = '<meta charset="utf-16">é'.encode()

    assert decode(body, HTML) == ('<meta charset="utf-16">é', "utf-8")


def test_what_is_declared_wins_over_the_bytes() -> None:
    """Valid UTF-8 that is declared as something else is read as declared, as browsers do."""
    assert decode("é".encode(), "text/html; charset=windows-1252") == ("Ã©", "windows-1252")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", ("", "utf-8")),
        (b"plain", ("plain", "utf-8")),
        (JAPANESE.encode(), (JAPANESE, "utf-8")),
        (RUSSIAN.encode("cp1251"), (RUSSIAN, "windows-1251")),
        (JAPANESE.encode("cp932"), (JAPANESE, "shift_jis")),
        (JAPANESE.encode("euc_jp"), (JAPANESE, "euc-jp")),
    ],
)
def test_undeclared_charsets_are_detected(body: bytes, expected: tuple[str, str]) -> None:
    """Without any declaration, valid UTF-8 is UTF-8, and other bytes tell their charset."""
    assert decode(body, "") == expected


def test_the_last_resort_is_windows_1252() -> None:
    """Bytes that nothing explains are read as browsers of the West read them."""
    assert decode(b"\xff", "") == ("ÿ", "windows-1252")


def test_bytes_that_do_not_fit_are_replaced() -> None:
    """A byte that the charset does not have becomes U+FFFD, and the text around it stays."""
    assert decode(b"a\xffb", "text/html; charset=utf-8") == ("a\ufffdb", "utf-8")
    assert decode(b"a\x00b\x00c", "text/html; charset=utf-16le") == ("ab\ufffd", "utf-16le")


@given(
    st.binary(),
    st.text() | st.sampled_from(["big5", "iso-2022-jp", "euc-kr", "gb18030", "utf-16"]).map("charset={}".format),
)
def test_no_bytes_raise(body: bytes, content_type: str) -> None:
    """Any bytes under any header give text that can be stored as UTF-8."""
    text, name = decode(body, content_type)

    text.encode()
    assert name


@given(st.text(), st.sampled_from(["utf-8", "utf-16le", "gb18030"]))
def test_text_comes_back(text: str, name: str) -> None:
    """What was written in a charset that holds every character is read back unchanged."""
    body = text.encode(name)

    assert decode(body, f"text/html; charset={name}")[0].removeprefix("\ufeff") == text.removeprefix("\ufeff")
