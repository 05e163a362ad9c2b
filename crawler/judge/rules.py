"""The rules, one function a kind of wall, asked in order; each gives a finding or nothing."""

from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

import msgspec
from selectolax.lexbor import LexborHTMLParser

from crawler.fetch.budget import Budget
from crawler.judge import phrases, vendors
from crawler.judge.phrases import holds, says_only
from crawler.judge.sight import Sight, beginning, squashed
from crawler.models import Page

SHORT_BODY = 2_000
MARKUP_BYTES = 200_000
CHALLENGE, SHORT, BRIEF, ANNOUNCEMENT, LONG = 1_200, 600, 300, 150, 2_500
"""The most characters of own text that a wall may have, by how sure its other signs are."""
RECORD_CELLS, RECORD_PARTS, THIN, BEGINNING, SHORT_HEADING, MENU, SHELL = 4, 8, 140, 60, 45, 15, 200
_DATA_TYPES = (
    "website",
    "organization",
    "breadcrumblist",
    "searchaction",
    "imageobject",
    "webpage",
)


class Found(msgspec.Struct, frozen=True):
    """What a rule has found."""

    name: str
    evidence: tuple[str, ...]
    vendor: str = ""


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
        if (
            not holds(self.heads, wanted)
            or not self.little(BRIEF)
            or sight.parts > 6
            or sight.cells
            or sight.fields
            or sight.links > MENU
        ):
            return ""
        longer = tuple(phrase for phrase in wanted if len(phrase) >= 12)
        return next((line for line in sight.lines if holds(line, longer)), "")

    def both_lead(self, wanted: tuple[str, ...]) -> bool:
        """Whether title and a heading say so both."""
        return bool(says_only(self.sight.title, wanted)) and any(
            says_only(h, wanted) for h in self.sight.headings
        )

    def amount(self) -> str:
        """How much there is to read."""
        return f"{self.sight.own:,} characters of own text"


Rule = Callable[[Case], Found | None]


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
        if any(kind and kind not in _DATA_TYPES for kind in kinds):
            return True
    return False


def _quoted(what: str, text: str) -> str:
    return f"{what} “{text[:80]}”"


def by_header(headers: dict[str, str]) -> Found | None:
    """What the headers alone decide."""
    for mark, evidence in vendors.by_header(headers):
        return Found(mark.name, (evidence,), mark.vendor)
    return None


def of_text(page: Page, headers: dict[str, str]) -> Found | None:
    """What a short answer that is not HTML says."""
    words = squashed(page.body.decode("utf-8", "replace"))
    good = 200 <= page.status < 300
    for mark, evidence in (*vendors.by_markup(words, ""), *vendors.by_words(words)):
        if not good or mark.name == "captcha":
            return Found(mark.name, (evidence,), mark.vendor)
    if page.status == 429:
        return Found("rate_limited", ())
    if good and "json" not in headers.get("content-type", "") and len(words) <= BRIEF:
        for name, wanted in (("rate_limited", phrases.RATE_LIMITED), ("error_page", _TRACE_SIGNS)):
            said = holds(words[:60], wanted)
            if said:
                return Found(name, (_quoted("its whole text begins with", words),))
    return None


_TRACE_SIGNS = tuple(sign for sign, _ in phrases.TRACES)


def of_page(case: Case, budget: Budget) -> Found | None:
    """The first finding on a page; none for an error status means that it is a plain one."""
    for rule in _RULES if case.good else _ERROR_RULES:
        budget.check(len(case.markup))
        found = rule(case)
        if found:
            return found
    return None


def _vendor_markup(case: Case) -> Found | None:
    if not case.little(CHALLENGE):
        return None
    for mark, evidence in vendors.by_markup(case.markup, case.words):
        return Found(mark.name, (evidence, case.amount()), mark.vendor)
    return None


def _vendor_words(case: Case) -> Found | None:
    if not case.little(CHALLENGE):
        return None
    for mark, evidence in vendors.by_words(case.words):
        # The words of a vendor in a page of a success could be quoted: then the title is not made
        # of them.
        if (
            not case.good
            or mark.sign in case.heads
            or case.lead(phrases.REFUSED)
            or case.little(BRIEF)
        ):
            return Found(mark.name, (evidence, case.amount()), mark.vendor)
    return None


def _captcha(case: Case) -> Found | None:
    """A page that is nothing but a captcha or its announcement."""
    sight = case.sight
    if case.is_record or not case.little(SHORT):
        return None
    said = case.lead(phrases.ROBOT)
    spoken = holds(case.words, phrases.ROBOT)
    sign, vendor = vendors.widget(case.markup)
    if sign and spoken and sight.fields <= 1 and (said or case.little(BRIEF) or not case.good):
        return Found(
            "captcha", (f"a captcha ({sign})", _quoted("it says", spoken), case.amount()), vendor
        )
    bare = not (sight.fields or sight.links or sight.images or case.data) and sight.parts <= 3
    if sign and vendor and bare and case.little(60):
        return Found("captcha", (f"a captcha ({sign}) and nothing else", case.amount()), vendor)
    alone = (
        case.little(ANNOUNCEMENT)
        and not sight.fields
        and sight.parts <= 5
        and sight.links <= 5
        and case.scripts
    )
    if said and (alone or (not case.good and case.little(BRIEF))):
        return Found("captcha", (_quoted("title or heading", said), case.amount()), _edge(case))
    return None


def _edge(case: Case) -> str:
    """Whose challenge a page without other marks is."""
    return "cloudflare" if "cloudflare" in case.headers.get("server", "").lower() else ""


def _refused(case: Case) -> Found | None:
    if not case.little(SHORT) or (case.is_record and case.good):
        return None
    said, why = case.lead(phrases.REFUSED), holds(case.words, phrases.REFUSED_WHY)
    if why and (said or (not case.good and case.little(BRIEF))):
        return Found(
            "blocked", (_quoted("title or heading", said), _quoted("it says", why), case.amount())
        )
    return None


def _rate_limited(case: Case) -> Found | None:
    if case.status == 429:
        return Found("rate_limited", ())
    spoken = holds(case.words, phrases.RATE_LIMITED)
    if not spoken or case.is_record or not case.little(BRIEF):
        return None
    said = case.lead(phrases.RATE_LIMITED)
    if said or (not case.sight.cells and _opens_with(case, phrases.RATE_LIMITED)):
        return Found("rate_limited", (_quoted("it says", said or spoken), case.amount()))
    return None


def _opens_with(case: Case, wanted: tuple[str, ...]) -> bool:
    """Whether the first words of the page's own text, which is in few pieces, are these."""
    return case.sight.parts <= 5 and bool(holds(case.sight.text[:160], wanted))


def _maintenance(case: Case) -> Found | None:
    if case.is_record or not case.little(SHORT) or 400 <= case.status < 500:
        return None
    said = case.lead(phrases.MAINTENANCE) or case.near_lead(phrases.MAINTENANCE)
    says = [phrase for phrase in phrases.MAINTENANCE_SAYS if phrase in case.sight.text]
    spoken = not case.good and "maintenance" in case.words
    if (said and (len(says) >= (1 if case.little(BRIEF) else 3) or not case.good)) or spoken:
        return Found(
            "maintenance",
            (_quoted("title or heading", said), _quoted("it says", ", ".join(says)), case.amount()),
        )
    return None


def _parked(case: Case) -> Found | None:
    if not case.little(CHALLENGE) or case.is_record:
        return None
    mark = holds(case.markup, phrases.PARKED_MARKUP)
    said = holds(case.heads, phrases.PARKED)
    named = (
        next((line for line in case.sight.lines if _is_host(line)), "")
        if case.little(SHELL)
        else ""
    )
    says = holds(case.sight.text, phrases.PARKED_SAYS + phrases.PARKED)
    signs = [
        _quoted("title or heading", said) if said else "",
        _quoted("it says", says) if says else "",
        f"{mark} in the markup" if mark and mark not in case.words else "",
        f"headed by nothing but {named}" if named else "",
    ]
    if sum(map(bool, signs)) >= 2 or (signs[2] and case.little(60)):
        return Found("parked", (*filter(None, signs), case.amount()))
    return None


def _is_host(line: str) -> bool:
    return (
        "." in line[1:-1] and " " not in line and line.replace(".", "").replace("-", "").isalnum()
    )


def _login(case: Case) -> Found | None:
    sight = case.sight
    if case.is_record:
        return None
    if "samlrequest" in sight.hidden_fields and case.little(BRIEF):
        return Found("login_wall", ("a form with SAMLRequest", case.amount()))
    place = holds(case.place, phrases.LOGIN_PLACES)
    said, says = case.lead(phrases.LOGIN), holds(case.words, phrases.LOGIN_SAYS)
    if sight.passwords:
        signs = (
            _quoted("title or heading", said) if said else "",
            f"the place {place}" if place else "",
        )
        led = case.moved and place
        bare = (
            sight.parts < RECORD_PARTS and sight.linked < 60 and sight.fields <= 2 and not case.data
        )
        sure = led or case.both_lead(phrases.LOGIN)
        if case.little(CHALLENGE if sure else BRIEF if said or says else 100 if bare else -1):
            return Found("login_wall", ("a password field", *filter(None, signs), case.amount()))
        return None
    if says and case.little(BRIEF) and sight.parts <= 10:
        return Found("login_wall", (_quoted("it says", says), case.amount()))
    if said and place and case.moved and case.little(BRIEF):
        return Found(
            "login_wall",
            (_quoted("title or heading", said), f"led to {case.place[:80]}", case.amount()),
        )
    return None


def _consent(case: Case) -> Found | None:
    sight = case.sight
    if case.is_record or not case.little(LONG) or holds(sight.title, phrases.ABOUT):
        return None
    place = holds(case.place, phrases.CONSENT_PLACES)
    said = next((line for line in sight.lines[:2] if holds(line, phrases.CONSENT)), "")
    says = holds(case.words, phrases.CONSENT_SAYS)
    # Links that are buttons begin with the word; many others have it somewhere.
    links = [
        label for label in map(squashed, sight.labels) if label.startswith(phrases.CONSENT_LINKS)
    ]
    buttons = [label for label in sight.buttons + links if holds(label, phrases.CONSENT_BUTTONS)]
    button = next(
        (label for label in buttons if not holds(label, phrases.COOKIE_BUTTONS)),
        "".join(buttons[:1]),
    )
    signs = [
        f"the place {place}" if place else "",
        _quoted("title or heading", said) if said else "",
        _quoted("it says", says) if says else "",
    ]
    count = sum(map(bool, signs))
    banner, terms = holds(button, phrases.COOKIE_BUTTONS), holds(said, phrases.TERMS)
    # The banner of a page about terms is not the button that accepts them, and a page about cookies
    # is longer.
    if not place and ((banner and terms) or not case.little(LONG if terms else SHORT)):
        return None
    if (button and count >= 2 and (place or says)) or (place and count >= 2 and case.little(100)):
        shown = (_quoted("a button", button),) if button else ()
        return Found("consent_wall", (*shown, *filter(None, signs), case.amount()))
    return None


def _error(case: Case) -> Found | None:
    beginning = f"{case.heads} | {case.sight.text[:BEGINNING]}"
    for sign, also in phrases.TRACES:
        if sign in beginning and also in case.words:
            return Found("error_page", (_quoted("it begins with", sign), case.amount()))
    if case.is_record or not case.little(SHORT):
        return None
    said = case.lead(phrases.ERROR) or case.near_lead(phrases.ERROR)
    says = holds(case.words, phrases.ERROR_SAYS)
    gone = case.lead(phrases.GONE)
    if said and not gone and (says or case.little(80)):
        return Found("error_page", (_quoted("title or heading", said), case.amount()))
    return None


def _soft_404(case: Case) -> Found | None:
    if case.is_record or not case.little(LONG if case.both_lead(phrases.GONE) else SHORT):
        return None
    said = (
        case.lead(phrases.GONE)
        or case.near_lead(phrases.GONE)
        or (_missing(case) if case.little(BRIEF) else "")
    )
    says = holds(case.sight.text, phrases.GONE_SAYS)
    if said and (says or case.little(100)):
        return Found("soft_404", (_quoted("title or heading", said), case.amount()))
    return None


def _missing(case: Case) -> str:
    """A short heading such as “Parcel not found”."""
    lines = [line.rstrip(" .!") for line in case.sight.lines if len(line) <= SHORT_HEADING]
    return next((line for line in lines if line.endswith(phrases.GONE_ENDS)), "")


def _shell(case: Case) -> Found | None:
    sight = case.sight
    if (
        case.data
        or sight.cells
        or not case.scripts
        or not case.little(SHELL)
        or sight.parts >= RECORD_PARTS
    ):
        return None
    asks = "javascript" in case.noscript
    waits = sight.parts <= 3 or bool(holds(case.words, phrases.WAITING)) or not sight.headings
    bare = not sight.own and sight.linked < 30 and not sight.images and not sight.frames
    if (sight.mounts and (waits or asks)) or (asks and case.little(80)) or bare:
        signs = (
            "an empty element for a script to fill" * bool(sight.mounts),
            "a request for JavaScript" * asks,
        )
        return Found(
            "empty_shell", (*filter(None, signs), f"{case.scripts} scripts", case.amount())
        )
    return None


def _thin(case: Case) -> Found:
    sight = case.sight
    evidence = (case.amount(), f"{sight.cells} cells", f"{sight.links} links")
    # A Chinese or Japanese character says as much as two or three letters.
    wide = 0 if (text := sight.text).isascii() else sum(sign >= "⺀" for sign in text)
    size = sight.own + sight.linked + 2 * wide
    few = size < THIN and sight.parts + sight.links < RECORD_PARTS
    return Found("thin" if few and not case.is_record else "ok", evidence)


def _refused_login(case: Case) -> Found | None:
    """A login form with a status that asks for one; a browser's own dialogue is no page."""
    if case.status not in (401, 403) or "www-authenticate" in case.headers:
        return None
    return _login(case)


_WALLS: tuple[Rule, ...] = (_vendor_markup, _vendor_words)
_RULES: tuple[Rule, ...] = (
    *_WALLS,
    _parked,
    _login,
    _captcha,
    _rate_limited,
    _refused,
    _consent,
    _maintenance,
    _error,
    _soft_404,
    _shell,
    _thin,
)
_ERROR_RULES: tuple[Rule, ...] = (
    *_WALLS,
    _refused_login,
    _captcha,
    _rate_limited,
    _refused,
    _maintenance,
)
