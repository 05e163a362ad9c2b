"""Reads prices, areas, floors and known words as people write them."""

import re
from functools import lru_cache
from itertools import islice
from typing import Any

from crawler.sites.values import ANY_LOCALE, Locale, amounts, plain

MAX_NUMBERS = 20  # numbers of a text among which the one with a unit is looked for

_CURRENCIES = {
    "AUD": "A$ AU$",
    "BGN": "лв лева лев leva lev",
    "BRL": "R$",
    "CAD": "C$ CA$",
    "CHF": "sfr fr franken francs",
    "CNY": "元 CN¥ rmb yuan",
    "CZK": "kč",
    "EUR": "€ euro euros евро",
    "GBP": "£ pound pounds паунд паунда",
    "HKD": "HK$",
    "HUF": "ft forint",
    "ILS": "₪",
    "INR": "₹ rs rupees",
    "JPY": "¥ 円 yen",
    "KRW": "₩ 원",
    "KZT": "₸",
    "MXN": "MX$",
    "NZD": "NZ$",
    "PLN": "zł złotych",
    "RON": "lei leu",
    "RUB": "₽ руб рубля рублей рубли",
    "THB": "฿",
    "TRY": "₺ tl lira",
    "UAH": "₴ грн",
    "USD": "$ US$ dollar dollars долар долара долари доллар доллара долларов",
}
"""The signs and words of a currency, by its code. `kr` is left out: it has three meanings."""
_OTHER_CODES = "AED ARS BYN CLP COP DKK NOK PHP RSD SAR SEK SGD VND ZAR"
_SMALL_CODES = frozenset({"EUR", "USD", "BGN", "GBP", "CHF", "RUB", "PLN", "RON", "CZK"})
"""Codes that are no words, so that they count in lower case too; `try` and `all` are words."""
_ROUND = r"\s*(?:[.,]?[-–—])?\s*"  # between an amount and its currency, as in 1.200,- €


@lru_cache
def currencies() -> dict[str, str]:
    """Return the codes of currencies by the signs, words and codes that name them."""
    by_word: dict[str, str] = {}
    for code, words in _CURRENCIES.items():
        by_word |= {word.casefold(): code for word in words.split()}
    codes = [*_CURRENCIES, *_OTHER_CODES.split()]
    return by_word | {code.casefold(): code for code in codes}


@lru_cache
def _currency() -> str:
    """Return the expression of all that names a currency; letters make whole words."""
    codes = {code.casefold(): code for code in (*_CURRENCIES, *_OTHER_CODES.split())}
    signs, words = [], []
    for word in sorted(currencies(), key=len, reverse=True):
        code = codes.get(word, "")
        if code and code not in _SMALL_CODES:
            words.append(f"(?-i:{code})")
        elif word[-1].isalpha() and word not in "円元원":
            words.append(re.escape(word))
        else:
            signs.append(rf"(?<![^\W\d_]){re.escape(word)}")
    named = "|".join(words)
    return rf"((?i:{'|'.join(signs)}|(?<![^\W\d_])(?:{named})(?![^\W\d_])))"


@lru_cache
def _currency_places() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return what finds a currency behind a number, before it, and anywhere."""
    named = _currency()
    return (
        re.compile(rf"{_ROUND}{named}"),
        re.compile(rf"{named}\.?:?\s*[-–]?\s*\Z"),
        re.compile(named),
    )


def price(text: str, locale: Locale = ANY_LOCALE, unit: str = "") -> dict[str, Any] | None:
    """Return amount and currency of the first number beside a currency, or of the first number.

    `unit` is the currency of a text that names none.
    """
    behind, before, anywhere = _currency_places()
    first: int | float | None = None
    for at, amount in enumerate(islice(amounts(text, locale), MAX_NUMBERS)):
        found = behind.match(amount.behind) or before.search(amount.before)
        if found and amount.value is not None:
            return {"amount": amount.value, "currency": currencies()[found[1].casefold()]}
        if at == 0:
            first = amount.value
    if first is None:
        return None
    found = anywhere.search(text)
    code = currencies()[found[1].casefold()] if found else unit
    return {"amount": first, "currency": code or None}


# Areas.

_SQUARE = r"(?:sq(?:uare)?\.?|кв\.?|Quadrat)\s?"
_TWO = r"\s?(?:²|\^?2)(?!\d)"
_AREAS = {
    1.0: rf"(?:m|м){_TWO}|㎡|平米|sqm|qm|{_SQUARE}(?:met(?:er|re)s?|m|метр\w*|м)",
    0.09290304: rf"ft{_TWO}|sqft|sf|{_SQUARE}(?:feet|foot|ft|фут\w*)",
    0.83612736: rf"yd{_TWO}|{_SQUARE}(?:yards?|yd)",
    100.0: r"сот(?:ка|ки|ок)|ара?|ares?",
    1_000.0: r"дка|dka|декар[аи]?|dekar|decares?|dunams?",
    4046.8564224: r"acres?|ac|акър[аи]?|акра?|акров",
    10_000.0: r"ha|hectares?|hektar|ha|хектар[аи]?|га|гектар\w*",
    1_000_000.0: rf"(?:km|км){_TWO}|{_SQUARE}(?:km|км|kilomet(?:er|re)s?)",
    2_589_988.110336: rf"{_SQUARE}(?:miles?|mi)",
}
"""Square metres of each unit, and what names it."""


@lru_cache
def _unit_of_area() -> re.Pattern[str]:
    """Return what finds a unit; its group is the unit's number in the table."""
    units = "|".join(f"({names})" for names in _AREAS.values())
    return re.compile(rf"(?<![^\W\d_])(?:{units})(?![^\W_])", re.IGNORECASE)


def _factor(found: re.Match[str]) -> float:
    return list(_AREAS)[(found.lastindex or 1) - 1]


def unit_of_area(text: str) -> float:
    """Return the square metres of a unit, such as `acres`; raises `ValueError`."""
    found = _unit_of_area().fullmatch(text.strip().rstrip("."))
    if not found:
        raise ValueError(f"{text[:60]!r} is no unit of area; known are m², sq ft, acres, ha, дка")
    return _factor(found)


def area(text: str, locale: Locale = ANY_LOCALE, unit: str = "") -> int | float | None:
    """Return the square metres of the first number with a unit, or of the first number.

    `unit` is that of a text that names none; without it, square metres are meant.
    """
    units = _unit_of_area()
    locale = locale._replace(spaced=True)  # as in a sum of money: 1 200 sq ft are no 200
    first: int | float | None = None
    for at, amount in enumerate(islice(amounts(text, locale), MAX_NUMBERS)):
        found = units.match(amount.behind.lstrip(" -"))
        if found and amount.value is not None:
            return _square_metres(amount.value, _factor(found))
        if at == 0:
            first = amount.value
    if first is None:
        return None
    found = units.search(text)
    factor = _factor(found) if found else unit_of_area(unit or "m²")
    return _square_metres(first, factor)


def _square_metres(value: int | float, factor: float) -> int | float:
    metres = round(value * factor, 2)
    return int(metres) if metres == int(metres) else metres


# Floors.

_FLOOR = (
    r"(?:етаж\w*|ет\.|ет\b|floor|flr?\b\.?|stor(?:e?y|ies)|level|etage|stock(?:werk)?|og\b"
    r"|(?:ober)?geschoss|этаж\w*|эт\b\.?|piso|planta|étage|piano|piętro)"
)
_TOTAL = r"(?:\s*(?:[/\\]|(?:от(?:\s+общо)?|out\s+of|of|von|из|de|sur|su|di|z)\s)\s*(\d{1,3}))"
_ORDINAL = r"(?:\s?-?\s?(?:ви|ри|ти|ми|st|nd|rd|th|er|[ºª°]|-?[йя]))?\.?"
_NUMBERED = rf"(-?\d{{1,3}}){_ORDINAL}"
_OF_TOTAL = re.compile(
    rf"(?<![\d.,/]){_NUMBERED}\s*(?:{_FLOOR})?,?{_TOTAL}(?![\d.,]*[\d/])", re.IGNORECASE
)
_BESIDE_FLOOR = re.compile(
    rf"(?<!\w){_FLOOR}\s*[:№#-]?\s*(-?\d{{1,3}})(?!\d)|(?<![\d.,/]){_NUMBERED}\s?{_FLOOR}",
    re.IGNORECASE,
)
_ALONE = re.compile(rf"\s*{_NUMBERED}\s*", re.IGNORECASE)
_NAMED_FLOORS = (
    (-1, r"сутерен|basement|souterrain|untergeschoss|lower\s+ground|подземен|подвал|s[oó]tano|ug"),
    (0, r"партер|ground|erdgeschoss|parterre?|rez[ -]de[ -]chauss[ée]e|planta\s+baja|кота\s+0|eg"),
)


@lru_cache
def _named_floors() -> list[tuple[int, re.Pattern[str]]]:
    return [
        (number, re.compile(rf"(?<!\w)(?:{names})(?!\w)(?:[ -]?{_FLOOR})?,?{_TOTAL}?", re.I))
        for number, names in _NAMED_FLOORS
    ]


def floor(text: str) -> dict[str, int | None] | None:
    """Return the floor and how many there are: `2/6`, `5-ти от 5`, `партер`, `3rd floor of 7`."""
    if found := _OF_TOTAL.search(text):
        return _floors(int(found[1]), int(found[2]))
    for number, pattern in _named_floors():
        if found := pattern.search(text):
            return _floors(number, int(found[1]) if found[1] else None)
    if found := _BESIDE_FLOOR.search(text) or _ALONE.fullmatch(text):
        return _floors(int(found[1] or found[2]), None)
    return None


def _floors(number: int, floors: int | None) -> dict[str, int | None] | None:
    if floors is not None and number > floors:
        return None  # one of the two is something else
    return {"floor": number, "floors": floors}


# Known words.


@lru_cache(maxsize=10_000)
def _begins(words: tuple[str, ...]) -> re.Pattern[str]:
    """Return what finds words where a word begins; they may have other endings."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(re.escape(plain(word)) for word in words)})")


def has_keyword(text: str, words: tuple[str, ...]) -> bool:
    """Say whether one of the words occurs, in any case, with or without accents and endings."""
    return bool(_begins(words).search(plain(text)))


def enum(text: str, meanings: dict[str, str]) -> str | None:
    """Return the meaning of the text, or of the first of the known texts that occurs in it."""
    folded = plain(text)
    for known, meaning in meanings.items():
        if plain(known) == folded:
            return meaning
    for known, meaning in meanings.items():
        if _begins((known,)).search(folded):
            return meaning
    return None
