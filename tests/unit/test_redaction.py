"""Secrets in pages, links and records: hidden in every spelling, and nothing else is changed."""

import json
import time
from html import escape
from random import Random
from urllib.parse import quote, quote_plus

import msgspec
import pytest

from crawler.fetch import charset
from crawler.judge import decided
from crawler.models import LeftOut, Link, NamedFile, Page, Role, SeenListing
from crawler.scraping import redaction
from crawler.scraping.examine import ParsedPage
from crawler.scraping.file_links import FoundFiles
from crawler.scraping.follow import Followed
from crawler.scraping.redaction import Redactor, hide_in_parsed
from crawler.urls import parse

SECRET = "it's 5€ p@ss/wörd&<77>"


def page_of(body: bytes, content_type: str = "text/html", **given: object) -> Page:
    held: dict[str, object] = {
        "url": "http://a.example/", "final_url": "http://a.example/", "status": 200, "reason": "OK",
        "headers": (("Content-Type", content_type),), "body": body, "raw": body,
        "fetched_at": 0.0, "fetch_s": 0.0,
    }  # fmt: skip
    return msgspec.convert(held | given, Page)


def lower(text: str) -> str:
    """Percent-encoded with small digits, as some frameworks do it."""
    return "".join(quote(each, safe="").lower() if quote(each) != each else each for each in text)


SPELLINGS = {
    "raw": SECRET,
    "html": escape(SECRET),
    "decimal": "".join(f"&#{ord(each)};" for each in SECRET),
    "padded decimal": SECRET.replace("&", "&amp;").replace("'", "&#039;"),
    "hexadecimal": "".join(f"&#x{ord(each):X};" for each in SECRET),
    "without semicolons": SECRET.replace("'", "&#39").replace("ö", "&ouml"),
    "named": SECRET.replace("&", "&amp;").replace("'", "&apos;").replace("ö", "&ouml;"),
    "a space without a break": SECRET.replace("&", "&amp;").replace(" ", "&nbsp;"),
    "percent-encoded": quote(SECRET, safe=""),
    "form": quote_plus(SECRET),
    "encodeURIComponent": quote(SECRET, safe="!*'()"),
    "lower case": lower(SECRET),
    "partly percent-encoded": SECRET.replace(" ", "%20").replace("<", "%3C"),
    "every character percent-encoded": "".join(f"%{each:02X}" for each in SECRET.encode()),
    "Latin-1": quote(SECRET.replace("€", "%80"), safe="%", encoding="cp1252"),
    "escape()": SECRET.replace("ö", "%u00F6").replace("€", "%u20ac"),
    "JSON in ASCII": json.dumps(SECRET)[1:-1],
    "JSON of PHP": json.dumps(SECRET)[1:-1].replace("/", "\\/"),
    "JSON for HTML": json.dumps(SECRET)[1:-1].replace("<", "\\u003c").replace("'", "\\u0027"),
    "JavaScript": SECRET.replace("'", "\\'").replace("<", "\\x3c").replace("ö", "\\u{f6}"),
    "twice percent-encoded": quote(quote(SECRET, safe=""), safe=""),
    "URL in an attribute": escape(quote(SECRET, safe="!*'()&"), quote=True),
    "JSON in an attribute": escape(json.dumps(SECRET)[1:-1]),
    "HTML in JSON": json.dumps(escape(SECRET))[1:-1].replace("&", "\\u0026"),
    "mixed": "it&#39;s%205€+p@ss\\/w\\u00f6rd&amp;%3c77&gt;".replace("+", " "),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_a_secret_is_hidden_in_every_spelling(spelling: str, encoding: str) -> None:
    """Whatever the page's charset, and only the secret: what stands around it stays."""
    body = f"<p>é &amp; %41 {spelling}&lt; \\u0041</p>".encode(encoding)

    hidden = Redactor([SECRET]).page(page_of(body, f"text/html; charset={encoding}"))

    assert hidden.body.decode(encoding) == "<p>é &amp; %41 ***&lt; \\u0041</p>"
    assert hidden.raw == hidden.body


def test_a_secret_that_looks_like_an_escape() -> None:
    """It is found raw, and where the page has escaped its other characters only."""
    redactor = Redactor(["50%25 of&amp;'x"])
    for spelling in ("50%25 of&amp;'x", "50%2525%20of%26amp%3B'x", "50%25 of&amp;&#39;x"):
        assert redactor.text(f"a {spelling} b") == "a *** b"


@pytest.mark.parametrize(
    "secret", ["漢字漢字漢字漢字漢", "漢字漢字漢字漢字漢字", "пароль€€", "€€€€äö€x1", "ä b ö"]
)
@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_a_percent_encoded_secret_of_any_length(secret: str, encoding: str) -> None:
    """Whatever bytes stand before and after it; they stay."""
    spelled = quote(secret, safe="", encoding=encoding)
    for before, after in (("p=", ""), ("%ff", "%80"), ("%D0%96", "%D0%96"), ("%c3", "%e2%82")):
        body = f"{before}{spelled}{after}".encode()
        page = page_of(body, f"text/plain; charset={encoding}")
        assert Redactor([secret]).page(page).body == f"{before}***{after}".encode()


@pytest.mark.parametrize("name", charset.NAMES)
def test_no_other_byte_of_a_page_is_changed(name: str) -> None:
    """In no charset, and whatever the bytes are: also those that are no text in it."""
    chance, secret = Random(7), "swordfish"
    wrong = [b"\x1b$B-!\x1b(B", b"\x1b$B\x30", b"\x87\x90\xfa\x54\xa1\xfe\x8f\xa2\xb7", b""]
    coded = secret.encode(charset.codec(name))
    for tail in [*wrong, *(chance.randbytes(40) for _ in range(200))]:
        body = wrong[0] + wrong[2] + b"\x1b(B    " + coded + b"  " + tail

        hidden = Redactor([secret]).page(page_of(body), name).body

        assert hidden == body.replace(coded, "***".encode(charset.codec(name)))


@pytest.mark.parametrize("name", ["iso-2022-jp", "shift_jis", "big5", "euc-jp"])
def test_a_secret_that_only_its_charset_can_read(name: str) -> None:
    """Between other characters of a charset with states, partly escaped, or with a character that
    the charset does not have."""
    secret, codec = "漢字表示ソ€&1", charset.codec(name)
    raw = secret[:-3].encode(codec, "xmlcharrefreplace").decode(codec)
    for spelled in (f"{raw}&#8364;&amp;1", f"&#28450;{raw[1:]}&euro;&#38;1"):
        body = f"<p>文字{spelled}文字</p>".encode(codec)
        hidden = Redactor([secret]).page(page_of(body), name).body
        assert hidden == "<p>文字***文字</p>".encode(codec)


DIVIDED = [
    "<h1>sword fish <b>&amp; &lt;chips&gt;/äö</b></h1>",
    "<h1>sword<br/>fish\n   &amp;&nbsp; <!-- x -->&lt;chips&gt;/äö</h1>",
    '<td title="x">sword</td> <td>fish</td>\r\n<td>&amp;</td><td>%3cchips&gt;/äö',
]


@pytest.mark.parametrize("html", DIVIDED)
def test_a_secret_with_tags_between_its_words(html: str) -> None:
    """A parser makes one space of these, so that the page spells the secret."""
    page = page_of(f"<p>5 < 6</p>{html}<p>&lt;b&gt; more".encode())

    hidden = Redactor(["sword fish & <chips>/äö"]).page(page).body.decode()

    for word in ("sword", "fish", "chips"):
        assert word not in hidden
    assert hidden.startswith("<p>5 < 6</p>")
    assert hidden.endswith("<p>&lt;b&gt; more")


def test_numbers_between_tags_are_no_secret() -> None:
    """The links to the pages of a list do not spell 1234."""
    page = page_of("".join(f"<a href='?page={n}'>{n}</a>" for n in range(1, 9)).encode())
    assert Redactor(["1234"]).page(page) == page


def test_a_page_full_of_a_long_secret_takes_no_longer() -> None:
    """Each part of the page is compared a few times, not once for each place in the secret."""
    began = time.process_time()
    assert "a" * 10_000 not in Redactor(["a" * 10_000]).text("a" * 1_000_000)
    assert time.process_time() - began < 10


@pytest.mark.parametrize("encoding", ["windows-1251", "shift_jis", "gb18030"])
def test_a_secret_in_an_old_charset(encoding: str) -> None:
    """Raw and percent-encoded, and no other byte of the page is changed."""
    secret = "тайна-парола"
    spelled = [secret.encode(encoding), quote(secret, encoding=encoding).encode()]
    body = b"<p>%s</p><p>%s</p>\xff" % tuple(spelled)

    hidden = Redactor([secret]).page(page_of(body, f"text/html; charset={encoding}"))

    assert hidden.body == b"<p>***</p><p>***</p>\xff"


def test_a_page_in_another_charset_than_it_declares() -> None:
    """A site's file may know better than the header."""
    body = "<p>парола</p>".encode("cp1251")
    page = page_of(body, "text/html; charset=utf-8")
    assert Redactor(["парола"]).page(page, "windows-1251").body == b"<p>***</p>"
    utf8 = page_of("<p>парола</p>".encode(), "text/html; charset=windows-1251")
    assert Redactor(["парола"]).page(utf8).body == b"<p>***</p>"


def test_headers_and_url_are_searched_too() -> None:
    """Headers are text of Latin-1; the length and the coding of a changed body are gone."""
    headers = [
        ("X-Echo", SECRET.encode().decode("latin-1")),
        ("Location", f"/x?p={lower(SECRET)}"),
        ("Content-Length", "99"),
    ]
    url = f"http://a.example/?p={quote(SECRET, safe='@/')}&q=1"
    page = page_of(escape(SECRET).encode(), headers=headers, final_url=url, reason=f"no {SECRET}")

    hidden = Redactor([SECRET]).page(page)

    assert hidden.headers == (("X-Echo", "***"), ("Location", "/x?p=***"))
    assert (hidden.final_url, hidden.reason) == ("http://a.example/?p=***&q=1", "no ***")


def test_a_page_without_secrets_is_left_as_it_is() -> None:
    """Not one byte changes, even of what is no text; short secrets are parts of words."""
    page = page_of(bytes(range(256)) * 4 + b"&amp;%41\\u0041 abc")
    for redactor in (Redactor([SECRET]), Redactor(["abc"]), Redactor([])):
        assert redactor.page(page) == page
    assert Redactor(["abc"], shortest=1).text("say abc") == "say ***"


def test_a_job_without_secrets_decodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages cost nothing."""
    monkeypatch.setattr(redaction, "layers", None)
    page = page_of(b"&amp;" * 1_000)
    assert Redactor([]).page(page) is page
    assert not Redactor([]).shows("http://a.example/***")


def test_a_secret_at_the_edge_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large pages are searched in parts; wherever one ends, the secret is found."""
    monkeypatch.setattr(redaction, "WINDOW", 50)
    spelled = escape(quote(SECRET, safe=" '"))
    for place in range(120):
        text = f"{'&amp;' * 5}{'x' * place}{spelled}{'y' * 60} {spelled}"
        assert Redactor([SECRET]).text(text) == text.replace(spelled, "***")


def test_secrets_that_overlap() -> None:
    """All of them are hidden."""
    assert Redactor(["abcdef", "defghi"]).text("<abcdefghi abcdef>") == "<*** ***>"


def link(url: str) -> Link:
    return Link(address=parse(url), role=Role.INDEX, depth=1, loopback=False)


def test_what_was_found_on_a_page_shows_no_secret() -> None:
    """Neither record, links, files, listings nor messages; links with a secret are counted."""
    shown, good = "http://a.example/x?p=it%27s%20secret", "http://a.example/y"
    was_hidden = "http://a.example/z?p=***"
    record = {"text": "it's secret", "list": [{"it&#39;s secret": 12345678}], "ok": [1, None, True]}
    encoded = msgspec.json.encode(record)
    listing = SeenListing(key="it's secret", record=encoded, record_hash="", address=parse(shown))
    parsed = ParsedPage(
        verdict=decided("login_wall", "says it's secret"),
        record=record,
        encoded=encoded,
        followed=Followed(
            tuple(map(link, (shown, good, was_hidden))), (LeftOut("limit", 1, shown),)
        ),
        found=FoundFiles((NamedFile("a", link(shown)), NamedFile("b", link(good)))),
        invalid=("text: it's secret",),
        listings=(listing,),
    )

    hidden = hide_in_parsed(parsed, Redactor(["it's secret", "12345678"]))

    assert hidden.record == {"text": "***", "list": [{"***": None}], "ok": [1, None, True]}
    assert msgspec.json.decode(hidden.encoded) == hidden.record
    assert hidden.followed.links == (link(good),)
    example = "http://a.example/x?p=***"
    assert hidden.followed.left_out == (LeftOut("limit", 1, example), LeftOut("secret", 2, example))
    assert hidden.found.files == (NamedFile("b", link(good)),)
    assert hidden.found.left_out == (LeftOut("secret", 1, example),)
    assert (hidden.invalid, hidden.verdict.evidence) == (("text: ***",), ("says ***",))
    [seen] = hidden.listings
    assert (seen.key, seen.record, seen.address) == ("***", hidden.encoded, None)
    assert hide_in_parsed(hidden, Redactor(["another"])) == hidden
