"""Verdicts: what a page really is, measured on the corpus and held against whatever a server may
send."""

import re
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler.judge import DECISIONS, Verdict, decided
from crawler.judge.marks import says_only
from crawler.judge.rules import judge
from crawler.models import Page, RetryClass
from crawler.sites.parser import parse
from tests.support.corpus import Sample, answer, judged, samples

WALLS = {
    "captcha",
    "blocked",
    "login_wall",
    "consent_wall",
    "rate_limited",
    "error_page",
    "soft_404",
    "parked",
}
WALLS |= {"maintenance", "empty_shell"}
VENDORS = {
    "cloudflare",
    "akamai",
    "datadome",
    "perimeterx",
    "recaptcha",
    "hcaptcha",
    "turnstile",
    "imperva",
}
VENDORS |= {"aws waf", "kasada", "f5", "sucuri", "wordfence", "cloudfront", "vercel"}
GOOD = ("ok", "thin")
LONG = (
    "The board met on Tuesday and heard the report of the surveyor on the bridge over the mill "
    "race. " * 20
)


def page(
    body: str | bytes, status: int = 200, *headers: tuple[str, str], final_url: str = ""
) -> Page:
    """An answer with that body."""
    facts = {"url": "https://county.example/parcel/1", "status": str(status)}
    facts |= {"final": final_url} if final_url else {}
    pairs = (
        headers
        if any(name == "content-type" for name, _ in headers)
        else (*headers, ("content-type", "text/html"))
    )
    return answer(body.encode() if isinstance(body, str) else body, facts, list(pairs))


MENU = "<div><ul>" + "".join(
    f'<li><a href="/{name}">{name}</a></li>'
    for name in ["Home", "Shop", "News", "Jobs", "Help", "Blog"]
)
FOOT = (
    "<div><h4>Help</h4><a href=/d>Delivery</a><p>© 2026 Example Ltd. Registered in England and "
    "Wales.</p></div>"
)
BANNER = (
    "<div>We use cookies to improve your experience. <button>Accept all</button><button>Reject "
    "all</button></div>"
)
TAGS = """<noscript><iframe src="https://www.googletagmanager.com/ns.html?id=G"></iframe></noscript>
<script src="https://www.google.com/recaptcha/api.js?render=6L"></script>"""


@pytest.mark.parametrize("part", ["", "held-out", "development"])
def test_walls_are_told_from_good_pages(part: str) -> None:
    """Of what is called a wall 98 in 100 are, and of all walls 95 in 100 are found."""
    check([(sample, judged(sample.page)) for sample in samples(part)])


@pytest.mark.parametrize(
    ("above", "below"),
    [
        (f"{MENU}</ul></div>", ""),
        ("", FOOT),
        (BANNER, ""),
        (TAGS, ""),
        (f"{MENU}</ul></div>{BANNER}{TAGS}", FOOT),
    ],
    ids=["menu", "foot", "banner", "tags", "all"],
)
def test_what_a_site_has_on_every_page_changes_little(above: str, below: str) -> None:
    """Menus, footers, cookie banners, tag managers and captchas that nobody sees neither make nor
    hide a wall."""
    found = []
    for sample in samples():
        head, body, rest = re.split(
            "(<body[^>]*>|$)", sample.page.body.decode(), maxsplit=1, flags=re.I
        )
        if body and sample.page.status == 200:
            dressed = f"{head}{body}{above}{rest}".replace("</body>", f"{below}</body>")
            found.append(
                (sample, judged(msgspec.structs.replace(sample.page, body=dressed.encode())))
            )

    assert len(found) > 150
    check(found)


def check(found: list[tuple[Sample, Verdict]]) -> None:
    """Hold verdicts against labels."""
    right = sum((it.name, it.vendor) == (verdict.name, verdict.vendor) for it, verdict in found)
    walls = [it for it, verdict in found if not verdict.completed]
    true_walls = sum(it.name not in GOOD for it in walls)
    all_walls = sum(it.name not in GOOD for it, _ in found)
    precision, recall = true_walls / len(walls), true_walls / all_walls
    wrong = "\n".join(
        f"{it.path}: {verdict.name} {verdict.vendor} {verdict.evidence}"
        for it, verdict in found
        if (it.name, it.vendor) != (verdict.name, verdict.vendor)
    )
    message = (
        f"{len(found)} pages, {right} exactly right, precision {precision:.3f}, recall "
        f"{recall:.3f}\n{wrong}"
    )
    assert precision >= 0.98, message
    assert recall >= 0.95, message
    assert right >= 0.9 * len(found), message


def test_the_corpus_is_wide_enough() -> None:
    """Every kind of wall has eight pages and more, half of all are good, and the vendors that
    matter are there."""
    kinds = Counter(sample.name for sample in samples())
    vendors = {sample.vendor for sample in samples()}

    assert sum(kinds.values()) >= 150
    assert len(samples("held-out")) >= 60
    assert {name: kinds[name] for name in WALLS if kinds[name] < 8} == {}
    assert kinds["ok"] + kinds["thin"] >= sum(kinds.values()) / 2
    assert kinds.keys() >= {
        "thin",
        "empty",
        "http_401",
        "http_403",
        "http_404",
        "http_410",
        "http_500",
        "http_503",
    }
    assert vendors >= VENDORS


def test_every_verdict_of_the_table_is_given() -> None:
    """No row of the table is idle: each verdict is found somewhere in the corpus, and each has its
    evidence."""
    verdicts = [judged(sample.page) for sample in samples()]

    assert {verdict.name for verdict in verdicts} >= set(DECISIONS)
    assert {verdict.vendor for verdict in verdicts} >= VENDORS
    assert [verdict for verdict in verdicts if not verdict.evidence] == []


def test_only_good_pages_complete_a_task() -> None:
    """A wall is never a success, and what is no success never lies among the good pages."""
    assert {name for name, row in DECISIONS.items() if row.completed} == set(GOOD)
    assert {name for name, row in DECISIONS.items() if not row.quarantine} == {*GOOD, "empty"}


@pytest.mark.parametrize(
    ("status", "body", "name"),
    [
        (200, "", "empty"),
        (200, " \r\n ", "empty"),
        (204, "", "empty"),
        (302, "elsewhere", "http_302"),
        (403, "<h1>Forbidden</h1>", "http_403"),
        (404, "", "http_404"),
        (404, "<title>Just a moment...</title><script>window._cf_chl_opt={}</script>", "http_404"),
        (410, "<h1>Down for maintenance</h1>", "http_410"),
        (418, "<h1>I'm a teapot</h1>", "http_418"),
        (429, "", "rate_limited"),
        (451, "<h1>Unavailable for legal reasons</h1>", "http_451"),
        (500, "<h1>Something went wrong</h1>", "http_500"),
        (503, "busy", "http_503"),
        (999, "<h1>No</h1>", "http_999"),
    ],
)
def test_plain_statuses_keep_their_number(status: int, body: str, name: str) -> None:
    """A status that is no wall is called by its number, and decides what the table says of it."""
    verdict = judged(page(body, status))

    assert verdict.name == name
    assert verdict.retry is decided(name).retry
    assert not verdict.completed


def test_what_walls_decide() -> None:
    """One table decides state, quarantine, retry, breaker and proxy score at once."""
    limited = judged(page("<h1>Slow</h1>", 429))
    dressed = judged(page("<title>Too many requests</title><h1>Too many requests</h1>"))
    challenged = judged(page("<script>window._cf_chl_opt={}</script>", 403))
    away = judged(page("<h1>Down for maintenance</h1><p>Please check back later.</p>", 503))
    good = judged(page(f"<h1>Minutes</h1><p>{LONG}"))

    assert (limited.block, limited.retry, limited.completed) == (
        "http_429",
        RetryClass.SLOW_DOWN,
        False,
    )
    assert (dressed.block, dressed.retry, dressed.quarantine) == (
        "rate_limited",
        RetryClass.SLOW_DOWN,
        True,
    )
    assert (challenged.block, challenged.retry, challenged.proxy_score) == (
        "captcha",
        RetryClass.LATER,
        -5,
    )
    assert (away.name, away.retry) == ("maintenance", RetryClass.LATER)
    assert (good.completed, good.quarantine, good.retry, good.block) == (True, False, None, "")


@pytest.mark.parametrize("status", [200, 202, 403, 429, 503])
def test_a_challenge_is_a_challenge_whatever_its_status(status: int) -> None:
    """Cloudflare's challenge is recognised by its script alone."""
    body = "<title>Just a moment...</title><script>window._cf_chl_opt={}</script>"

    verdict = judged(page(body, status))

    assert (verdict.name, verdict.vendor) == ("captcha", "cloudflare")


def test_a_header_can_be_enough() -> None:
    """Where a vendor says in a header that this is a challenge, the body does not matter, not even
    that it is long."""
    verdict = judged(page(f"<h1>Minutes</h1><p>{LONG}", 403, ("CF-Mitigated", "challenge")))

    assert (verdict.name, verdict.vendor) == ("captcha", "cloudflare")
    assert "the header cf-mitigated: challenge" in verdict.evidence


@pytest.mark.parametrize(
    "marker", ["window._cf_chl_opt = {}", "geo.captcha-delivery.com", '<div id="px-captcha">']
)
def test_a_marker_that_is_only_spoken_of_is_none(marker: str) -> None:
    """A page that quotes a vendor's marker in its text is about walls, and is none."""
    quoted = marker.replace("<", "&lt;")
    body = (
        f"<title>Notes</title><h1>Notes on markers</h1><p>Look for <code>{quoted}</code> in the "
        "page that you got."
    )

    assert judged(page(body)).completed


@pytest.mark.parametrize(
    "sample", [it for it in samples() if it.name == "ok"], ids=lambda it: it.path
)
def test_a_long_page_stays_good_with_a_captcha_in_it(sample: Sample) -> None:
    """A form with a captcha, a login box and a consent banner below an article take nothing from
    it."""
    extras = (
        '<form><input name="a"><input name="b"><div class="g-recaptcha"></div></form>'
        '<input type="password">'
        "<div>We use cookies <button>Accept all</button></div>"
    )
    body = sample.page.body.decode() + f"<p>{LONG}</p>{extras}"

    assert judged(page(body, 200, *sample.page.headers)).completed


@pytest.mark.parametrize("around", ["noscript", "footer", "nav", "aside", "header", "svg><desc"])
def test_paragraphs_around_a_page_do_not_make_it_rich(around: str) -> None:
    """However much they say, a page that only a script fills is none; the same words in the page
    itself are one."""
    shell = (
        f"<title>Parcels</title><div id=root></div>{{}}<{around}><p>{{}}</p></{around}><script "
        "src=a.js></script>"
    )

    assert judged(page(shell.format("", LONG))).name == "empty_shell"
    assert judged(page(shell.format(f"<div><p>{LONG}</p></div>", ""))).name == "ok"


def test_the_tree_is_not_changed() -> None:
    """The parser gets the tree as it was."""
    for sample in samples("development"):
        tree = parse(sample.page.body)
        before = tree.html
        judge(sample.page, sample.page.body, tree)
        assert tree.html == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("page not found | garden & shed", "page not found"),
        ("404 quarry street, dunmore", ""),
        ("error 404: what it is and how to mend it", ""),
        ("oops! page not found", "oops! page not found"),
        ("how to show your own page not found", ""),
        ("", ""),
    ],
)
def test_a_title_says_something_only_if_it_says_nothing_else(line: str, said: str) -> None:
    """A phrase counts where it is the title or a part of it, not where the title is about it."""
    assert says_only(line, ("page not found", "404", "error 404")) == said


FRAGMENTS = st.sampled_from(
    "<html> <body> <title>404</title> <title>Just_a_moment <h1>Page_not_found</h1> <h2>Login "
    "<form> <input type=password> type=hidden name=SAMLRequest> <div_id=root> <div_hidden> "
    "<noscript>JavaScript</noscript> <table> <tr><td>x <script>window._cf_chl_opt={} </script> "
    '<script_type=application/ld+json>{"@type" ":" "} </div> <frameset> <template> <svg> '
    "<a_href=x> <button>Accept</button> <iframe> <style> <!-- --> <select><option> &#0; "
    "captcha g-recaptcha fatal_error on_line  <app-root> \0 \u2028 \ud83d".replace(
        "_", "\u00a0"
    ).split(" ")
)


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(st.one_of(FRAGMENTS, st.text(max_size=20)), max_size=40),
    status=st.integers(100, 999),
    headers=st.lists(
        st.tuples(
            st.sampled_from(["cf-mitigated", "Server", "x-amzn-waf-action", "content-type"]),
            st.text(max_size=9),
        ),
        max_size=4,
    ),
    final_url=st.one_of(
        st.text(max_size=30), st.sampled_from(["http://[", "https://a.example/login", "//consent"])
    ),
)
def test_nothing_that_a_server_sends_raises(
    parts: list[str], status: int, headers: list[tuple[str, str]], final_url: str
) -> None:
    """Whatever markup, status, headers and place: there is a verdict, with evidence, and it is
    always the same."""
    text = "".join(parts).replace("\u00a0", " ").encode("utf-8", "ignore").decode()
    it = page(text, status, *headers, final_url=final_url or "x")

    verdict = judge(it, text.encode(), parse(text))

    assert isinstance(verdict, Verdict)
    assert verdict.evidence
    assert verdict == judge(it, text.encode(), parse(text))
    assert not verdict.completed or 200 <= status < 300


@settings(max_examples=200, deadline=None)
@given(
    body=st.binary(max_size=300),
    status=st.integers(100, 999),
    kind=st.sampled_from(["", "text/plain", "x/json"]),
)
def test_bytes_that_are_not_html_raise_nothing(body: bytes, status: int, kind: str) -> None:
    """Any bytes that claim to be anything but HTML get a verdict."""
    verdict = judge(page(body, status, ("content-type", kind)), b"", None)

    assert verdict.evidence
    assert not verdict.completed or 200 <= status < 300


@pytest.mark.parametrize(
    "body",
    [
        "<title>" + " - page not found | " * 50_000,
        "<h1>" + "<b>not found</b>" * 20_000,
        "<h1>404</h1>" * 20_000,
        "<p hidden>" * 1_500 + "<h1>Error</h1>" * 1_500,
        "<div id=root>" * 1_500 + "<div id=app></div>" * 20_000,
        "<a href=x>login</a> " * 40_000,
        "<input type=password>" * 20_000,
        "<script>" + "_cf_chl_op" * 100_000,
        "<noscript>" + "java script " * 100_000,
        '<script type="application/ld+json">' + '"@type":' * 100_000,
        "<h1>Error</h1>" + " \u00a0" * 500_000,
        "<td>x" * 40_000,
        "<button>" + "accept " * 100_000,
    ],
    ids=lambda body: body[:30],
)
def test_hostile_pages_are_judged_in_bounded_time(body: str) -> None:
    """No page, however repeated, long or nested, keeps the judge busy."""
    assert judged(page(body)).evidence


def test_a_page_without_a_body_element() -> None:
    """Old registers of frames have no body; they are thin, and nothing raises."""
    assert judged(page('<frameset><frame src="a"></frameset>')).name == "thin"


_MENU = "".join(f"<tr><td>\n<a href='/{n}'>Menu {n}</a></td></tr>" for n in range(8))
_SIGN_IN = "<h1>Sign in</h1><form><input name=user><input type=password><button>Go</button></form>"
_SIGN_IN_ROWS = (
    "<form><table><tr><td>User:</td><td><input name=user></td></tr>"
    "<tr><td>Password:</td><td> <input type=password></td></tr>"
    "<tr><td colspan=2><input type=submit value='Sign in'></td></tr></table></form>"
)
_FACTS = "".join(f"<tr><td>Fact {n}:</td><td>Value {n}</td></tr>" for n in range(4))


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (_SIGN_IN, "login_wall"),
        (f"<h1>Sign in</h1>{_SIGN_IN_ROWS}", "login_wall"),
        (f"<table>{_FACTS}</table>{_SIGN_IN_ROWS}", "ok"),
        (f"<h1>Sign in</h1><table>{_FACTS}</table>{_SIGN_IN_ROWS}", "ok"),
    ],
)
def test_the_cells_of_a_layout_are_no_record(content: str, name: str) -> None:
    """A login page in a layout table is a login wall; facts beside a login form are a record."""
    layout = f"<table>{_MENU}</table></td><td>{content}</td></tr><tr><td>County office"
    body = f"<title>Sign in</title><table><tr><td>{layout}</td></tr></table>"

    assert judged(page(body)).name == name
