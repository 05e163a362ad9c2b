"""URLs: what may be fetched, what is the same page, what a limit applies to."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler import urls
from crawler.errors import UrlError


@pytest.mark.parametrize(
    ("text", "url", "domain"),
    [
        (" HTTP://Example.COM:80/a/../b ", "http://example.com/b", "example.com"),
        ("https://a.b.co.uk/?q=1#frag", "https://a.b.co.uk/?q=1", "b.co.uk"),
        ("http://127.1:8080/x", "http://127.0.0.1:8080/x", "127.0.0.1"),
        ("http://[::1]:8080/", "http://[::1]:8080/", "::1"),
        ("http://бг.example/п", "http://xn--90ae.example/%D0%BF", "xn--90ae.example"),
        ("http://localhost/", "http://localhost/", "localhost"),
        ("http:\\\\example.com\\x", "http://example.com/x", "example.com"),
        ("http://user:geheim@example.com/a@b", "http://example.com/a@b", "example.com"),
        ("https://user@[::1]:8080?q=@", "https://[::1]:8080/?q=@", "::1"),
    ],
)
def test_urls_are_read_as_a_browser_reads_them(text: str, url: str, domain: str) -> None:
    """What is stored is what is dialled."""
    address = urls.parse(text)
    assert (address.url, address.domain) == (url, domain)


@given(st.text("aZ09_-/.?=&%# ~\\\t;:@é", max_size=12))
def test_a_link_is_read_as_any_url(path: str) -> None:
    """The short way for plain paths makes no difference."""
    origin = "https://a.example:8443"
    text = f"{origin}/{path}"

    assert urls.parse_link(text, origin) == urls.parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("example.com/x", "lack http://"),
        ("ftp://example.com/", "only http and https"),
        ("javascript:alert(1)", "only http and https"),
        ("file:///etc/passwd", "only http and https"),
        ("http://", "not a URL"),
        ("http://user:geheim@exa mple.com/", "not a URL"),
        ("ftp://user:geheim@example.com/", "only http and https"),
        ("http://user:geheim@example.com:0/", "port 0"),
        ("http://exa mple.com/", "not a URL"),
        ("http://example.com:99999/", "not a URL"),
        ("http://example.com:0/", "port 0"),
        ("http://example.com/" + "x" * 9000, "characters"),
    ],
)
def test_what_is_no_fetchable_url_is_refused_with_a_reason(text: str, reason: str) -> None:
    """The reason fits in one line and shows no password."""
    with pytest.raises(UrlError) as caught:
        urls.parse(text)
    assert reason in str(caught.value)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    "before",
    [
        "http://",
        "HTTPS:",
        "//",
        "\\/",
        " \x01http:\\\\",
        "ht\ntp:/\t/",
        "/\n/",
        "//user:geheim@",
        "http:///",
        "foo:",
    ],
)
def test_an_endless_host_is_refused_however_it_is_spelled(before: str) -> None:
    """No parser sees a host of more than 255 characters."""
    with pytest.raises(UrlError, match="the host has more than 255 characters"):
        urls.check_host(before + "漢" * 256 + "/path")


@pytest.mark.parametrize(
    "text", ["x" * 300, "/" + "x" * 300, "?" + "//" * 300, f"//{'u' * 300}@{'a' * 255}/{'x' * 300}"]
)
def test_long_paths_and_passwords_are_no_endless_hosts(text: str) -> None:
    """Only the host's length counts."""
    urls.check_host(text)


def test_a_url_with_an_endless_host_is_refused() -> None:
    """Wherever it comes from."""
    with pytest.raises(UrlError, match="the host has more than 255 characters"):
        urls.parse(f"http://{'a.' * 128}example/")


@pytest.mark.parametrize(
    ("url", "is_same"),
    [
        ("http://a.example/x?a=1&b=2#top", True),
        ("http://A.example:80/x?a=1&utm_source=n&b=2&fbclid=z", True),
        ("http://a.example/x?UTM_Campaign=n&a=1&b=2&utm_source_platform=", True),
        ("http://a.example/x?a=1&b=3", False),
        ("https://a.example/x?a=1&b=2", False),
        ("http://a.example/X?a=1&b=2", False),
        ("http://a.example/x?a=1&b=2&utm_x=501000", False),
        ("http://a.example/x?a=1&b=2&utm_zone=33", False),
        ("http://a.example/x?a=1&b=2&utm=1", False),
        ("http://a.example/x?a=1&b=2&b=1", False),
    ],
)
def test_the_same_page_has_the_same_key(url: str, is_same: bool) -> None:
    """Fragment, order of parameters and known tracking parameters do not make another page;
    anything else does."""
    assert (urls.parse(url).key == urls.parse("http://a.example/x?b=2&a=1").key) == is_same


def test_the_order_of_the_values_of_one_parameter_makes_another_page() -> None:
    """What stands first may count, as in a list of columns to sort by."""
    assert (
        urls.parse("http://a.example/?s=1&s=2").key != urls.parse("http://a.example/?s=2&s=1").key
    )
    assert (
        urls.parse("http://a.example/?s=1&t=0&s=2").key
        == urls.parse("http://a.example/?t=0&s=1&s=2").key
    )


@given(st.text(max_size=300))
def test_no_text_breaks_the_parser(text: str) -> None:
    """Whatever is given, there is an address that reads to itself, or a `UrlError`."""
    for given_text in (text, "http://" + text, "http://a.example/" + text):
        try:
            address = urls.parse(given_text)
        except UrlError:
            continue
        assert urls.parse(address.url) == address


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("http://user:geheim@Example.com/x", ("http://example.com", "user:geheim")),
        (
            " https://user:p%40ss%3A%D1%8F@example.com:8443/ ",
            ("https://example.com:8443", "user:p@ss:я"),
        ),
        ("https://user@example.com:443/", ("https://example.com", "user:")),
        ("http://:geheim@example.com/", ("http://example.com", ":geheim")),
        ("http://a:b@c:d@example.com/", ("http://example.com", "a:b@c:d")),
        ("http://user:geheim@[::1]:80/", ("http://[::1]", "user:geheim")),
        ("http://@example.com/", None),
        ("http://example.com/user:geheim@b", None),
        ("ftp://user:geheim@example.com/", None),
        ("user:geheim@example.com", None),
        ("http://user:geheim@exa mple.com/", None),
        ("", None),
    ],
)
def test_credentials_move_out_of_urls(text: str, found: tuple[str, str] | None) -> None:
    """User name and password are found with the origin they are for, and the address has none of
    them."""
    assert urls.credentials(text) == found
    if found:
        address = urls.parse(text)
        assert "geheim" not in address.url
        assert address.url.startswith(f"{found[0]}/")
        assert address.key == urls.parse(address.url).key


def test_credentials_are_taken_out_of_messages() -> None:
    """What is shown to people has no password in it."""
    assert urls.without_credentials("redis://:secret@127.0.0.1:1/0") == "redis://***@127.0.0.1:1/0"
    assert urls.without_credentials("http://a.example/x@y") == "http://a.example/x@y"


@pytest.mark.parametrize(
    "host", ["a." * 4_000 + "example", "a." * 128, "x" * 256, "漢." * 60, "漢" * 250]
)
def test_hosts_that_no_name_server_can_know_are_refused(host: str) -> None:
    """Also where only the ASCII form of an international name is too long; the longest names are no
    such hosts."""
    with pytest.raises(UrlError, match="the host has more than 255 characters"):
        urls.parse(f"http://{host}/")
    longest = "a." * 122 + "a.example"
    assert len(longest) == 253
    assert urls.parse(f"http://{longest}/").domain == "a.example"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("https://u:p@h.example/x", "https://h.example/x"),
        ("https://TOKEN@h.example/", "https://h.example/"),
        ("see http://u:p@h/ and ftp://a:b@c", "see http://h/ and ftp://c"),
        ("http:u:p@h", "http:h"),
        ("http:/u:p@h", "http:/h"),
        ("HTTPS:\\\\u:p@h", "HTTPS:\\\\h"),
        ("//u:p@h/x", "//h/x"),
        ("http://u:p@x@h/", "http://h/"),
        ("http://u:pa ss@h/", "http://h/"),
        ("http://u:p\t@h/", "http://h/"),
        ("https://u:pa/ss@h/x", "https://h/x"),
        ('<a href="http://u:p@h/">', '<a href="http://h/">'),
        ("a=http://u:p@h;b=http://v:q@i", "a=http://h;b=http://i"),
        ("https://a.example/?next=http://u:p@h/x", "https://a.example/?next=http://h/x"),
        ("see http://u:p'x@h/ now", "see http://h/ now"),
        ('see http://u:p"x@h/ now', "see http://h/ now"),
        ("see http://u:p<x?y@h/ now", "see http://h/ now"),
        ("http://u:p x@h/ http://v:q y@i/", "http://h/ http://i/"),
        ("http://a/?next=http%3A%2F%2Fu:p@h%2F", "http://a/?next=http%3A%2F%2Fh%2F"),
        ("http%3a%2f%2fu%3ap%40h%2f", "http%3a%2f%2fh%2f"),
        ("http%253A%252F%252Fu%253Ap%2540h", "http%253A%252F%252Fh"),
        ("see http://u:p＠h/", "see http://h/"),
    ],
)
def test_no_user_name_or_password_stays_in_a_text(text: str, left: str) -> None:
    """However a URL is written and wherever it stands, also deep in a value."""
    assert urls.without_secrets(text) == left
    assert urls.without_secrets({"a": [1, None, {"b": text}]}) == {"a": [1, None, {"b": left}]}


def test_names_of_columns_and_keys_are_texts_too() -> None:
    """Two that are the same without their passwords both stay."""
    value = {"link http://u:p@h/": 1, "http://u:p@h/": {"http://v:q@i/": 2}, "http://v:q@h/": 3}
    assert urls.without_secrets(value) == {
        "link http://h/": 1,
        "http://h/": {"http://i/": 2},
        "http://h/ 2": 3,
    }


@pytest.mark.parametrize(
    "text",
    [
        "https://medium.example/@user",
        "see http://a.example:8080, or me@a.example",
        "see http://a.example:80 for me@a.example",
        "see http://a.example: mail me@a.example",
        "https://maps.example/maps/@42.1,23.3,15z",
        "https://a.example/b//c@d",
        "https://a.example/?mail=b@c.example#d@e",
        "mail me@a.example or mailto:me@a.example",
        "http://a.example, me@a.example",
        "http://a.example/x is mine, mail me@a.example",
        "@", "//", "http://", "12 / 4 @ 3",
    ],
)  # fmt: skip
def test_other_texts_stay_as_they_are(text: str) -> None:
    """An `@` that ends no user name is nothing to hide."""
    assert urls.without_secrets(text) == text


@pytest.mark.parametrize(
    "piece", ["http:", "http://", "/", "@", "a:", "http://u:p@h ", "http://a@"]
)
def test_large_texts_take_time_in_proportion(piece: str) -> None:
    """Ten times the text takes some ten times the time, not a hundred."""

    def seconds(size: int) -> float:
        text = piece * (size // len(piece)) + "@"
        began = time.process_time()
        urls.without_secrets(text)
        return time.process_time() - began

    small = max(min(seconds(50_000) for _ in range(3)), 0.002)
    assert min(seconds(500_000) for _ in range(3)) < 40 * small
