"""Rules for what a page really is: pure functions, one for each kind of wall, tried in order.

A good page is told by its amount of text and an innocent title, which is cheap. All others are
examined closely. No single word makes a wall: a rule needs marks that only walls have, or several
weak signs on a page with hardly any text.
"""

from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace
from selectolax.lexbor import LexborHTMLParser

from crawler.fetch.budget import Budget
from crawler.judge import Verdict, decided, marks
from crawler.judge.marks import holds, says_only
from crawler.judge.sight import RICH, Sight, beginning, glance, look, squashed
from crawler.models import Page

_GONE = frozenset({404, 410})
_GOOD = decided("ok", "much to read under an innocent title")


def judge(
    page: Page, html: bytes, tree: LexborHTMLParser | None, budget: Budget | None = None
) -> Verdict:
    """Say what a page really is.

    `html` is the page in UTF-8, empty for what is not HTML; `tree` is its tree, or None, and is not
    changed.
    """
    status = page.status
    headers = {name.lower(): value for name, value in page.headers}
    if status not in _GONE and not marks.HEADER_NAMES.isdisjoint(headers):
        found = _by_header(headers)
        if found:
            return _with_status(found, status)
    if not page.body or page.body.isspace():
        if 200 <= status < 300:
            return decided("empty", f"status {status} with nothing in it")
        return _plain(status)
    if status in _GONE or 300 <= status < 400:
        return _plain(status)
    found = _found(page, headers, html, tree, budget or Budget())
    if found is None:
        return _plain(status)
    return _with_status(found, status)


def _found(
    page: Page, headers: dict[str, str], html: bytes, tree: LexborHTMLParser | None, budget: Budget
) -> Verdict | None:
    if tree is None:
        return _by_text(page, headers)
    sight = glance(tree, budget)
    # A page that is rich only because of its links may still be a login form.
    innocent = sight.own >= RICH or b"password" not in html
    good = 200 <= page.status < 300 and sight.rich and innocent
    if good and not marks.is_odd(" | ".join(sight.lines)):
        return _GOOD
    case = Case.of(page, headers, html, tree, look(tree, sight, budget), budget)
    return _by_rules(case, budget)


def _plain(status: int) -> Verdict:
    """The verdict on a page of which nothing but its status counts."""
    if 200 <= status < 300:
        return decided("ok", "not HTML")
    if status == 429:
        return _with_status(decided("rate_limited"), status)
    return _with_status(decided(f"http_{status}"), status)


def _with_status(verdict: Verdict, status: int) -> Verdict:
    """Add the status to the evidence, unless it is a success."""
    if 200 <= status < 300:
        return verdict
    block = verdict.block
    if verdict.name == "rate_limited" and status == 429:
        block = "http_429"
    return replace(verdict, evidence=(f"status {status}", *verdict.evidence), block=block)


SHORT_BODY = 2_000
MARKUP_BYTES = 200_000
CHALLENGE, SHORT, BRIEF, ANNOUNCEMENT, LONG = 1_200, 600, 300, 150, 2_500
"""The most characters of own text that a wall may have, by how sure its other signs are."""
RECORD_CELLS, RECORD_PARTS, THIN, BEGINNING, SHORT_HEADING, MENU, SHELL = 4, 8, 140, 60, 45, 15, 200
_SITE_TYPES = frozenset(
    {"website", "organization", "breadcrumblist", "searchaction", "imageobject", "webpage"}
)
"""Types of structured data that describe the site, not a thing on the page."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A page as the rules look at it."""

    status: int
    headers: dict[str, str]
    place: str
    """Host and path where the request ended."""
    moved: bool
    """Whether that is elsewhere than where it began."""
    markup: str
    """The beginning of the page in lower case."""
    sight: Sight
    heads: str
    """Title and headings."""
    words: str
    """The same, and all other text."""
    scripts: int
    noscript: str
    data: bool
    """Whether it holds a described thing for search engines, such as a product."""

    @classmethod
    def of(
        cls,
        page: Page,
        headers: dict[str, str],
        html: bytes,
        tree: LexborHTMLParser,
        sight: Sight,
        budget: Budget,
    ) -> Self:
        """The case of a page."""
        words = [*sight.lines, sight.text, squashed(" ".join(sight.framed))]
        noscripts = [beginning(node, SHORT_BODY) for node in tree.css("noscript")[:20]]
        budget.check(len(html))
        return cls(
            status=page.status,
            headers=headers,
            place=_place(page.final_url),
            moved=_place(page.final_url) != _place(page.url),
            markup=html[:MARKUP_BYTES].decode("utf-8", "ignore").lower(),
            sight=sight,
            heads=" | ".join(sight.lines),
            words=" | ".join(filter(None, words)),
            scripts=len(tree.css("script:not([type*='json' i])")),
            noscript=squashed(" ".join(noscripts))[:SHORT_BODY],
            data=_has_data(tree),
        )

    @property
    def good(self) -> bool:
        """Whether the server called it a success."""
        return 200 <= self.status < 300

    @property
    def is_record(self) -> bool:
        """Whether it holds a table or list of facts."""
        return self.sight.cells >= RECORD_CELLS

    def little(self, most: int) -> bool:
        """Whether there is hardly anything to read."""
        return self.sight.own <= most

    def lead(self, wanted: tuple[str, ...]) -> str:
        """What the title or a heading says, if it is one of these phrases and hardly anything
        else."""
        if not holds(self.heads, wanted):
            return ""
        return next((said for line in self.sight.lines if (said := says_only(line, wanted))), "")

    def near_lead(self, wanted: tuple[str, ...]) -> str:
        """A title or heading with one of the longer phrases and more, if it is nearly all that
        there is."""
        sight = self.sight
        if not holds(self.heads, wanted) or not self.little(BRIEF):
            return ""
        if sight.parts > 6 or sight.cells or sight.fields or sight.links > MENU:
            return ""
        longer = tuple(phrase for phrase in wanted if len(phrase) >= 12)
        return next((line for line in sight.lines if holds(line, longer)), "")

    def both_lead(self, wanted: tuple[str, ...]) -> bool:
        """Whether both the title and a heading say so."""
        if not says_only(self.sight.title, wanted):
            return False
        return any(says_only(heading, wanted) for heading in self.sight.headings)

    def amount(self) -> str:
        """How much there is to read."""
        return f"{self.sight.own:,} characters of own text"


Rule = Callable[[Case], Verdict | None]


def _place(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.netloc}{parts.path}".lower()[:2_000]


def _has_data(tree: LexborHTMLParser) -> bool:
    """Whether a description for search engines names anything but the site itself."""
    for node in tree.css('script[type*="ld+json" i]')[:10]:
        text = node.text()[:20_000].lower()
        kinds = [part.partition('"')[2].partition('"')[0] for part in text.split('"@type"')[1:20]]
        if any(kind and kind not in _SITE_TYPES for kind in kinds):
            return True
    return False


def _quoted(what: str, text: str) -> str:
    if not text:
        return ""
    return f"{what} “{text[:80]}”"


def _by_header(headers: dict[str, str]) -> Verdict | None:
    """Return what the headers alone decide."""
    for mark, evidence in marks.by_header(headers):
        return decided(mark.name, evidence, vendor=mark.vendor)
    return None


def _by_text(page: Page, headers: dict[str, str]) -> Verdict | None:
    """Return what a short answer that is not HTML says."""
    kind = headers.get("content-type", "")
    is_text = not kind or "text/" in kind or "json" in kind
    if len(page.body) > SHORT_BODY or not is_text:
        return None
    words = squashed(page.body.decode("utf-8", "replace"))
    good = 200 <= page.status < 300
    for mark, evidence in (*marks.by_markup(words, ""), *marks.by_words(words)):
        if not good or mark.name == "captcha":
            return decided(mark.name, evidence, vendor=mark.vendor)
    if page.status == 429:
        return decided("rate_limited")
    if good and "json" not in kind and len(words) <= BRIEF:
        for name, wanted in (("rate_limited", marks.RATE_LIMITED), ("error_page", _TRACE_SIGNS)):
            if holds(words[:60], wanted):
                return decided(name, _quoted("its whole text begins with", words))
    return None


_TRACE_SIGNS = tuple(sign for sign, _ in marks.TRACES)


def _by_rules(case: Case, budget: Budget) -> Verdict | None:
    """Return the first finding on a page. None for an error status means a plain one."""
    rules = _ERROR_RULES
    if case.good:
        rules = _RULES
    for rule in rules:
        budget.check(len(case.markup))
        found = rule(case)
        if found:
            return found
    return None


def _vendor_markup(case: Case) -> Verdict | None:
    if not case.little(CHALLENGE):
        return None
    for mark, evidence in marks.by_markup(case.markup, case.words):
        return decided(mark.name, evidence, case.amount(), vendor=mark.vendor)
    return None


def _vendor_words(case: Case) -> Verdict | None:
    if not case.little(CHALLENGE):
        return None
    # A good page may quote a vendor's words: then it has more text, and another title.
    sure = not case.good or case.little(BRIEF) or case.lead(marks.REFUSED)
    for mark, evidence in marks.by_words(case.words):
        if sure or mark.sign in case.heads:
            return decided(mark.name, evidence, case.amount(), vendor=mark.vendor)
    return None


def _captcha(case: Case) -> Verdict | None:
    """A page that is nothing but a captcha or its announcement."""
    sight, amount = case.sight, case.amount()
    if case.is_record or not case.little(SHORT):
        return None
    said = case.lead(marks.ROBOT)
    spoken = holds(case.words, marks.ROBOT)
    sign, vendor = marks.widget(case.markup)
    sure = said or case.little(BRIEF) or not case.good
    if sign and spoken and sight.fields <= 1 and sure:
        spoken = _quoted("it says", spoken)
        return decided("captcha", f"a captcha ({sign})", spoken, amount, vendor=vendor)
    bare = not (sight.fields or sight.links or sight.images or case.data) and sight.parts <= 3
    if sign and vendor and bare and case.little(60):
        return decided("captcha", f"a captcha ({sign}) and nothing else", amount, vendor=vendor)
    few = not sight.fields and sight.parts <= 5 and sight.links <= 5
    alone = case.little(ANNOUNCEMENT) and few and case.scripts
    if said and (alone or (not case.good and case.little(BRIEF))):
        vendor = "cloudflare" * ("cloudflare" in case.headers.get("server", "").lower())
        return decided("captcha", _quoted("title or heading", said), amount, vendor=vendor)
    return None


def _refused(case: Case) -> Verdict | None:
    if not case.little(SHORT) or (case.is_record and case.good):
        return None
    said, why = case.lead(marks.REFUSED), holds(case.words, marks.REFUSED_WHY)
    if why and (said or (not case.good and case.little(BRIEF))):
        title = _quoted("title or heading", said)
        return decided("blocked", title, _quoted("it says", why), case.amount())
    return None


def _rate_limited(case: Case) -> Verdict | None:
    if case.status == 429:
        return decided("rate_limited")
    spoken = holds(case.words, marks.RATE_LIMITED)
    if not spoken or case.is_record or not case.little(BRIEF):
        return None
    sight, said = case.sight, case.lead(marks.RATE_LIMITED)
    opens_with = holds(sight.text[:160], marks.RATE_LIMITED) and sight.parts <= 5
    if said or (opens_with and not sight.cells):
        return decided("rate_limited", _quoted("it says", said or spoken), case.amount())
    return None


def _maintenance(case: Case) -> Verdict | None:
    if case.is_record or not case.little(SHORT) or 400 <= case.status < 500:
        return None
    said = case.lead(marks.MAINTENANCE) or case.near_lead(marks.MAINTENANCE)
    says = [phrase for phrase in marks.MAINTENANCE_SAYS if phrase in case.sight.text]
    sure = bool(said) or "maintenance" in case.words
    if case.good:
        enough = len(says) >= 3 or (len(says) >= 1 and case.little(BRIEF))
        sure = bool(said) and enough
    if not sure:
        return None
    title = _quoted("title or heading", said)
    return decided("maintenance", title, _quoted("it says", ", ".join(says)), case.amount())


def _parked(case: Case) -> Verdict | None:
    if not case.little(CHALLENGE) or case.is_record:
        return None
    mark = holds(case.markup, marks.PARKED_MARKUP)
    signs = [
        _quoted("title or heading", holds(case.heads, marks.PARKED)),
        _quoted("it says", holds(case.sight.text, marks.PARKED_SAYS + marks.PARKED)),
    ]
    marked = mark and mark not in case.words
    if marked:
        signs.append(f"{mark} in the markup")
    named = next((line for line in case.sight.lines if _is_host(line)), "")
    if named and case.little(SHELL):
        signs.append(f"headed by nothing but {named}")
    if sum(map(bool, signs)) >= 2 or (marked and case.little(60)):
        return decided("parked", *signs, case.amount())
    return None


def _is_host(line: str) -> bool:
    plain = line.replace(".", "").replace("-", "")
    return "." in line[1:-1] and " " not in line and plain.isalnum()


def _login(case: Case) -> Verdict | None:
    sight, amount = case.sight, case.amount()
    if case.is_record:
        return None
    if "samlrequest" in sight.hidden_fields and case.little(BRIEF):
        return decided("login_wall", "a form with SAMLRequest", amount)
    place = holds(case.place, marks.LOGIN_PLACES)
    said, says = case.lead(marks.LOGIN), holds(case.words, marks.LOGIN_SAYS)
    title = _quoted("title or heading", said)
    if sight.passwords:
        if not case.little(_most_beside_password(case, bool(place), bool(said or says))):
            return None
        where = f"the place {place}" * bool(place)
        return decided("login_wall", "a password field", title, where, amount)
    if says and case.little(BRIEF) and sight.parts <= 10:
        return decided("login_wall", _quoted("it says", says), amount)
    if said and place and case.moved and case.little(BRIEF):
        return decided("login_wall", title, f"led to {case.place[:80]}", amount)
    return None


def _most_beside_password(case: Case, at_login: bool, said: bool) -> int:
    """How many characters of own text a login wall with a password field may have."""
    sight = case.sight
    if (case.moved and at_login) or case.both_lead(marks.LOGIN):
        return CHALLENGE
    if said:
        return BRIEF
    few = sight.parts < RECORD_PARTS and sight.linked < 60 and sight.fields <= 2
    if few and not case.data:
        return 100
    return -1


def _consent(case: Case) -> Verdict | None:
    sight = case.sight
    if case.is_record or not case.little(LONG) or holds(sight.title, marks.ABOUT):
        return None
    place = holds(case.place, marks.CONSENT_PLACES)
    said = next((line for line in sight.lines[:2] if holds(line, marks.CONSENT)), "")
    says = holds(case.words, marks.CONSENT_SAYS)
    button = _consent_button(sight)
    banner, terms = holds(button, marks.COOKIE_BUTTONS), holds(said, marks.TERMS)
    # The banner of a page about terms is not the button that accepts them, and a page about
    # cookies is longer.
    if not place and ((banner and terms) or not (terms or case.little(SHORT))):
        return None
    signs = [
        f"the place {place}" * bool(place),
        _quoted("title or heading", said),
        _quoted("it says", says),
    ]
    several = sum(map(bool, signs)) >= 2
    if several and ((button and (place or says)) or (place and case.little(100))):
        return decided("consent_wall", _quoted("a button", button), *signs, case.amount())
    return None


def _consent_button(sight: Sight) -> str:
    """The button that gives consent: if there is one, not that of a cookie banner."""
    # Links that are buttons begin with the word; many others have it somewhere.
    labels = map(squashed, sight.labels)
    links = [label for label in labels if label.startswith(marks.CONSENT_LINKS)]
    buttons = [label for label in sight.buttons + links if holds(label, marks.CONSENT_BUTTONS)]
    others = [label for label in buttons if not holds(label, marks.COOKIE_BUTTONS)]
    return next(iter(others + buttons), "")


def _error(case: Case) -> Verdict | None:
    beginning = f"{case.heads} | {case.sight.text[:BEGINNING]}"
    for sign, also in marks.TRACES:
        if sign in beginning and also in case.words:
            return decided("error_page", _quoted("it begins with", sign), case.amount())
    if case.is_record or not case.little(SHORT):
        return None
    said = case.lead(marks.ERROR) or case.near_lead(marks.ERROR)
    sure = case.little(80) or holds(case.words, marks.ERROR_SAYS)
    if said and sure and not case.lead(marks.GONE):
        return decided("error_page", _quoted("title or heading", said), case.amount())
    return None


def _soft_404(case: Case) -> Verdict | None:
    most = SHORT
    if case.both_lead(marks.GONE):
        most = LONG
    if case.is_record or not case.little(most):
        return None
    said = case.lead(marks.GONE) or case.near_lead(marks.GONE)
    if not said and case.little(BRIEF):
        said = _missing(case)
    if said and (case.little(100) or holds(case.sight.text, marks.GONE_SAYS)):
        return decided("soft_404", _quoted("title or heading", said), case.amount())
    return None


def _missing(case: Case) -> str:
    """A short heading such as “Parcel not found”."""
    lines = [line.rstrip(" .!") for line in case.sight.lines if len(line) <= SHORT_HEADING]
    return next((line for line in lines if line.endswith(marks.GONE_ENDS)), "")


def _shell(case: Case) -> Verdict | None:
    sight = case.sight
    if case.data or sight.cells or not case.scripts:
        return None
    if not case.little(SHELL) or sight.parts >= RECORD_PARTS:
        return None
    asks = "javascript" in case.noscript
    waits = sight.parts <= 3 or bool(holds(case.words, marks.WAITING)) or not sight.headings
    bare = not sight.own and sight.linked < 30 and not sight.images and not sight.frames
    if not ((sight.mounts and (waits or asks)) or (asks and case.little(80)) or bare):
        return None
    return decided(
        "empty_shell",
        "an empty element for a script to fill" * bool(sight.mounts),
        "a request for JavaScript" * asks,
        f"{case.scripts} scripts",
        case.amount(),
    )


def _thin(case: Case) -> Verdict:
    sight, text = case.sight, case.sight.text
    # A Chinese or Japanese character says as much as two or three letters.
    wide = 0
    if not text.isascii():
        wide = sum(sign >= "⺀" for sign in text)
    size = sight.own + sight.linked + 2 * wide
    name = "ok"
    if size < THIN and sight.parts + sight.links < RECORD_PARTS and not case.is_record:
        name = "thin"
    return decided(name, case.amount(), f"{sight.cells} cells", f"{sight.links} links")


def _refused_login(case: Case) -> Verdict | None:
    """A login form with a status that asks for one; a browser's own dialogue is no page."""
    if case.status not in (401, 403) or "www-authenticate" in case.headers:
        return None
    return _login(case)


_RULES: tuple[Rule, ...] = (
    *(_vendor_markup, _vendor_words, _parked, _login, _captcha, _rate_limited, _refused),
    *(_consent, _maintenance, _error, _soft_404, _shell, _thin),
)
_ERROR_RULES: tuple[Rule, ...] = (
    *(_vendor_markup, _vendor_words, _refused_login, _captcha, _rate_limited, _refused),
    _maintenance,
)
