"""Which links a crawl follows: its scope, and guards against sites without end."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime

from crawler.models import CrawlOptions
from crawler.sites.selectors import pattern
from crawler.urls import split

OUT = "out of scope"
MAX_URL_LENGTH = 2_000
MAX_SAME_SEGMENTS = 3
"""How often a path may have the same segment, or sequence of segments."""
YEARS_BACK, YEARS_AHEAD = 100, 1
"""The part of a calendar that is followed."""
_UNREAD_TYPES = (
    "7z apk avi bin bz2 deb dmg eot exe flac flv gz iso jar m4a m4v mkv mov mp3 mp4 mpeg mpg"
    " msi ogg ogv otf pkg rar rpm swf tar tgz ttf wav webm wma wmv woff woff2 xz zip zst"
)
_UNREAD = frozenset(_UNREAD_TYPES.split())
"""Endings of files that are no pages and often large."""
_DOCUMENT_TYPES = (
    "bmp csv doc docx gif ico jpeg jpg json ods odt pdf png ppt pptx rtf svg tif tiff txt webp xls"
    " xlsx xml"
)
_DOCUMENTS = frozenset(_DOCUMENT_TYPES.split())
"""Endings of files that are stored, but have no links."""
_ENDING = re.compile(r"\.([a-z0-9]{2,5})\Z", re.IGNORECASE)
_SESSION_NAMES = re.compile(
    r"jsessionid|phpsessid|aspsessionid\w*|asp\.net_sessionid|cfid|cftoken|oscsid|zenid",
    re.IGNORECASE,
)
_MAYBE_SESSION_NAMES = frozenset(
    {"sid", "s", "session", "sess", "psid", "sessionid", "session_id", "sessid"}
)
_TOKEN = re.compile(r"(?=.*\d)(?=.*[a-z])[\w-]{16,}", re.IGNORECASE)
_SESSION_IN_PATH = re.compile(
    r";(?:jsessionid|sid|phpsessid)=[^/?;]*|/\((?:[A-Z]\([^)/]*\))+\)(?=/)", re.IGNORECASE
)
_DATE_NAME = re.compile(
    r"(?:cal(?:endar)?[_-]?)?(?:date|month|year|day|week|yearmonth|ym)|cal(?:endar)?"
    r"|tribe-bar-date",
    re.IGNORECASE,
)
"""Parameters of calendars. Others, such as `saledate` and `yearbuilt`, are data."""
_YEAR = re.compile(r"(?<!\d)(?:\d{1,2}[-/.])?(1\d{3}|[2-9]\d{3})(?:[-/.]?\d{2}){0,2}(?!\d)")
_SECONDS = re.compile(r"\d{9,11}")
_CALENDAR_PATH = re.compile(
    r"(?:^|/)(?:[\w-]*calendar|events?|agenda|schedule|kalender|календар)(?:/|$).*?"
    r"(?<!\d)(\d{4})[-/]\d{1,2}(?!\d)",
    re.IGNORECASE,
)


class Scope:
    """The scope of one crawl. URLs are in normal form."""

    def __init__(self, options: CrawlOptions, clock: Callable[[], float] = time.time) -> None:
        self._hosts = {_without_www(host) for host in options.hosts if not host.startswith("*.")}
        self._suffixes = tuple(host[1:] for host in options.hosts if host.startswith("*."))
        self._include = [pattern(text) for text in options.include]
        self._exclude = [pattern(text) for text in options.exclude]
        self._on_path, self._below = options.on_path, options.below
        self._clock = clock
        self._authorities: dict[str, bool] = {}

    def refuses(self, url: str, is_start: bool = False) -> str:
        """Return the guard that leaves a URL out, or `OUT`; empty if the URL is followed. A start
        need not fit the patterns."""
        authority, _, tail = url.partition("://")[2].partition("/")
        if not self._has(authority) or not (is_start or self._fits_patterns(url)):
            return OUT
        if len(url) > MAX_URL_LENGTH:
            return "url_length"
        path, _, query = tail.partition("?")
        if is_unread_file(path):
            return "file_type"
        if _repeats(path):
            return "repeated_path"
        if self._is_beyond_calendar(path, query):
            return "calendar"
        return ""

    def covers(self, url: str) -> bool:
        """Return whether a URL lies within the hosts and the patterns of the crawl."""
        return self.has_host(url) and self._fits_patterns(url)

    def _fits_patterns(self, url: str) -> bool:
        if self._on_path or self._below:
            path = "/" + split(url)[4].partition("?")[0]
            if not path.startswith(self._below):
                return False
            if self._on_path:
                url = path
        if self._include and not any(each.search(url) for each in self._include):
            return False
        return not (self._exclude and any(each.search(url) for each in self._exclude))

    def has_host(self, url: str) -> bool:
        """Return whether a URL lies within the hosts of the crawl."""
        return self._has(split(url)[1])

    def _has(self, authority: str) -> bool:
        known = self._authorities.get(authority)
        if known is None:
            if len(self._authorities) > 10_000:
                self._authorities.clear()
            known = self._authorities[authority] = self._is_host(authority)
        return known

    def _is_host(self, authority: str) -> bool:
        host = split(f"http://{authority}/")[2]
        if _without_www(authority) in self._hosts or host.endswith(self._suffixes):
            return True
        return f"{_without_www(host)}:*" in self._hosts

    def _is_beyond_calendar(self, path: str, query: str) -> bool:
        """Return whether a URL shows a part of a calendar that is too far away."""
        years = [int(found) for found in _CALENDAR_PATH.findall(path)]
        for pair in query.split("&") if query else ():
            name, _, value = pair.partition("=")
            if not value or not _DATE_NAME.fullmatch(name):
                continue
            if _SECONDS.fullmatch(value):
                years.append(datetime.fromtimestamp(int(value), UTC).year)
            elif found := _YEAR.search(value):
                years.append(int(found[1]))
        if not years:
            return False
        now = datetime.fromtimestamp(self._clock(), UTC).year
        return not all(now - YEARS_BACK <= year <= now + YEARS_AHEAD for year in years)


def _without_www(authority: str) -> str:
    return authority.removeprefix("www.")


def ending(path: str) -> str:
    """Return the ending of a path's file name in lower case, without its dot."""
    found = _ENDING.search(path)
    return found[1].lower() if found else ""


def is_unread_file(path: str) -> bool:
    """Return whether a path names a file of a type that is not fetched."""
    return ending(path) in _UNREAD


def is_document(path: str) -> bool:
    """Return whether a path names a file that is stored, but has no links."""
    return ending(path) in _DOCUMENTS


def _repeats(path: str) -> bool:
    """Return whether a path goes in circles, as links relative to a wrong base do."""
    if path.count("/") < MAX_SAME_SEGMENTS:
        return False
    segments = [each for each in path.split("/") if each]
    if len(segments) <= MAX_SAME_SEGMENTS:
        return False
    return any(segments.count(each) > MAX_SAME_SEGMENTS for each in set(segments))


def without_session(url: str) -> str:
    """Return a URL without the parameters that name a visitor's session."""
    page, mark, query = url.partition("?")
    if ";" in page or "/(" in page:
        page = _SESSION_IN_PATH.sub("", page)
    if not query:
        return page + mark
    kept = [pair for pair in query.split("&") if not _names_session(pair)]
    return page + "?" * bool(kept) + "&".join(kept)


def _names_session(pair: str) -> bool:
    name, _, value = pair.partition("=")
    if _SESSION_NAMES.fullmatch(name):
        return True
    return name.lower() in _MAYBE_SESSION_NAMES and bool(_TOKEN.fullmatch(value))
