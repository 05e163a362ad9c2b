"""Charsets: what a browser would read is what is stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.fetch.charset import decode, utf8

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
    """A page that says Latin-1 has typographic quotes, one that says GB2312 has rarer
    characters."""
    assert decode(b"\x93quoted\x94 \x80 5", "text/html; charset=iso-8859-1")[0] == "“quoted” € 5"
    assert decode("㐀镕".encode("gb18030"), "text/html; charset=gb2312")[0] == "㐀镕"


@pytest.mark.parametrize(
    "label",
    ["klingon", "utf-7", "base64", "rot13", "unicode_escape", "punycode", "idna", "undefined"],
)
def test_an_unknown_charset_falls_through(label: str) -> None:
    """A charset that is unknown, or a mere codec of Python's, leaves the decision to the next
    rule."""
    assert decode('<meta charset="utf-8">é'.encode(), f"text/html; charset={label}") == (
        '<meta charset="utf-8">é',
        "utf-8",
    )
    assert decode(f'<meta charset="{label}">é'.encode(), HTML) == (
        f'<meta charset="{label}">é',
        "utf-8",
    )


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


# Declarations that the bytes refute.

PAGE = (
    "<html><head><meta charset={}><title>Имоти</title></head><body>"
    + "<p>Цена: 85 000 лв., площ 120 м²</p>" * 50
)
WESTERN = "<meta charset={}><p>Größe, coût, señal: 1 234 €</p>"


@pytest.mark.parametrize(
    "declared",
    [
        "windows-1251",
        "iso-8859-5",
        "koi8-r",
        "windows-1252",
        "iso-8859-1",
        "macintosh",
        "shift_jis",
        "gbk",
    ],
)
@pytest.mark.parametrize("begins", ["", '<?xml version="1.0" encoding="windows-1251"?>'])
def test_utf8_wins_over_what_a_page_declares(declared: str, begins: str) -> None:
    """Bytes that are UTF-8 are read as UTF-8, whatever charset the template was copied with."""
    text = begins + PAGE.format(declared) + "不動産"

    assert decode(text.encode(), HTML) == (text, "utf-8")
    assert utf8(text.encode(), HTML) == text.encode()


def test_one_character_is_enough_for_a_charset_of_one_byte() -> None:
    """A page with a single é is UTF-8, not windows-1252 with é."""
    assert decode("<meta charset=iso-8859-1>café".encode(), HTML)[0].endswith(">café")


@pytest.mark.parametrize("declared", ["windows-1251", "utf-8", ""])
def test_a_page_that_is_not_utf8_is_read_in_its_charset(declared: str) -> None:
    """Windows-1251 is read as that, whether the page says so, claims to be UTF-8 or says
    nothing."""
    text = PAGE.format(declared).replace("²", "")

    assert decode(text.encode("cp1251"), HTML) == (text, "windows-1251")
    assert utf8(text.encode("cp1251"), HTML).decode() == text


def test_a_western_page_that_claims_to_be_utf8_is_read_in_its_charset() -> None:
    """Many bytes beyond ASCII of which none is UTF-8 belie the declaration."""
    text = WESTERN.format("utf-8") * 20

    assert decode(text.encode("cp1252"), HTML) == (text, "windows-1252")


@pytest.mark.parametrize("declared", ["windows-1251", "utf-8", "gbk", ""])
@pytest.mark.parametrize("missing", [1, 2])
def test_a_page_may_end_within_a_character(declared: str, missing: int) -> None:
    """UTF-8 that was cut is UTF-8 up to there."""
    text = PAGE.format(declared) + "不"
    body = text.encode()[:-missing]

    assert decode(body, HTML) == (text[:-1] + "\ufffd", "utf-8")
    assert utf8(body, HTML).decode() == text[:-1] + "\ufffd"


def test_an_incomplete_character_alone_is_no_utf8() -> None:
    """A page of the West may end in é; without another character beyond ASCII that says nothing
    about UTF-8."""
    assert decode(b"<meta charset=iso-8859-1>caf\xe9", HTML) == (
        "<meta charset=iso-8859-1>café",
        "windows-1252",
    )


@pytest.mark.parametrize("declared", ["windows-1251", "utf-8", "shift_jis"])
def test_plain_ascii_keeps_its_declaration(declared: str) -> None:
    """Where all charsets agree, there is nothing to refute."""
    text = f"<meta charset={declared}>plain"

    assert decode(text.encode(), HTML) == (text, declared)


@pytest.mark.parametrize("size", [100, 1024, 300_000])
def test_all_of_a_page_must_be_utf8(size: int) -> None:
    """A beginning in UTF-8 does not make the rest so."""
    begin = "<meta charset=windows-1251><p>" + "ж" * (size // 2)
    body = begin.encode() + "Кадастровый номер участка ".encode("cp1251") * size

    text, name = decode(body, HTML)

    assert name == "windows-1251"
    assert text.endswith("Кадастровый номер участка ")


@pytest.mark.parametrize("broken", [b"\xff", b"\xd0", "é".encode("cp1252") * 3])
def test_some_broken_characters_leave_a_page_utf8(broken: bytes) -> None:
    """A page that declares UTF-8 and mostly is, or has too few bytes beyond ASCII to tell, is not
    guessed at."""
    for text in (PAGE.format("utf-8"), "<meta charset=utf-8>few"):
        found, name = decode(text.encode() + broken + b" end", HTML)

        assert name == "utf-8"
        assert found.startswith(text + "\ufffd")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ﾃｽﾄ", "shift_jis"),
        ("ﾃｽ", "shift_jis"),
        ("目录", "gb18030"),
        ("模块", "gb18030"),
        ("東京", "euc-jp"),
        ("서울", "euc-kr"),
    ],
)
def test_a_word_in_a_charset_of_two_bytes_is_not_taken_for_utf8(text: str, name: str) -> None:
    """What looks like a few two-byte characters of UTF-8 by accident is read as declared."""
    codec = {"shift_jis": "cp932", "euc-kr": "cp949"}.get(name, name)
    page = f"<meta charset={name}>{text}"

    assert decode(page.encode(codec), HTML) == (page, name)


def test_the_header_is_believed_against_the_bytes() -> None:
    """The header is the server's word, and browsers follow it too."""
    body = PAGE.format("utf-8").encode()

    assert decode(body, "text/html; charset=windows-1251")[1] == "windows-1251"
    assert (
        decode(
            PAGE.format("windows-1251").replace("²", "").encode("cp1251"),
            "text/html; charset=utf-8",
        )[1]
        == "utf-8"
    )


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_what_the_site_says_wins_over_everything(mark: bytes) -> None:
    """An encoding that was given is used, against mark, header, meta and bytes."""
    body = mark + b"<meta charset=utf-8>" + RUSSIAN.encode("cp1251")

    text, name = decode(body, "text/html; charset=utf-8", "windows-1251")

    assert (text[-len(RUSSIAN) :], name) == (RUSSIAN, "windows-1251")
    assert utf8(body, "text/html; charset=utf-8", encoding="windows-1251").decode() == text


def test_a_mark_of_the_given_charset_is_no_text() -> None:
    """The mark is removed where it is that of the encoding."""
    assert decode("\ufeffé".encode(), "text/html; charset=koi8-r", "utf-8") == ("é", "utf-8")


@given(st.text(), st.sampled_from(["windows-1251", "iso-8859-1", "utf-8", ""]), st.integers(0, 3))
def test_both_ways_to_decode_agree(text: str, declared: str, cut: int) -> None:
    """A page's text is the same whether it is decoded whole or in pieces."""
    body = f"<meta charset={declared}>{text}".encode()
    body = body[: len(body) - cut]

    assert utf8(body, HTML).decode() == decode(body, HTML)[0]


@given(
    st.binary(),
    st.text()
    | st.sampled_from(["big5", "iso-2022-jp", "euc-kr", "gb18030", "utf-16"]).map(
        "charset={}".format
    ),
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

    assert decode(body, f"text/html; charset={name}")[0].removeprefix(
        "\ufeff"
    ) == text.removeprefix("\ufeff")
