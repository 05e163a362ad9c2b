"""Reads numbers, dates and answers as people write them; a locale decides where two are meant."""

import re
import unicodedata
from datetime import date

from crawler.sites.locales import ANY, Locale, answers, month, plain

MAX_DIGITS, MAX_ANSWER = 30, 20

# Signs that mean the same as an ASCII one, and invisible marks.
_SAME = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
        **dict.fromkeys("’ʼ＇٬", "'"),
        **dict.fromkeys("\u2212\u2013\ufe63－", "-"),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e"),
        **dict.fromkeys("\u2060\u2066\u2067\u2068\u2069\ufeff"),
        **dict(zip("，．٫／（）＄￥", ",../()$¥", strict=True)),
    }
)
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")

# Numbers.

_SIGNS = "$€£¥₽₹₺₩₪₴₫₱฿₸₼₾"
_CURRENCY = rf"(?:[A-Z]{{0,3}}[{_SIGNS}]\s?|[A-Z]{{3}}\s)?"
_NUMBER, _SPACED = (
    re.compile(
        rf"[1-9]\d{{0,2}}([{parted}])\d{{3}}(?!\d)(?:\1\d{{3}}(?!\d))*(?:[.,]\d+)*|\d+(?:[.,]\d+)*",
        re.ASCII,
    )
    for parted in ("'", "' ")
)
_COMMAS = re.compile(r"[1-9]\d{0,2}(?:,\d{2,3})*,\d{3}")
_DOTS = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+")
_MAX_BEFORE = 12  # characters before a number that may hold its sign
_POINT = re.compile(r"(?<![\w.,])[.,]\Z")
# A dash behind a letter or a digit joins ("unit-2"), and one between spaces parts ("Price - 500").
_MINUS = re.compile(rf"(?:(?<![^\W_])-{_CURRENCY}|(?:^|[(:=])\s?-\s{_CURRENCY})\Z")
_OPEN = re.compile(rf"\(\s?{_CURRENCY}\Z")
_CLOSE = re.compile(rf"\s?[{_SIGNS}]?\)")
_POWER = re.compile(r"(?<![^\W_])(?:[kcdm]?m|ft|yd|[кдсм]?м)\s?\Z", re.IGNORECASE)
_AFTER_SIGN = re.compile(rf"[{_SIGNS}]\s?\Z")
_LETTERS = re.compile(r"\s?(?:(k)|(m)|(b))\b", re.IGNORECASE)
_LETTERS_BEFORE = re.compile(
    rf"\s?(?:([Kk])|(M)|(B))\s?(?:[{_SIGNS}]|(?:EUR|USD|GBP|CHF|BGN|PLN|RUB)\b)"
)
_WORDS = re.compile(
    r"""\s?(?:
        (thousand|tausend|tsd|tys|тыс|тысяч[аи]?|хил|хиляди)
        |(mio|mln|millions?|millionen|millones|millón|milhão|milhões|milione|milioni|miljoen|milyon
          |milion[aóyw]{0,2}|млн|миллион(?:а|ов)?|милион(?:а|и)?)
        |(bn|billion|mrd|mld|milliarde?n?|milliards?|miliardi?|miliard[óyw]{0,2}|miljard|milyar
          |млрд|миллиард(?:а|ов)?|милиард(?:а|и)?)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
_EAST = re.compile(r"\s?([万萬만億亿억])\s?")


def number(text: str, locale: Locale = ANY) -> int | float | None:
    """Return the first number: `$1,234.50`, `1 234,50 €`, `(12)` for -12, `1,2 Mio. €`."""
    text = _ascii(text)
    pattern = _SPACED if locale.spaced else _NUMBER
    for found in pattern.finditer(text):
        begin, end = found.span()
        left = max(0, begin - _MAX_BEFORE)
        if found[0] in ("2", "3") and _POWER.search(text, left, begin):
            continue  # of m2, which counts nothing
        written = found[0]
        if point := _POINT.search(text, left, begin):
            begin, written = point.start(), f"0{point[0]}{written}"
        value = _value(written, locale)
        if value is None:
            return None
        value = _scaled(value, text, begin, end, locale)
        brackets = _OPEN.search(text, left, begin) and _CLOSE.match(text, end)
        if brackets or _MINUS.search(text, left, begin):
            return -value
        return value
    return None


def _ascii(text: str) -> str:
    """Replace digits, spaces, dashes and apostrophes by the ASCII ones."""
    if text.isascii():
        return text
    return _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text.translate(_SAME))


def _value(written: str, locale: Locale) -> int | float | None:
    whole = written.replace("'", "").replace(" ", "")
    grouped = whole != written
    if len(whole) - whole.count(".") - whole.count(",") > MAX_DIGITS:
        return None
    comma, dot = whole.rfind(","), whole.rfind(".")
    if comma < 0 and dot < 0:
        return int(whole)
    by_comma, by_dot = (",", _COMMAS, "."), (".", _DOTS, ",")
    if comma >= 0 and dot >= 0:
        separator, pattern, decimal = by_comma if dot > comma else by_dot
        first, _, rest = whole.partition(decimal)
        if grouped or not rest.isdigit() or not pattern.fullmatch(first):
            return None
        return float(f"{first.replace(separator, '')}.{rest}")
    separator, pattern, decimal = by_comma if comma >= 0 else by_dot
    if whole.count(separator) > 1 or (not grouped and (locale.decimal or ".") == decimal):
        if pattern.fullmatch(whole):
            return int(whole.replace(separator, ""))
        if whole.count(separator) > 1:
            return None
    return float(whole.replace(",", "."))


def _scaled(value: int | float, text: str, begin: int, end: int, locale: Locale) -> int | float:
    """Multiply by thousands, millions or billions; the parts of 1億2,000万 are added."""
    if east := _EAST.match(text, end):
        if east[1] in "万萬만":
            return _times(value, 4)
        value = _times(value, 8)
        rest = _NUMBER.match(text, east.end())
        smaller = rest and _EAST.match(text, rest.end())
        if rest and smaller and smaller[1] in "万萬만":
            value += _times(_value(rest[0], locale) or 0, 4)
        return value
    scale = _WORDS.match(text, end) or _LETTERS_BEFORE.match(text, end)
    if not scale and _AFTER_SIGN.search(text, max(0, begin - 2), begin):
        scale = _LETTERS.match(text, end)
    if not scale:
        return value
    return _times(value, 3 * (scale.lastindex or 1))


def _times(value: int | float, power: int) -> int | float:
    value = round(value * 10**power, 2)
    return int(value) if value == int(value) else value


def integer(text: str, locale: Locale = ANY) -> int | None:
    """Return the first number in a text, if it is whole."""
    value = number(text, locale)
    if value is None or value != int(value):
        return None
    return int(value)


# Dates.

_NAME = r"([A-Za-zÀ-ɏ\u0300-\u036fЀ-ӿ]{3,16})"
_ORDINAL = r"(?:st|nd|rd|th|er|e|[ºª°o]|-?(?:ви|ри|ти|ми|го|е))?"
_BETWEEN = r"(?:\.?,?\s|[.,/-])"
_DATES = (
    (re.compile(r"(?<!\d)(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?!\d)"), (1, 3, 4)),
    (re.compile(r"(?<!\d)(\d{1,2})\.\s?(\d{1,2})\.\s?(\d{4})(?!\d)"), (3, 2, 1)),
    (
        re.compile(rf"{_NAME}\.?\s(\d{{1,2}}){_ORDINAL}(?:,\s?|\s)(?:del?\s)?(\d{{4}})(?!\d)"),
        (3, 1, 2),
    ),
    (
        re.compile(
            rf"(?<!\d)(\d{{1,2}}){_ORDINAL}{_BETWEEN}(?:of\s|de\s|d')?{_NAME}{_BETWEEN}"
            r"(?:del?\s)?(\d{4})(?!\d)"
        ),
        (3, 2, 1),
    ),
    (re.compile(r"(?<!\d)(\d{4})\s?[年년]\s?(\d{1,2})\s?[月월]\s?(\d{1,2})(?!\d)"), (1, 2, 3)),
    (re.compile(r"^(\d{4})(\d{2})(\d{2})(?:T\d{4,6}Z?)?$"), (1, 2, 3)),
)
_SLASHED = re.compile(r"(?<!\d)(\d{1,2})([/-])(\d{1,2})\2(\d{4})(?!\d)")


def day(text: str, locale: Locale = ANY) -> str | None:
    """Return the first date in a text as 2026-11-15; the locale decides about 03/04/2026."""
    text = _ascii(text)
    found: list[tuple[int, str]] = []
    for pattern, places in _DATES:
        for match in pattern.finditer(text):
            if written := _written(*(match[place] for place in places)):
                found.append((match.start(), written))
                break
    for match in _SLASHED.finditer(text):
        first, second = match[1], match[3]
        if int(first) > 12 or (locale.day_first and int(second) <= 12):
            first, second = second, first
        if written := _written(match[4], first, second):
            found.append((match.start(), written))
            break
    return min(found)[1] if found else None


def _written(year: str, name: str, of_month: str) -> str | None:
    of_year = int(name) if name.isdigit() else month(name)
    try:
        return date(int(year), of_year, int(of_month)).isoformat()
    except ValueError:
        return None


def boolean(text: str) -> bool | None:
    """Return whether a text says yes or no, in any language."""
    word = text.strip().rstrip(".!。！")
    if len(word) > MAX_ANSWER:
        return None
    return answers().get(plain(word))
