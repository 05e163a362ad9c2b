"""The requests of Firecrawl's v2 dialect: their fields, and what this server makes of each.

An option that would change what a page is, or promises something that this server does not do, is
refused. One without effect here is accepted with a warning.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from crawler.api.firecrawl_actions import Actions, Milliseconds, steps_of
from crawler.batches import BatchOptions, Format
from crawler.errors import UsageError
from crawler.render_options import RenderOptions, Step

EXAMPLE_URL = "https://example.com/"
MAX_URLS = 10_000
MAX_TEXT = 10_000
SCRAPE_S, MAP_S = 60.0, 60.0
"""How long a client waits that says nothing else."""
MAX_WAIT_MS = 300_000
MAX_PAGES = 100_000

_SCHEME = re.compile(r"\s*[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def _with_scheme(url: str) -> str:
    """Return a URL with the scheme that a browser would add."""
    if not url.strip() or _SCHEME.match(url):
        return url
    return f"http://{url.strip()}"


Text = Annotated[str, Field(max_length=MAX_TEXT)]
Url = Annotated[Text, AfterValidator(_with_scheme)]
Patterns = Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=100)]
Sitemap = Literal["skip", "include", "only"]
FormatName = Literal[
    "markdown", "html", "rawHtml", "links", "images", "screenshot", "screenshot@fullPage",
    "summary", "json", "changeTracking", "attributes", "branding", "product", "menu", "query",
    "question", "highlights", "audio", "video", "rawBase64",
]  # fmt: skip
_FORMATS: dict[str, Format] = {
    "markdown": "markdown",
    "html": "html",
    "rawHtml": "html",
    "links": "links",
    "screenshot": "screenshot",
    "screenshot@fullPage": "screenshot",
}
"""The formats that there are, and what results call them."""
_BY_MODEL = "needs a language model, which this server does not have"
_WHOLE_PAGE = "screenshot shows the whole page, as wide as 1,280 pixels"
_NO_BROWSER = "it needs a browser, and this server has none"
_WHY_NO_FORMAT = {
    "json": _BY_MODEL,
    "summary": _BY_MODEL,
    "query": _BY_MODEL,
    "question": _BY_MODEL,
    "highlights": _BY_MODEL,
    "changeTracking": "is not there; `listings changes` has the changes of sites with a file",
}


def _example(body: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"example": body})


class FirecrawlProblem(BaseModel):
    """Why a request was refused, or a page is not there."""

    success: Literal[False]
    error: str
    code: str | None = None
    details: dict[str, Any] | None = None


class Request(BaseModel):
    """A body. Names are in camel case, and unknown ones are an error."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", strict=True, frozen=True, populate_by_name=False
    )

    @model_validator(mode="before")
    @classmethod
    def _check_characters(cls, given: Any) -> Any:
        """Refuse halves of characters, which JSON can express and nothing can store."""
        try:
            json.dumps(given, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise ValueError("a text has half of a character") from None
        except RecursionError:
            raise ValueError("it is nested too deep") from None
        return given


class FormatObject(BaseModel):
    """A format with settings of its own, which belong to formats that are not there."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    type: FormatName


class WebhookObject(Request):
    """Where to tell of pages."""

    url: Text
    headers: dict[str, str] | None = None
    metadata: dict[str, str] | None = None
    events: list[Literal["completed", "failed", "page", "started"]] | None = None


class ScrapeOptions(Request):
    """How a page is fetched, and what is wanted of it."""

    formats: Annotated[list[FormatName | FormatObject], Field(max_length=20)] | None = None
    headers: dict[str, str] | None = None
    only_main_content: bool | None = None
    max_age: Annotated[int, Field(ge=0)] | None = None
    timeout: Annotated[int, Field(ge=1000, le=MAX_WAIT_MS)] | None = None
    remove_base64_images: bool | None = None
    wait_for: Milliseconds | None = None
    actions: Actions | None = None
    # Without effect here, and nobody is worse off.
    block_ads: bool | None = None
    fast_mode: bool | None = None
    integration: Text | None = None
    origin: Text | None = None
    # Without effect here, with a warning.
    include_tags: list[Text] | None = None
    exclude_tags: list[Text] | None = None
    mobile: bool | None = None
    parsers: list[Text | dict[str, Any]] | None = None
    location: dict[str, Any] | None = None
    skip_tls_verification: bool | None = None
    use_mock: Text | None = None
    proxy: Text | None = None
    min_age: Annotated[int, Field(ge=0)] | None = None
    store_in_cache: bool | None = None
    profile: dict[str, Any] | None = None
    audit_metadata: dict[str, Any] | None = None
    domain_tools: bool | None = None
    tool_detail: Text | None = None
    # Refused.
    lockdown: bool | None = None
    redact_pii: bool | dict[str, Any] | None = Field(default=None, alias="redactPII")
    check_prompt_injection: bool | None = None
    threat_protection: dict[str, Any] | None = None


class ScrapeBody(ScrapeOptions):
    """`POST /v2/scrape`."""

    model_config = _example({"url": EXAMPLE_URL, "formats": ["markdown"], "maxAge": 60000})

    url: Url
    zero_data_retention: bool | None = None


class BatchBody(ScrapeOptions):
    """`POST /v2/batch/scrape`."""

    model_config = _example({"urls": [EXAMPLE_URL], "formats": ["markdown", "links"]})

    urls: Annotated[list[Url], Field(min_length=1, max_length=MAX_URLS)]
    append_to_id: Annotated[str, Field(max_length=100)] | None = None
    ignore_invalid_urls: bool = Field(default=True, alias="ignoreInvalidURLs")
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    webhook: Text | WebhookObject | None = None
    zero_data_retention: bool | None = None


class CrawlBody(Request):
    """`POST /v2/crawl`."""

    model_config = _example({"url": EXAMPLE_URL, "limit": 10, "includePaths": ["^/docs/"]})

    url: Url
    limit: Annotated[int, Field(ge=1, le=MAX_PAGES)] = 10_000
    include_paths: Patterns | None = None
    exclude_paths: Patterns | None = None
    regex_on_full_url: bool = Field(default=False, alias="regexOnFullURL")
    max_discovery_depth: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    sitemap: Sitemap = "include"
    crawl_entire_domain: bool = False
    allow_subdomains: bool = False
    ignore_robots_txt: bool = False
    delay: Annotated[float, Field(ge=0, le=3600)] | None = None
    scrape_options: ScrapeOptions | None = None
    integration: Text | None = None
    origin: Text | None = None
    ignore_query_parameters: bool | None = None
    deduplicate_similar_urls: bool | None = Field(default=None, alias="deduplicateSimilarURLs")
    robots_user_agent: Text | None = None
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    webhook: Text | WebhookObject | None = None
    allow_external_links: bool | None = None
    prompt: Text | None = None
    zero_data_retention: bool | None = None


class MapBody(Request):
    """`POST /v2/map`."""

    model_config = _example({"url": EXAMPLE_URL, "search": "docs"})

    url: Url
    search: Annotated[str, Field(max_length=1000)] | None = None
    sitemap: Sitemap = "include"
    include_subdomains: bool = True
    ignore_query_parameters: bool = True
    limit: Annotated[int, Field(ge=1, le=MAX_PAGES)] = 5000
    timeout: Annotated[int, Field(ge=1000, le=MAX_WAIT_MS)] | None = None
    integration: Text | None = None
    origin: Text | None = None
    location: dict[str, Any] | None = None
    audit_metadata: dict[str, Any] | None = None
    threat_protection: dict[str, Any] | None = None


REFUSED = {
    "lockdown": "this server has no cache that answers without fetching; use maxAge",
    "redactPII": "this server does not redact pages",
    "checkPromptInjection": "this server does not check pages for that",
    "threatProtection": "this server has no such service",
    "zeroDataRetention": "this server stores every page that it collects",
    "allowExternalLinks": "a crawl stays on its own hosts; begin one for each of the others",
    "prompt": f"finding options for a crawl {_BY_MODEL}",
}
"""Options that are refused if they are set, and why."""
_NO_EFFECT = {
    "includeTags": "pages are converted as a whole, or by their main content",
    "excludeTags": "pages are converted as a whole, or by their main content",
    "mobile": "pages are shown as on a large screen",
    "parsers": "files such as PDF are stored as they are",
    "location": "pages are fetched from where this server is",
    "skipTlsVerification": "certificates are always checked",
    "useMock": "this server has no recorded pages",
    "minAge": "only maxAge chooses between a stored and a new page",
    "profile": "each page has a browser of its own",
    "auditMetadata": "this server sends no audit log",
    "domainTools": "this server has no such service",
    "toolDetail": "this server has no such service",
    "maxConcurrency": "the rate of each domain limits its requests",
    "robotsUserAgent": "robots.txt is read for this crawler's own name",
    "ignoreQueryParameters": "each URL is a page of its own; leave some out with excludePaths",
    "webhook": "this server sends no webhooks in this dialect; use the WebSocket or the status",
}
"""Options without effect if they are set, and why."""


class Understood(NamedTuple):
    """What a request means for this server."""

    options: BatchOptions
    formats: tuple[str, ...]
    """As the dialect calls them."""
    warnings: tuple[str, ...]
    keeps_images: bool
    """Whether images that are part of the page stay in its Markdown."""

    @property
    def warning(self) -> str:
        """All warnings as one text."""
        return "; ".join(self.warnings)

    @property
    def notes(self) -> dict[str, Any]:
        """What is kept with the job, to show its documents later."""
        return {
            "v2_formats": self.formats,
            "warning": self.warning,
            "keeps_images": self.keeps_images,
        }


def understand(
    scrape: ScrapeOptions | None,
    *bodies: Request,
    kind: str,
    has_browser: Callable[[], bool] = lambda: False,
) -> Understood:
    """Return what a request means; raises `UsageError` for what is refused."""
    scrape = scrape or ScrapeOptions()
    given: dict[str, Any] = {}
    for body in (*bodies, scrape):
        given |= body.model_dump(by_alias=True, exclude_none=True, exclude_unset=True)
    for name, why in REFUSED.items():
        if given.get(name):
            raise UsageError(f"{name} is not supported: {why}")
    formats, warnings = _formats(scrape, has_browser)
    steps, more = _steps(scrape, has_browser)
    warnings += [*_warnings(given, kind), *more]
    wanted = dict.fromkeys(_FORMATS[name] for name in formats)
    options = BatchOptions(
        formats=("record", *wanted),
        only_main_content=scrape.only_main_content is not False,
        headers=scrape.headers or {},
        browser=RenderOptions(steps=steps) if steps else None,
        ignore_robots=bool(given.get("ignoreRobotsTxt")),
    )
    return Understood(options, formats, tuple(warnings), scrape.remove_base64_images is False)


def _steps(
    scrape: ScrapeOptions, has_browser: Callable[[], bool]
) -> tuple[tuple[Step, ...], list[str]]:
    """Return what a browser is to do, and warnings. Without one, only waiting is left out."""
    steps, warnings = steps_of(scrape.wait_for or 0, scrape.actions or ())
    if not steps or has_browser():
        return steps, warnings
    if scrape.actions:
        raise UsageError(f"actions is not supported: {_NO_BROWSER}")
    return (), [f"waitFor has no effect: {_NO_BROWSER}"]


def _formats(
    scrape: ScrapeOptions, has_browser: Callable[[], bool]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the formats that there are, and a warning for each other one. One at least must be
    there."""
    asked = scrape.formats if scrape.formats is not None else ["markdown"]
    names = list(dict.fromkeys(each if isinstance(each, str) else each.type for each in asked))
    pictures = [name for name in names if _FORMATS.get(name) == "screenshot"]
    why = dict(_WHY_NO_FORMAT)
    if pictures and not has_browser():
        why |= dict.fromkeys(pictures, f"cannot be made: {_NO_BROWSER}")
    known = tuple(name for name in names if name in _FORMATS and name not in why)
    lacking = [
        f"the format {name} {why.get(name, 'is not there')}" for name in names if name not in known
    ]
    if lacking and not known:
        there = ", ".join(name for name in _FORMATS if name not in why)
        raise UsageError(f"{lacking[0]}; there are {there}")
    is_made = set(pictures) <= set(known)
    if is_made and not all(map(_is_of_whole_page, asked)):
        lacking.append(_WHOLE_PAGE)
    return known, lacking


def _is_of_whole_page(given: str | FormatObject) -> bool:
    """Whether a format is no screenshot, or one as this server makes them."""
    if isinstance(given, str):
        return given != "screenshot"
    more = given.model_extra or {}
    is_as_made = more.get("fullPage") is True and not more.keys() & {"quality", "viewport"}
    return given.type != "screenshot" or is_as_made


def _warnings(given: Mapping[str, Any], kind: str) -> list[str]:
    found = [f"{name} has no effect: {why}" for name, why in _NO_EFFECT.items() if given.get(name)]
    if given.get("proxy") in ("stealth", "enhanced"):
        found.append("proxy has no effect: the operator of this server sets its proxies")
    if given.get("storeInCache") is False:
        found.append("storeInCache has no effect: every page is stored")
    if given.get("deduplicateSimilarURLs") is False:
        found.append("deduplicateSimilarURLs has no effect: a page is fetched once in a crawl")
    if kind != "scrape" and given.get("maxAge"):
        found.append("maxAge has no effect on jobs: each page is fetched")
    if kind != "scrape" and given.get("timeout"):
        found.append("timeout has no effect on jobs: each page has the server's own limit")
    return found
