"""The text of a page as values: numbers, dates and answers as people write them."""

import re
from datetime import date

MAX_DIGITS = 30

_CURRENCY = "$€£¥"
_NUMBER = re.compile(rf"(\()?([-−–+]?)\s?([{_CURRENCY}]?)\s?([-−]?)(\d[\d.,'’]*)")
_SPACED = re.compile(rf"([-−]?)\s?[{_CURRENCY}]?\s?(\d{{1,3}}(?: \d{{3}})+(?:[.,]\d+)?)\s?[{_CURRENCY}]?")
_SCALE = re.compile(r"\s?(?:(k)|(m|million|mio)|(b|bn|billion))\b", re.IGNORECASE)
_COMMAS = re.compile(r"\d{1,3}(?:,\d{2,3})*,\d{3}")
_DOTS = re.compile(r"\d{1,3}(?:\.\d{3})+")
_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_NAME = r"([A-Za-z]{3,9})\.?"
_DATES = (
    (re.compile(r"(?<!\d)(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?!\d)"), (1, 3, 4)),
    (re.compile(r"(?<!\d)(\d{1,2})\.\s?(\d{1,2})\.\s?(\d{4})(?!\d)"), (3, 2, 1)),
    (re.compile(rf"{_NAME}\s(\d{{1,2}})(?:st|nd|rd|th)?,?\s(\d{{4}})(?!\d)"), (3, 1, 2)),
    (re.compile(rf"(?<!\d)(\d{{1,2}})(?:st|nd|rd|th|\.)?[\s-](?:of\s)?{_NAME},?[\s-](\d{{4}})(?!\d)"), (3, 2, 1)),
    (re.compile(r"^(\d{4})(\d{2})(\d{2})(?:T\d{4,6}Z?)?$"), (1, 2, 3)),
)
_SLASHED = re.compile(r"(?<!\d)(\d{1,2})([/-])(\d{1,2})\2(\d{4})(?!\d)")
_YES = frozenset({"yes", "y", "true", "t", "1", "on", "x", "✓", "✔", "checked"})
_NO = frozenset({"no", "n", "false", "f", "0", "off", "✗", "✘", "unchecked"})


def number(text: str) -> int | float | None:
    """The first number in a text: `$1,234.50`, `1.234,50 €`, `(12)` for -12; `$1.2M` is 1200000."""
    if spaced := _SPACED.fullmatch(text.strip()):
        value = _digits(spaced[2].replace(" ", ""), grouped=True)
        return None if value is None else -value if spaced[1] else value
    found = _NUMBER.search(text)
    if not found:
        return None
    value = _digits(found[5].rstrip(".,'’"))
    if value is None:
        return None
    if found[3] and (scale := _SCALE.match(text, found.end())):
        value = round(value * (1e3 if scale[1] else 1e6 if scale[2] else 1e9), 2)
        value = int(value) if value == int(value) else value
    # A dash behind a letter or a digit joins: the 2 of "unit-2" is not negative.
    joined = text[max(0, found.start() - 1) : found.start()].isalnum()
    minus = (found[2] in tuple("-−–") and not joined) or found[4]
    negative = minus or (found[1] and text[found.end() :].startswith(")"))
    return -value if negative else value


def _digits(text: str, grouped: bool = False) -> int | float | None:
    text = text.replace("'", "").replace("’", "")
    if sum(sign.isdigit() for sign in text) > MAX_DIGITS or not text.isascii():
        return None
    comma, dot = text.rfind(","), text.rfind(".")
    if comma >= 0 and dot >= 0:
        groups, decimal = (",", ".") if dot > comma else (".", ",")
        whole, _, rest = text.partition(decimal)
        pattern = _COMMAS if groups == "," else _DOTS
        return float(f"{whole.replace(groups, '')}.{rest}") if pattern.fullmatch(whole) and rest.isdigit() else None
    if comma >= 0 and not grouped and _COMMAS.fullmatch(text):
        return int(text.replace(",", ""))
    if text.count(".") > 1 and _DOTS.fullmatch(text):
        return int(text.replace(".", ""))
    if comma < 0 and dot < 0:
        return int(text)
    return float(text.replace(",", ".")) if text.count(",") + text.count(".") == 1 else None


def integer(text: str) -> int | None:
    """The first number in a text, if it is whole."""
    value = number(text)
    return int(value) if value is not None and value == int(value) else None


def day(text: str) -> str | None:
    """The first date in a text, as 2026-11-15; of 03/04/2026 the month is the first, unless it cannot be."""
    found: list[tuple[int, str]] = []
    for pattern, places in _DATES:
        for match in pattern.finditer(text):
            if written := _written(*(match[place] for place in places)):
                found.append((match.start(), written))
                break
    for match in _SLASHED.finditer(text):
        first, second = match[1], match[3]
        written = _written(match[4], second, first) if int(first) > 12 else _written(match[4], first, second)
        if written:
            found.append((match.start(), written))
            break
    return min(found)[1] if found else None


def _written(year: str, month: str, of_month: str) -> str | None:
    if month.isalpha():
        names = [at for at, name in enumerate(_MONTHS, 1) if name.startswith(month.lower())]
        month = str(names[0]) if names else "0"
    try:
        return date(int(year), int(month), int(of_month)).isoformat()
    except ValueError:
        return None


def boolean(text: str) -> bool | None:
    """Whether a text says yes or no."""
    word = text.strip().rstrip(".!").lower()
    return True if word in _YES else False if word in _NO else None
