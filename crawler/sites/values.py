"""The text of a page as values: numbers, dates and answers as people write them.

Whatever can be meant in one way only is read so; a locale decides the rest.
"""

import re
import unicodedata
from datetime import date

from crawler.sites.locales import ANY, Locale, answers, month, plain

MAX_DIGITS, MAX_ANSWER = 30, 20

# Signs that mean the same as an ASCII one, and marks that no reader sees.
_SAME = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " "),
        **dict.fromkeys("’ʼ＇٬", "'"),
        **dict.fromkeys("\u2212\u2013\ufe63－", "-"),
        **dict.fromkeys(
            "\u00ad\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
        ),
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
_MAX_BEFORE = 12
"""Characters before a number in which its sign is looked for."""
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
        |(mio|mln|million|millions|millionen|millones|millón|milhão|milhões|milione|milioni|miljoen|milyon|milion[aóyw]{0,2}
          |млн|миллион(?:а|ов)?|милион(?:а|и)?)
        |(bn|billion|mrd|mld|milliarde?n?|milliards?|miliardi?|miliard[óyw]{0,2}|miljard|milyar
          |млрд|миллиард(?:а|ов)?|милиард(?:а|и)?)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
_EAST = re.compile(r"\s?([万萬만億亿억])\s?")


def number(text: str, locale: Locale = ANY) -> int | float | None:
    """The first number in a text: `$1,234.50`, `1 234,50 €`, `(12)` for -12; `1,2 Mio. €` is
    1200000."""
    text = _ascii(text)
    for found in (_SPACED if locale.spaced else _NUMBER).finditer(text):
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
        return -value if brackets or _MINUS.search(text, left, begin) else value
    return None


def _ascii(text: str) -> str:
    """A text with digits, spaces, dashes and apostrophes of one kind each."""
    if text.isascii():
        return text
    return _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text.translate(_SAME))


def _value(written: str, locale: Locale) -> int | float | None:
    whole = written.replace("'", "").replace(" ", "")
    grouped = whole != written
    if len(whole) - whole.count(".") - whole.count(",") > MAX_DIGITS:
        return None
    comma, dot = whole.rfind(","), whole.rfind(".")
    if comma >= 0 and dot >= 0:
        groups, decimal = (",", ".") if dot > comma else (".", ",")
        first, _, rest = whole.partition(decimal)
        pattern = _COMMAS if groups == "," else _DOTS
        well_formed = pattern.fullmatch(first) and rest.isdigit() and not grouped
        return float(f"{first.replace(groups, '')}.{rest}") if well_formed else None
    if comma < 0 and dot < 0:
        return int(whole)
    separator, pattern, decimal = (",", _COMMAS, ".") if comma >= 0 else (".", _DOTS, ",")
    if whole.count(separator) > 1 or (not grouped and (locale.decimal or ".") == decimal):
        if pattern.fullmatch(whole):
            return int(whole.replace(separator, ""))
        if whole.count(separator) > 1:
            return None
    return float(whole.replace(",", "."))


def _scaled(value: int | float, text: str, begin: int, end: int, locale: Locale) -> int | float:
    """A number with its thousands, millions or billions; of 1億2,000万 the parts are added."""
    if east := _EAST.match(text, end):
        power = 4 if east[1] in "万萬만" else 8
        rest = _NUMBER.match(text, east.end())
        smaller = _EAST.match(text, rest.end()) if rest and power > 4 else None
        added = _value(rest[0], locale) if rest and smaller and smaller[1] in "万萬만" else None
        return _times(value, power) + _times(added or 0, 4)
    scale = _WORDS.match(text, end) or _LETTERS_BEFORE.match(text, end)
    if not scale and _AFTER_SIGN.search(text, max(0, begin - 2), begin):
        scale = _LETTERS.match(text, end)
    return _times(value, 3 if scale[1] else 6 if scale[2] else 9) if scale else value


def _times(value: int | float, power: int) -> int | float:
    value = round(value * 10**power, 2)
    return int(value) if value == int(value) else value


def integer(text: str, locale: Locale = ANY) -> int | None:
    """The first number in a text, if it is whole."""
    value = number(text, locale)
    return int(value) if value is not None and value == int(value) else None


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
            rf"(?<!\d)(\d{{1,2}}){_ORDINAL}{_BETWEEN}(?:of\s|de\s|d')?{_NAME}{_BETWEEN}(?:del?\s)?(\d{{4}})(?!\d)"
        ),
        (3, 2, 1),
    ),
    (re.compile(r"(?<!\d)(\d{4})\s?[年년]\s?(\d{1,2})\s?[月월]\s?(\d{1,2})(?!\d)"), (1, 2, 3)),
    (re.compile(r"^(\d{4})(\d{2})(\d{2})(?:T\d{4,6}Z?)?$"), (1, 2, 3)),
)
_SLASHED = re.compile(r"(?<!\d)(\d{1,2})([/-])(\d{1,2})\2(\d{4})(?!\d)")


def day(text: str, locale: Locale = ANY) -> str | None:
    """The first date in a text, as 2026-11-15.

    Of 03/04/2026 the month is the first, unless it cannot be or the locale has it second.
    """
    text = _ascii(text)
    found: list[tuple[int, str]] = []
    for pattern, places in _DATES:
        for match in pattern.finditer(text):
            if written := _written(*(match[place] for place in places)):
                found.append((match.start(), written))
                break
    for match in _SLASHED.finditer(text):
        if written := _slashed(match[4], match[1], match[3], locale):
            found.append((match.start(), written))
            break
    return min(found)[1] if found else None


def _slashed(year: str, first: str, second: str, locale: Locale) -> str | None:
    day_first = int(first) > 12 or (locale.day_first and int(second) <= 12)
    return _written(year, second, first) if day_first else _written(year, first, second)


def _written(year: str, name: str, of_month: str) -> str | None:
    of_year = int(name) if name.isdigit() else month(name)
    try:
        return date(int(year), of_year, int(of_month)).isoformat()
    except ValueError:
        return None


def boolean(text: str) -> bool | None:
    """Whether a text says yes or no, in whichever language."""
    word = text.strip().rstrip(".!。！")
    return answers().get(plain(word)) if len(word) <= MAX_ANSWER else None
