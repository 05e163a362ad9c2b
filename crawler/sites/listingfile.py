"""The key `listings` of a site's file: what identifies a listing, and what counts as a change."""

from collections.abc import Iterator

import msgspec

from crawler import times
from crawler.models import CountedFields
from crawler.sites.fieldfile import MAX_WORDS, checked_field_names
from crawler.sites.yamlfile import Checks, Node, Wrong, checked, mapping, need, text_check, text_of

URL = "url"
"""The key that means the address of the page, where no field has this name."""
MIN_SPAN_S, MAX_SPAN_S = 60.0, 3650 * 86_400.0
_MAX_DOUBLINGS = 40


class Match(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a record that each part of its fingerprint is read from."""

    locality: tuple[str, ...] = ("locality",)  # city, town or village
    address: tuple[str, ...] = ("address",)  # quarter, street, number
    area: tuple[str, ...] = ("area",)
    rooms: tuple[str, ...] = ("rooms",)  # without one: from words of the text
    floor: tuple[str, ...] = ("floor",)
    text: tuple[str, ...] = ("title", "description")
    images: tuple[str, ...] = ("images",)


_NO_MATCH = Match()
"""What holds for a site that does not say it."""


class Listings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which records are listings, and how they are followed over time."""

    key: tuple[str, ...]
    each: str = ""  # the field whose records are the listings; without it, the page's record is one
    changes: tuple[str, ...] = ()  # the fields that count as a change; without them, all
    ignore: tuple[str, ...] = ()  # … or all but these
    price: str = "price"
    sold: dict[str, tuple[str, ...]] = {}  # by field: the values that mean sold
    recrawl: float | None = None  # seconds; without it, every crawl fetches every listing
    recrawl_max: float = 30 * 86_400.0
    match: Match = _NO_MATCH

    @property
    def counted(self) -> CountedFields:
        """The fields that count as a change."""
        return CountedFields(self.changes, self.ignore)

    @property
    def named_fields(self) -> Iterator[tuple[str, str]]:
        """The keys of the file that name fields of a listing, each with one of its fields."""
        given = {"key": self.key, "changes": self.changes, "ignore": self.ignore}
        given |= {"sold": tuple(self.sold), "price": (self.price,) * (self.price != "price")}
        for name in Match.__struct_fields__:
            fields = getattr(self.match, name)
            given[f"match: {name}"] = fields * (fields != getattr(_NO_MATCH, name))
        return ((key, field) for key, fields in given.items() for field in fields)

    def interval(self, unchanged: int) -> float:
        """Return the seconds until a listing is fetched again, after so many fetches that changed
        nothing; 0 where every crawl fetches it."""
        if self.recrawl is None:
            return 0.0
        return float(min(self.recrawl * 2 ** min(unchanged, _MAX_DOUBLINGS), self.recrawl_max))


def checked_listings(node: Node) -> Listings:
    """Check the key `listings`."""
    entries = mapping("listings", node)
    given = checked(entries, Listings, " in listings", _CHECKS)
    need(given, "key", "listings", node)
    if "changes" in given and "ignore" in given:
        reason = "changes and ignore are two ways to say the same; only one can be here"
        raise Wrong(f"listings: {reason}", entries["ignore"][0])
    if "recrawl_max" in given and "recrawl" not in given:
        raise Wrong("listings: recrawl_max goes with recrawl", entries["recrawl_max"][0])
    found = Listings(**given)
    if found.recrawl is not None and found.recrawl > found.recrawl_max:
        raise Wrong("listings: recrawl is more than recrawl_max", entries["recrawl"][0])
    return found


def _span(text: str) -> float:
    seconds = times.span(text)
    if seconds is None or not MIN_SPAN_S <= seconds <= MAX_SPAN_S:
        raise ValueError("must be a span from 1m to 3650d, such as 12h or 1d")
    return seconds


def _sold(node: Node) -> dict[str, tuple[str, ...]]:
    entries = mapping("sold", node, MAX_WORDS)
    return {name: checked_field_names("sold", value) for name, (_, value) in entries.items()}


def _match(node: Node) -> Match:
    return Match(**checked(mapping("match", node), Match, " in match", _MATCH_CHECKS))


def _names(key: str) -> "Checks":
    return {key: lambda node: checked_field_names(key, node)}


_MATCH_CHECKS: Checks = {
    key: check for name in Match.__struct_fields__ for key, check in _names(name).items()
}
_CHECKS: Checks = {
    **_names("key"),
    **_names("changes"),
    **_names("ignore"),
    "each": lambda node: text_of("each", node),
    "price": lambda node: text_of("price", node),
    "sold": _sold,
    "recrawl": text_check("recrawl", _span),
    "recrawl_max": text_check("recrawl_max", _span),
    "match": _match,
}
