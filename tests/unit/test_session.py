"""Sessions: what a job sends along goes where it should, nowhere else, and into no text."""

import asyncio
import base64
import json
import re
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from crawler.cli.options import session_options
from crawler.config import Settings
from crawler.errors import FetchError, InputError, StoreError, UsageError
from crawler.fetch import session
from crawler.fetch.egress import Egress, Proxies, Proxy, parse_proxy
from crawler.fetch.http import Client, Request
from crawler.fetch.session import Cookie, Jars, LiveSession, Session, Sessions
from crawler.files import session_path
from tests.support import tls
from tests.support.serving import serving
from tests.support.site import Site

NOW = 1_800_000_000.0
SECRETS = Session(
    headers=(("Authorization", "Bearer geheim-1"), ("X-Key", "geheim-2"), ("Accept", "text/plain")),
    user_agent="geheim-3",
    proxy=parse_proxy("http://user:geheim-4@127.0.0.1:3128"),
    cookies=(Cookie(name="sid", value="geheim-5", domain="a.example", given=True),),
    credentials={"https://a.example": "user:geheim-6"},
)


def jar(*given: Cookie, now: list[float] | None = None) -> Jars:
    """The cookies of a job, at a time of the test's own."""
    moment = now or [NOW]
    return Jars(given, clock=lambda: moment[0], uptime=lambda: moment[0])


def take(kept: Jars, url: str, *headers: str) -> None:
    """Let a host set cookies."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    kept.take(scheme, host, slash + path or "/", headers)


def sent(kept: Jars, url: str) -> str:
    """The Cookie header for a URL."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return kept.header(scheme, host, slash + path or "/")


# Cookies


@pytest.mark.parametrize(
    ("origin", "header", "where", "expected"),
    [
        ("https://a.example/x/y", "a=1", "https://a.example/x/z", "a=1"),
        ("https://a.example/x/y", "a=1", "https://a.example/z", ""),
        ("https://a.example/x/y", "a=1; Path=/", "https://a.example/z", "a=1"),
        ("https://a.example/", "a=1; Path=/x", "https://a.example/x/y", "a=1"),
        ("https://a.example/", "a=1; Path=/x", "https://a.example/xy", ""),
        ("https://a.example/", "a=1; Path=x", "https://a.example/y", "a=1"),
        ("https://a.example/", "a=1", "https://b.a.example/", ""),
        ("https://a.example/", "a=1; Domain=a.example", "https://b.a.example/", "a=1"),
        ("https://b.a.example/", "a=1; Domain=.a.example", "https://a.example/", "a=1"),
        ("https://b.a.example/", "a=1; domain=A.EXAMPLE", "https://c.a.example/", "a=1"),
        ("https://a.example/", "a=1; Domain=b.a.example", "https://b.a.example/", ""),
        ("https://a.example/", "a=1; Domain=other.example", "https://other.example/", ""),
        ("https://a.example/", "a=1; Domain=le", "https://a.example/", ""),
        ("https://a.co.uk/", "a=1; Domain=co.uk", "https://a.co.uk/", ""),
        ("https://a.github.io/", "a=1; Domain=github.io", "https://b.github.io/", ""),
        ("https://a.example/", "a=1; Domain=", "https://a.example/", "a=1"),
        ("https://127.0.0.1/", "a=1; Domain=127.0.0.1", "https://127.0.0.1/", "a=1"),
        ("https://127.0.0.1/", "a=1; Domain=0.0.1", "https://127.0.0.1/", ""),
        ("https://a.example/", "a=1; Secure", "https://a.example/", "a=1"),
        ("https://a.example/", "a=1; Secure", "http://a.example/", ""),
        ("http://a.example/", "a=1; Secure", "https://a.example/", ""),
        ("http://a.example/", "a=1", "https://a.example/", "a=1"),
        (
            "https://a.example/",
            "a=1; HttpOnly; SameSite=Strict; Priority=High",
            "https://a.example/",
            "a=1",
        ),
        ("https://a.example/", "a=1; Max-Age=10", "https://a.example/", "a=1"),
        ("https://a.example/", "a=1; Max-Age=0", "https://a.example/", ""),
        ("https://a.example/", "a=1; Max-Age=-1", "https://a.example/", ""),
        ("https://a.example/", "a=1; Max-Age=99999999999999999999", "https://a.example/", "a=1"),
        ("https://a.example/", "a=1; Max-Age=soon", "https://a.example/", "a=1"),
        (
            "https://a.example/",
            "a=1; Expires=Wed, 09 Jun 2021 10:18:14 GMT",
            "https://a.example/",
            "",
        ),
        (
            "https://a.example/",
            "a=1; Expires=Wed, 09-Jun-2021 10:18:14 GMT",
            "https://a.example/",
            "",
        ),
        (
            "https://a.example/",
            "a=1; Expires=Wed, 09 Jun 2099 10:18:14 GMT",
            "https://a.example/",
            "a=1",
        ),
        (
            "https://a.example/",
            "a=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=60",
            "https://a.example/",
            "a=1",
        ),
        ("https://a.example/", "a=1; Expires=never", "https://a.example/", "a=1"),
        (
            "https://a.example/",
            "a=1; Expires=Wed, 99 Jun 99999 99:99:99 GMT",
            "https://a.example/",
            "a=1",
        ),
        ("https://a.example/", "a = 1 ", "https://a.example/", "a=1"),
        ("https://a.example/", 'a="b c"', "https://a.example/", 'a="b c"'),
        ("https://a.example/", "a=b=c", "https://a.example/", "a=b=c"),
        ("https://a.example/", "a=", "https://a.example/", "a="),
        ("https://a.example/", "just text", "https://a.example/", "just text"),
        ("https://a.example/", "=", "https://a.example/", ""),
        ("https://a.example/", "", "https://a.example/", ""),
        ("https://a.example/", ";;;", "https://a.example/", ""),
        ("https://a.example/", "a=1\r\nX-Evil: 1", "https://a.example/", ""),
        ("https://a.example/", "a=\x001", "https://a.example/", ""),
        ("https://a.example/", "a=" + "x" * 5000, "https://a.example/", ""),
        ("https://a.example/", "__Secure-a=1", "https://a.example/", ""),
        ("https://a.example/", "__Secure-a=1; Secure", "https://a.example/", "__Secure-a=1"),
        ("https://a.example/", "__Host-a=1; Secure; Path=/", "https://a.example/", "__Host-a=1"),
        (
            "https://a.example/",
            "__Host-a=1; Secure; Path=/; Domain=a.example",
            "https://a.example/",
            "",
        ),
        ("https://a.example/", "__Host-a=1; Secure; Path=/x", "https://a.example/x", ""),
        ("https://a.example./", "a=1", "https://a.example/", "a=1"),
    ],
)
def test_cookies_are_kept_as_browsers_keep_them(
    origin: str, header: str, where: str, expected: str
) -> None:
    """Domain, path, Secure, expiry and prefixes mean what they mean in a browser."""
    kept = jar()
    take(kept, origin, header)

    assert sent(kept, where) == expected


def test_cookies_replace_expire_and_are_ordered() -> None:
    """A cookie with the same name, domain and path takes the other's place; longer paths are sent
    first."""
    now = [NOW]
    kept = jar(now=now)
    take(kept, "https://a.example/x/", "a=1; Path=/", "a=2; Path=/x", "b=1; Path=/; Max-Age=5")
    take(kept, "https://a.example/x/", "b=2; Path=/; Max-Age=5")

    assert sent(kept, "https://a.example/x") == "a=2; a=1; b=2"
    now[0] += 6
    assert sent(kept, "https://a.example/x") == "a=2; a=1"
    take(kept, "https://a.example/x/", "a=; Path=/x; Max-Age=0")
    assert sent(kept, "https://a.example/x") == "a=1"


def test_no_server_fills_the_memory() -> None:
    """Cookies are capped by number and size in a domain, and domains by number; the last ones used
    stay."""
    kept = jar()
    for n in range(10_000):
        take(kept, "https://a.example/", f"c{n}=1; Path=/")
    assert len(sent(kept, "https://a.example/").split("; ")) == session.MAX_COOKIES
    assert "c9999=1" in sent(kept, "https://a.example/")
    take(kept, "https://b.example/", *(f"c{n}={'x' * 4000}; Path=/" for n in range(100)))
    assert 4000 < len(sent(kept, "https://b.example/")) <= session.MAX_HEADER
    take(kept, "https://c.example/", *(f"c{n}=1" for n in range(100_000)))
    assert len(sent(kept, "https://c.example/").split("; ")) <= session.MAX_COOKIES
    for n in range(session.MAX_JARS + 50):
        take(kept, f"https://d{n}.example/", "a=1")
    assert sent(kept, "https://a.example/") == ""
    assert sent(kept, f"https://d{session.MAX_JARS + 49}.example/") == "a=1"


def test_a_flood_does_not_keep_the_next_page_from_being_asked_for(site: Site) -> None:
    """However many and large cookies a page sets, requests that follow go out, and are answered."""

    async def work() -> None:
        session = LiveSession(Session(headers=(("Cookie", "own=" + "x" * 5000),)))
        async with Client(1_000_000) as made:
            for path in ("/many-cookies/150", "/page/1", "/page/2"):
                page = await made.fetch(
                    Request(url=f"{site.url}{path}", loopback=True, session=session)
                )
                assert page.status == 200
                session.take("http", "127.0.0.1", "/", [f"c{n}={'y' * 4000}" for n in range(20)])

    asyncio.run(work())


def test_a_flood_pushes_no_given_cookie_out() -> None:
    """The operator's own cookies stay, may be renewed by their server, and come back with their
    domain."""
    kept = jar(Cookie(name="sid", value="1", domain="a.example", subdomains=True, given=True))
    take(kept, "https://a.example/", *(f"c{n}={'x' * 1000}; Path=/" for n in range(200)))
    assert "sid=1" in sent(kept, "https://b.a.example/")
    take(kept, "https://a.example/", "sid=2; Domain=a.example; Path=/")
    take(kept, "https://a.example/", *(f"d{n}={'x' * 1000}; Path=/" for n in range(200)))
    assert "sid=2" in sent(kept, "https://b.a.example/")
    for n in range(session.MAX_JARS + 1):
        take(kept, f"https://d{n}.example/", "a=1")
    assert sent(kept, "https://b.a.example/") == "sid=1"


COOKIE_FILE = """\
# Netscape HTTP Cookie File
# https://curl.se/docs/http-session.html

a.example\tFALSE\t/\tFALSE\t0\tplain\tone
.a.example\tTRUE\t/x\tTRUE\t1900000000\tdeep\ttwo
#HttpOnly_b.example\tFALSE\t/\tFALSE\t1900000000.5\thidden\tthree
a.example\tFALSE\t/\tFALSE\t1000000000\texpired\tgone
co.uk\tTRUE\t/\tFALSE\t0\tsuffix\tfour
127.0.0.1\tFALSE\t/\tFALSE\t0\tlocal\tfive
a.example\tFALSE\t/\tFALSE\t0\tempty
"""


def test_cookie_files(tmp_path: Path) -> None:
    """A file as curl and browsers' extensions write it is read, without what has expired."""
    file = tmp_path / "session.txt"
    file.write_bytes(b"\xef\xbb\xbf" + COOKIE_FILE.replace("\n", "\r\n").encode())
    kept = jar(*session.read_file(file, NOW))

    assert sent(kept, "http://a.example/") == "plain=one; empty="
    assert sent(kept, "https://a.example/x/1") == "deep=two; plain=one; empty="
    assert sent(kept, "https://c.a.example/x") == "deep=two"
    assert sent(kept, "http://b.example/") == "hidden=three"
    assert sent(kept, "http://other.co.uk/") == ""
    assert sent(kept, "http://127.0.0.1/") == "local=five"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a.example FALSE / FALSE 0 sid geheim", "1 fields between tabs"),
        ("a.example\tFALSE\t/\tFALSE\t0\tsid\tgeheim\tmore", "8 fields between tabs"),
        ("\tFALSE\t/\tFALSE\t0\tsid\tgeheim", "no host name"),
        ("http://a.example/\tFALSE\t/\tFALSE\t0\tsid\tgeheim", "no host name"),
        ("a.example\tyes\t/\tFALSE\t0\tsid\tgeheim", "second field"),
        ("a.example\tTRUE\t/\t1\t0\tsid\tgeheim", "fourth field"),
        ("a.example\tTRUE\tx\tTRUE\t0\tsid\tgeheim", "must begin with /"),
        ("a.example\tTRUE\t/\tTRUE\tsoon\tsid\tgeheim", "seconds since 1970"),
        ("a.example\tTRUE\t/\tTRUE\t0\tsid\tgeheim\x01", "no cookie can hold"),
        ("a.example\tTRUE\t/\tTRUE\t0\tsid\tgeheim; a=b", "no cookie can hold"),
        ('{"cookies": []}', "1 fields between tabs"),
    ],
)
def test_bad_cookie_files(tmp_path: Path, line: str, reason: str) -> None:
    """File, line and reason are said, the secret is not."""
    file = tmp_path / "session.txt"
    file.write_text(f"# comment\n\n{line}\n")
    with pytest.raises(InputError) as caught:
        session.read_file(file, NOW)

    assert str(caught.value).startswith(f"{file}, line 3: ")
    assert reason in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_cookie_files_that_are_none(tmp_path: Path) -> None:
    """A missing file, a folder and bytes that are no text are one clear line each."""
    (tmp_path / "binary").write_bytes(b"SQLite format 3\0\xff\xfe")
    for name, reason in (
        ("missing", "No such file"),
        (".", "directory"),
        ("binary", "not text in UTF-8"),
    ):
        with pytest.raises(InputError, match=reason):
            session.read_file(tmp_path / name, NOW)


# The file


def test_a_session_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    """What was saved is loaded, from a file and a folder that nobody else may read, whatever the
    job's name."""
    folder = tmp_path / "sessions"
    names = [
        "parcels.csv",
        "../../etc/passwd",
        "a/b",
        "",
        ".",
        "ж" * 300,
        "x" * 5000,
        "a b\n\0c",
        "PARCELS.csv",
    ]
    for number, name in enumerate(names):
        session.save(folder, name, msgspec.structs.replace(SECRETS, user_agent=f"agent {number}"))

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert len(list(folder.iterdir())) == len(names)
    for number, name in enumerate(names):
        loaded = session.load(folder, name)
        assert loaded is not None
        assert loaded.user_agent == f"agent {number}"
        assert msgspec.structs.replace(loaded, user_agent=SECRETS.user_agent) == SECRETS
    assert session.load(folder, "unknown") is None
    assert session.load(tmp_path / "nowhere", "unknown") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe",
        b'{"job": "j", "session": {"headers": [["A", 1]]}}',
        b'{"job": "j", "session": {"surprise": 1}}',
        b'{"job": "other", "session": {}}',
        b'{"job": "j", "format": 2, "session": {}}',
        b'{"job": "j", "session": {"headers": [["A", "geheim\\r\\nB: 1"]]}}',
        b'{"job": "j", "session": {"headers": [["Host", "geheim"]]}}',
        b'{"job": "j", "session": {"credentials": "geheim"}}',
    ],
)
def test_a_damaged_or_foreign_session(tmp_path: Path, content: bytes) -> None:
    """It is refused by name with what to do, its content is not shown, and the file stays."""
    path = session_path(tmp_path, "j")
    path.write_bytes(content)
    with pytest.raises(StoreError, match="import again, or remove it") as caught:
        session.load(tmp_path, "j")

    assert str(path) in str(caught.value)
    assert "geheim" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """A session that cannot be kept is an error of the store, and leaves nothing behind."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        session.save(tmp_path / "file" / "sessions", "j", SECRETS)
    with pytest.raises(UsageError):
        session.save(tmp_path / "sessions", "j", Session(headers=(("A", "b\nc"),)))
    assert not (tmp_path / "sessions").exists()


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """A process sees a new session without being restarted, and keeps cookies while nothing
    changes."""
    sessions = Sessions(tmp_path)
    plain = sessions.of("j")
    assert sessions.of("j") is plain
    session.save(tmp_path, "j", Session(user_agent="one"))
    live = sessions.of("j")
    assert live.headers("http", "a.example", "a.example", "/", True)["user-agent"][1] == "one"
    live.take("http", "a.example", "/", ["a=1"])
    assert "cookie" in sessions.of("j").headers("http", "a.example", "a.example", "/", True)
    assert "cookie" not in sessions.of("other").headers("http", "a.example", "a.example", "/", True)
    for number in range(session.MAX_LIVE):
        sessions.of(f"job {number}")
    assert sessions.of("j") is not live


def test_no_text_holds_a_secret() -> None:
    """Neither a session nor anything that has it in it shows one."""
    live = LiveSession(SECRETS)
    live.take("https", "a.example", "/", ["x=geheim-7"])
    request = Request(
        url="http://u:geheim-8@a.example/", headers=(("X-Key", "geheim-9"),), session=live
    )
    values: list[object] = [
        SECRETS,
        live,
        request,
        SECRETS.proxy,
        SECRETS.cookies,
        [SECRETS],
        {"a": live},
    ]

    for value in values:
        assert "geheim" not in repr(value) + str(value) + f"{value}"


# The options


@click.command()
@session_options
def command(session: Session | None) -> None:
    """A command with the options."""
    click.echo(msgspec.json.encode(session))


def typed(*arguments: str) -> Session | None:
    """The session that a command line describes; errors come out as they are."""
    done = CliRunner().invoke(command, arguments, catch_exceptions=True)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return msgspec.json.decode(done.output, type=Session | None)


def test_options_become_a_session(tmp_path: Path) -> None:
    """All four options together, and none at all."""
    file, more = tmp_path / "session.txt", tmp_path / "headers.txt"
    file.write_text("a.example\tFALSE\t/\tFALSE\t0\tsid\tone\n")
    more.write_text("# secrets\n\nX-Key: two\r\nX-Url: http://a.example/\n")
    made = typed(
        *("--header", "Accept: text/plain", "--header", "X-Empty:", "--header", f"@{more}"),
        *(
            "--user-agent",
            "me/1.0",
            "--cookie-file",
            str(file),
            "--proxy",
            "http://u:p%40@proxy.example:3128",
        ),
    )

    assert typed() is None
    assert made is not None
    assert made.headers == (
        ("Accept", "text/plain"),
        ("X-Empty", ""),
        ("X-Key", "two"),
        ("X-Url", "http://a.example/"),
    )
    assert made.user_agent == "me/1.0"
    assert [(cookie.name, cookie.value) for cookie in made.cookies] == [("sid", "one")]
    assert made.proxy == Proxy("proxy.example", 3128, "u:p@")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--header", "geheim"), "a colon is missing"),
        (("--header", ": geheim"), "not the name of a header"),
        (("--header", "A B: geheim"), "not the name of a header"),
        (("--header", "X-Ключ: geheim"), "not the name of a header"),
        (("--header", "A: geheim\r\nB: 1"), "line break"),
        (("--header", "A: geheim\nB: 1"), "line break"),
        (("--header", "A: geheim\0"), "control character"),
        (("--header", "A: " + "geheim" * 5000), "more than 8,192"),
        (("--header", "Host: geheim"), "not for you to set"),
        (("--header", "content-length: 5"), "not for you to set"),
        (("--header", "Transfer-Encoding: chunked"), "not for you to set"),
        (("--header", "Connection: close"), "not for you to set"),
        (("--header", "Proxy-Authorization: geheim"), "not for you to set"),
        (("--header", "Referer: http://a.example/"), "not for you to set"),
        (("--header", "A: 1") * 101, "more than 100"),
        (("--user-agent", "geheim\r\nB: 1"), "line break"),
        (("--proxy", "socks5://user:geheim@127.0.0.1:1080"), "begins with http://"),
        (("--proxy", "https://user:geheim@127.0.0.1:1080"), "begins with http://"),
        (("--proxy", "http://user:geheim@127.0.0.1:99999"), "no URL"),
        (("--proxy", "http://user:geheim@127.0.0.1:0"), "port 0"),
        (("--proxy", "http://user:geheim@127.0.0.1:1/path"), "ends with its port"),
        (("--proxy", "http://user:geheim%0d%0a@127.0.0.1:1"), "control characters"),
        (("--proxy", ""), "no URL"),
        (("--header", "@/nowhere/geheim.txt"), "cannot be read"),
        (("--cookie-file", "/nowhere/session.txt"), "cannot be read"),
    ],
)
def test_bad_options_are_explained(arguments: tuple[str, ...], reason: str) -> None:
    """Each has its reason, and the secret is not repeated."""
    with pytest.raises(UsageError) as caught:
        typed(*arguments)

    assert reason in str(caught.value)
    assert "geheim" not in str(caught.value).replace("/nowhere/geheim.txt", "")


def test_a_bad_header_file_names_the_line(tmp_path: Path) -> None:
    """File, line and reason."""
    file = tmp_path / "headers.txt"
    file.write_text("A: 1\n\ngeheim\n")
    with pytest.raises(InputError) as caught:
        typed("--header", f"@{file}")
    assert str(caught.value) == f"{file}, line 3: a colon is missing; write 'Name: value'"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        typed("--header", f"@{file}")


# On the wire


async def echoed(made: Client, url: str, **options: object) -> dict[str, list[str]]:
    """The headers that a server saw, by lower-case name."""
    page = await made.fetch(msgspec.structs.replace(Request(url=url, loopback=True), **options))
    assert page.status == 200
    found: dict[str, list[str]] = {}
    for line in page.body.decode("latin-1").split("\r\n")[1:]:
        if line:
            name, _, value = line.partition(": ")
            found.setdefault(name.lower(), []).append(value)
    return found


def test_headers_as_they_are_sent(site: Site) -> None:
    """The operator's headers go before the site's, and these before the client's; no header is sent
    twice."""

    async def work() -> None:
        live = LiveSession(
            Session(
                headers=(("ACCEPT", "text/plain"), ("X-Key", "ключ"), ("Cookie", "own=1")),
                user_agent="me/1.0",
                credentials={site.url: "user:päss:word"},
            )
        )
        live.take("http", "127.0.0.1", "/", ["jar=2; Path=/"])
        async with Client(100_000) as made:
            url = f"{site.url}/echo"
            plain = await echoed(made, url)
            assert set(plain) == {
                "host",
                "user-agent",
                "accept",
                "accept-language",
                "accept-encoding",
            }
            site_headers = (("Accept", "application/json"), ("X-Site", "1"), ("User-Agent", "site"))
            full = await echoed(made, url, headers=site_headers, session=live)
            assert all(len(values) == 1 for values in full.values())
            assert full["accept"] == ["text/plain"]
            assert full["x-site"] == ["1"]
            assert full["user-agent"] == ["me/1.0"]
            assert full["x-key"] == ["ключ".encode().decode("latin-1")]
            assert full["cookie"] == ["own=1; jar=2"]
            assert full["authorization"] == [
                "Basic " + base64.b64encode("user:päss:word".encode()).decode()
            ]
            with pytest.raises(FetchError) as caught:
                await echoed(made, url, headers=(("X-Site", "geheim\r\nX-Evil: 1"),))
            assert caught.value.reason == "bad_request"
            assert "geheim" not in caught.value.message

    asyncio.run(work())


@asynccontextmanager
async def two_origins(
    second: str = "127.0.0.2",
) -> AsyncIterator[tuple[str, str, list[dict[str, str]]]]:
    """Two servers that write down what they are sent: the first redirects to the second, the second
    to its own /end."""
    seen: list[dict[str, str]] = []
    ports: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            path = lines[0].split(" ")[1]
            headers = {
                name.lower(): value
                for name, _, value in (line.partition(": ") for line in lines[1:])
            }
            seen.append({**headers, "path": path})
            if path.startswith("/to/"):
                target = path.removeprefix("/to/")
                answer = (
                    f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nSet-Cookie: hop{len(seen)}=1; "
                    "Path=/\r\n"
                )
            else:
                answer = "HTTP/1.1 200 OK\r\n"
            writer.write(f"{answer}Content-Length: 0\r\n\r\n".encode())
            await writer.drain()

    async with serving(talk, "127.0.0.1") as one, serving(talk, second) as other:
        ports += [one, other]
        yield f"http://127.0.0.1:{one}", f"http://{second}:{other}", seen


def test_secrets_do_not_follow_a_redirect_to_another_origin() -> None:
    """Authorization, cookies and any header that may be a secret stay with the origin that was
    asked for."""

    async def work() -> None:
        async with two_origins() as (home, away, seen):
            live = LiveSession(
                Session(
                    headers=(
                        ("Authorization", "Bearer geheim"),
                        ("Cookie", "a=geheim"),
                        ("X-Key", "geheim"),
                        ("DNT", "1"),
                    ),
                    credentials={home: "user:geheim", away: "other:word"},
                )
            )
            site_headers = (("X-Site-Key", "geheim"), ("If-None-Match", '"1"'))
            async with Client(100_000, egress=Egress(("127.0.0.0/8",))) as made:
                url = f"{home}/to//to/{away}/to/{home}/end"
                await made.fetch(Request(url=url, headers=site_headers, session=live))
            assert [entry["path"].partition("/127")[0] for entry in seen][-1] == "/end"
            first, second, third, last = seen
            for entry in (first, second, last):
                assert entry["authorization"] == "Bearer geheim"
                assert entry["x-key"] == entry["x-site-key"] == "geheim"
                assert entry["cookie"].startswith("a=geheim")
            assert third["host"] == away.removeprefix("http://")
            assert "geheim" not in json.dumps(third)
            assert third["authorization"] == "Basic " + base64.b64encode(b"other:word").decode()
            assert (third["dnt"], third["if-none-match"]) == ("1", '"1"')
            assert "cookie" not in third
            assert last["cookie"] == "a=geheim; hop1=1; hop2=1"
            assert all("referer" not in entry for entry in seen)

    asyncio.run(work())


def test_another_port_is_another_origin_but_has_the_host_s_cookies() -> None:
    """Headers and credentials go to the origin that they are for; cookies go by host and path, as
    RFC 6265 has it."""

    async def work() -> None:
        async with two_origins("127.0.0.1") as (home, away, seen):
            crumb = Cookie(name="sid", value="crumb", domain="127.0.0.1")
            cookies = (crumb, msgspec.structs.replace(crumb, path="/other"))
            secure = Cookie(name="tls", value="geheim", domain="127.0.0.1", secure=True)
            headers = (
                ("Authorization", "Bearer geheim"),
                ("Cookie", "typed=geheim"),
                ("X-Key", "geheim"),
            )
            session = Session(
                headers=headers, cookies=(*cookies, secure), credentials={home: "user:geheim"}
            )
            async with Client(100_000, egress=Egress(("127.0.0.0/8",))) as made:
                request = Request(url=f"{home}/to/{away}/end", session=LiveSession(session))
                await made.fetch(request)
            first, second = seen
            assert first["authorization"] == "Bearer geheim"
            assert first["cookie"] == "typed=geheim; sid=crumb"
            assert second["host"] == away.removeprefix("http://")
            assert second["cookie"] == "sid=crumb; hop1=1"
            assert "authorization" not in second
            assert "geheim" not in json.dumps(second)

    asyncio.run(work())


def test_no_answer_without_tls_replaces_a_cookie_that_came_with_it() -> None:
    """All ports of a host share cookies, so that a plain one could choose those of the secure one
    (RFC 6265bis)."""
    kept = jar()
    take(kept, "https://a.example/x/", "sid=good; Secure; Path=/x")
    for url in ("http://a.example/x/y", "http://b.a.example/x/"):
        take(
            kept,
            url,
            "sid=evil; Path=/x",
            "sid=evil; Path=/x/y",
            "sid=evil; Domain=a.example; Path=/x",
        )
    take(kept, "http://a.example/", "sid=other; Path=/")

    assert sent(kept, "https://a.example/x/") == "sid=good; sid=other"
    take(kept, "https://a.example/x/", "sid=new; Path=/x")
    assert sent(kept, "https://a.example/x/") == "sid=new; sid=other"


def test_cookies_are_the_job_s_and_the_domain_s(site: Site) -> None:
    """A cookie of a redirect is sent at the next hop, not by another job, and not without a
    session."""

    async def work() -> None:
        one, other = LiveSession(), LiveSession()
        async with Client(100_000) as made:
            good, evil = "sid%3D1%3B%20Path%3D/", "evil%3D1%3B%20Domain%3Dexample.com"
            url = f"{site.url}/set-cookie?c={good}&c={evil}&to=/echo"
            assert (await echoed(made, url, session=one))["cookie"] == ["sid=1"]
            assert (await echoed(made, f"{site.url}/echo", session=one))["cookie"] == ["sid=1"]
            assert "cookie" not in await echoed(made, f"{site.url}/echo", session=other)
            assert "cookie" not in await echoed(made, url)

    asyncio.run(work())


# Proxies


@pytest.mark.parametrize(
    ("exempt", "host", "port", "proxied"),
    [
        ("", "a.example", 80, True),
        ("*", "a.example", 80, False),
        ("a.example", "a.example", 80, False),
        ("a.example", "b.a.example", 80, False),
        ("a.example", "ba.example", 80, True),
        (".a.example", "a.example", 80, False),
        ("*.a.example", "b.a.example", 80, False),
        ("A.Example", "a.example", 80, False),
        ("a.example:8080", "a.example", 80, True),
        ("a.example:80", "a.example", 80, False),
        ("b.example, a.example", "a.example", 80, False),
        ("8.8.0.0/16", "8.8.8.8", 80, False),
        ("8.8.8.8", "8.8.8.8", 80, False),
        ("8.8.8.8:81", "8.8.8.8", 80, True),
        ("2600::/16", "[2600::1]", 80, False),
        ("[2600::1]:80", "[2600::1]", 80, False),
        ("2600::1", "[2600::1]", 80, False),
        ("example", "a.example.", 80, False),
        (",, ,", "a.example", 80, True),
        (".", "a.example", 80, True),
        ("", "127.0.0.1", 80, False),
        ("", "[::1]", 80, False),
        ("", "localhost", 80, False),
        ("", "a.localhost", 80, False),
    ],
)
def test_no_proxy(exempt: str, host: str, port: int, proxied: bool) -> None:
    """NO_PROXY means what it means elsewhere, and this machine is always reached without."""
    chosen = Proxies.from_environment("http://p.example:1", "http://q.example:2", exempt)
    own = parse_proxy("http://own.example:3")

    assert chosen.choose("http", host, port) == (Proxy("p.example", 1) if proxied else None)
    assert chosen.choose("https", host, port) == (Proxy("q.example", 2) if proxied else None)
    assert chosen.choose("https", host, port, own) == (own if proxied else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://p.example:3128", Proxy("p.example", 3128)),
        ("http://p.example", Proxy("p.example", 80)),
        ("p.example:3128", Proxy("p.example", 3128)),
        ("http://user:p%3A%40@[::1]:3128/", Proxy("[::1]", 3128, "user:p:@")),
        ("http://user@127.1:1", Proxy("127.0.0.1", 1, "user:")),
    ],
)
def test_proxies_are_read(text: str, expected: Proxy) -> None:
    """Addresses of proxies in the forms that people write."""
    assert parse_proxy(text) == expected


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and certificates of it and of none."""
    return tls.make(tmp_path_factory.mktemp("tls"))


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request with its first line."""
    while True:
        request = await reader.readuntil(b"\r\n\r\n")
        first = request.partition(b"\r\n")[0]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(first), first))
        await writer.drain()


@pytest.fixture
def trusted(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The authority as the only one that is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", "/nowhere")
    return certificates


@pytest.mark.parametrize(
    ("name", "host", "reason"),
    [
        ("good", "localhost", "ok"),
        ("good", "127.0.0.1", "ok"),
        ("good", "a.localhost", "ok"),
        ("good", "localhost.", "ok"),
        ("good", "[::ffff:127.0.0.1]", "tls"),
        ("other", "localhost", "tls"),
        ("expired", "localhost", "tls"),
        ("self", "localhost", "tls"),
    ],
)
def test_tls_is_verified(trusted: Path, name: str, host: str, reason: str) -> None:
    """Only a certificate of a trusted authority, for this host and of today, is good; SSL_CERT_FILE
    is honoured."""

    async def work() -> str:
        async with serving(greet, tls=tls.identity(trusted, name)) as port, Client(1000) as made:
            try:
                for _ in range(2):
                    page = await made.fetch(
                        Request(url=f"https://{host}:{port}/x", loopback=True, timeout_s=10)
                    )
                    assert page.body == b"GET /x HTTP/1.1"
            except FetchError as error:
                assert error.message.isprintable()  # noqa: PT017 - the reason is the result
                return error.reason
            return "ok"

    assert asyncio.run(work()) == reason


def test_an_unknown_authority_is_not_trusted(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without SSL_CERT_FILE the test's own authority is nobody."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)

    async def work() -> None:
        async with (
            serving(greet, tls=tls.identity(certificates, "good")) as port,
            Client(1000) as made,
        ):
            with pytest.raises(FetchError, match="unable to get local issuer") as caught:
                await made.fetch(
                    Request(url=f"https://localhost:{port}/", loopback=True, timeout_s=10)
                )
            assert caught.value.reason == "tls"

    asyncio.run(work())


def test_https_through_a_proxy(trusted: Path) -> None:
    """A proxy opens a tunnel, TLS is verified inside it, and the proxy's password goes to the proxy
    alone."""
    heard: list[str] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        heard.extend(lines)
        _, port = lines[0].split(" ")[1].rsplit(":", 1)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        finally:
            far_writer.close()
            await far_writer.wait_closed()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()

    async def resolve(_: str) -> list[str]:
        return ["127.0.0.1"]

    async def work(name: str) -> bytes:
        async with (
            serving(tunnel) as proxy_port,
            serving(greet, tls=tls.identity(trusted, name)) as port,
        ):
            own = Session(proxy=parse_proxy(f"http://user:geheim@127.0.0.1:{proxy_port}"))
            async with Client(1000, egress=Egress(("127.0.0.0/8",), resolve)) as made:
                page = None
                for _ in range(2):
                    request = Request(
                        url=f"https://other.example:{port}/x",
                        session=LiveSession(own),
                        timeout_s=10,
                    )
                    page = await made.fetch(request)
                assert page is not None
                return page.body

    assert asyncio.run(work("other")) == b"GET /x HTTP/1.1"
    assert sum(line.startswith("CONNECT other.example:") for line in heard) == 1
    assert "Proxy-Authorization: Basic " + base64.b64encode(b"user:geheim").decode() in heard
    with pytest.raises(FetchError) as caught:
        asyncio.run(work("good"))
    assert caught.value.reason == "tls"


def test_http_through_the_environment_s_proxy() -> None:
    """HTTP_PROXY of the settings is asked for the whole URL, with its password, and answers as the
    page."""
    heard: list[str] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heard.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async def work() -> None:
        async with serving(forward) as port:
            settings = Settings(
                http_proxy=f"http://user:geheim@127.0.0.1:{port}", no_proxy="direct.example"
            )
            async with Client.of(settings) as made:
                page = await made.fetch(Request(url="http://8.8.8.8/x?y", timeout_s=10))
                assert (page.body, page.final_url) == (b"hi", "http://8.8.8.8/x?y")

    asyncio.run(work())
    assert heard[0].startswith("GET http://8.8.8.8/x?y HTTP/1.1\r\nHost: 8.8.8.8\r\n")
    assert re.search(r"Proxy-Authorization: Basic \S+\r\n", heard[0])


def test_a_clock_that_is_set_changes_no_age() -> None:
    """`Max-Age` counts by the machine's uptime; `Expires` is a date, and goes by the clock."""
    now, uptime = [1_800_000_000.0], [50.0]
    jar = Jars(clock=lambda: now[0], uptime=lambda: uptime[0])
    dated = formatdate(now[0] + 60, usegmt=True)
    jar.take(
        "https",
        "a.example",
        "/",
        ["aged=1; Max-Age=60", f"dated=1; Expires={dated}", "gone=1; Max-Age=0"],
    )

    now[0] += 86_400
    assert jar.header("https", "a.example", "/") == "aged=1"
    now[0] -= 86_400
    uptime[0] += 61
    assert jar.header("https", "a.example", "/") == "dated=1"
