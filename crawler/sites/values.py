"""Reads numbers, dates and answers as people write them.

A locale decides where a text can be read in two ways.
"""

import re
import unicodedata
from collections.abc import Iterator
from datetime import date
from functools import lru_cache
from typing import NamedTuple


class Locale(NamedTuple):
    """Decides where a value can be read in two ways."""

    decimal: str = ""
    """The decimal sign of `1.234` and `1,234`; if empty, the point is one, and the comma is not."""
    day_first: bool = False  # whether 03/04/2026 is in April
    spaced: bool = True  # whether plain spaces separate thousands; no-break ones always do
    language: str = ""  # decides about words for thousands and millions, such as `de`


ANY_LOCALE = Locale()

_COMMA, _POINT = Locale(",", day_first=True), Locale(".", day_first=True)
_DAY_FIRST, _MONTH_FIRST = Locale(".", day_first=True, spaced=False), Locale(".", spaced=False)
_NAMES = (
    (_COMMA, "bg bg-BG de de-AT de-BE de-DE de-LU"),
    (_MONTH_FIRST, "en en-US"),
    (_COMMA, "es es-AR es-BO es-CL es-CO es-CR es-EC es-ES es-PY es-UY es-VE"),
    (_COMMA, "fr fr-BE fr-CA fr-FR fr-LU it it-IT"),
    (_MONTH_FIRST, "ja ja-JP"),
    (_COMMA, "nl nl-BE nl-NL pl pl-PL pt pt-BR pt-PT ru ru-BY ru-KZ ru-RU tr tr-TR"),
    (_MONTH_FIRST, "zh zh-CN zh-TW"),
    (_DAY_FIRST, "en-AU en-GB en-IE en-IN en-NZ en-SG zh-HK"),
    (_POINT, "es-DO es-GT es-HN es-MX es-NI es-PE es-SV es-US"),
    (Locale("."), "es-PA es-PR"),
    (_POINT, "de-CH de-LI fr-CH it-CH"),  # fr-CH so for money, the most frequent of numbers
)
LOCALES = {
    name: locale._replace(language=name.partition("-")[0])
    for locale, names in _NAMES
    for name in names.split()
}

_MONTHS = {
    "bg": """януари яну ян|февруари февр фев|март мар|април апр|май|юни|юли|август авг
        |септември септ сеп|октомври окт|ноември ноем ное|декември дек""",
    "de": """januar jänner jan jän|februar feber feb febr|märz mär mrz|april apr|mai|juni jun
        |juli jul|august aug|september sep sept|oktober okt|november nov|dezember dez""",
    "en": """january jan|february feb febr|march mar|april apr|may|june jun|july jul|august aug
        |september sep sept|october oct|november nov|december dec""",
    "es": """enero ene|febrero feb|marzo mar|abril abr|mayo may|junio jun|julio jul|agosto ago
        |septiembre setiembre sep sept set|octubre oct|noviembre nov|diciembre dic""",
    "fr": """janvier janv jan|février févr fév|mars mar|avril avr|mai|juin|juillet juil|août aoû
        |septembre sept sep|octobre oct|novembre nov|décembre déc""",
    "it": """gennaio gen genn|febbraio feb febbr|marzo mar|aprile apr|maggio mag magg|giugno giu
        |luglio lug|agosto ago|settembre set sett|ottobre ott|novembre nov|dicembre dic""",
    "nl": """januari jan|februari feb febr|maart mrt maa|april apr|mei|juni jun|juli jul
        |augustus aug|september sep sept|oktober okt|november nov|december dec""",
    "pl": """styczeń stycznia sty|luty lutego lut|marzec marca mar|kwiecień kwietnia kwi|maj maja
        |czerwiec czerwca cze|lipiec lipca lip|sierpień sierpnia sie|wrzesień września wrz
        |październik października paź|listopad listopada lis|grudzień grudnia gru""",
    "pt": """janeiro jan|fevereiro fev|março mar|abril abr|maio mai|junho jun|julho jul
        |agosto ago|setembro set|outubro out|novembro nov|dezembro dez""",
    "ru": """январь января янв|февраль февраля фев февр|март марта мар|апрель апреля апр|май мая
        |июнь июня июн|июль июля июл|август августа авг|сентябрь сентября сен сент
        |октябрь октября окт|ноябрь ноября ноя нояб|декабрь декабря дек""",
    "tr": """ocak oca|şubat şub|mart mar|nisan nis|mayıs may|haziran haz|temmuz tem|ağustos ağu
        |eylül eyl|ekim eki|kasım kas|aralık ara""",
}
_SCALES = {
    "": """0 mil bin билион
        |2 hundred
        |3 thousand thousands tausend tsd mille mila duizend tys tysiąc tysiące tysięcy
          тыс тысяча тысячи тысяч хил хиляда хиляди
        |5 lakh lakhs
        |6 million millions mio mln millionen millón millones milhão milhões milione milioni miljoen
          milion miliony milionów miliona milyon
          млн миллион миллиона миллионов милион милиона милиони
        |7 crore crores
        |9 billion billions bn bln mrd mld milliarde milliarden milliard milliards miliardo miliardi
          miljard miliard miliardy miliardów miliarda bilhão bilhões bilyon milyar
          млрд миллиард миллиарда миллиардов милиард милиарда милиарди
        |12 trillion trillions trn trln billionen billón billones biljoen bilion biliony bilionów
          bilione bilioni bilião biliões trilhão trilhões trilyon
          трлн триллион триллиона триллионов трилион трилиона трилиони
        |18 trillionen trillón trillones triljoen trylion tryliony trylionów trilione trilioni
          trilião triliões""",
    "de": "9 mia|12 billion|18 trillion",
    "es": "3 mil|12 billon",
    "fr": "12 billion billions|18 trillion trillions",
    "pt": "3 mil",
    "tr": "3 bin",
}
"""Powers of ten with their words: in any language, and where a language differs; 0 marks words that
mean different numbers, or something else, by language."""
_YES = """yes y true t 1 on x ✓ ✔ ☑ checked ja j wahr oui vrai sí verdadero sim verdadeiro vero
    waar tak prawda evet doğru var да истина вярно има есть имеется はい 有り あり 有 是 真"""
_NO = """no n false f 0 off ✗ ✘ ☐ unchecked nein falsch non faux falso não nee neen onwaar nie
    fałsz hayır yanlış yok няма отсутствует нет не ложь невярно いいえ 無し なし 無 无 否 假 偽"""


def locale_name(text: str) -> str:
    """Return a locale's name for one in any case, with `-` or `_`; raises `KeyError`."""
    language, dash, country = text.replace("_", "-").partition("-")
    name = language.lower() + dash + country.upper()
    if not country:
        name = language.lower()
    if name not in LOCALES:
        raise KeyError(text)
    return name


def plain(word: str) -> str:
    """Drop case and accents: `AOÛT` becomes `aout`."""
    apart = unicodedata.normalize("NFKD", word.casefold())
    kept = "".join(sign for sign in apart if not unicodedata.combining(sign))
    return kept.translate({ord("ı"): "i", ord("ł"): "l"})


def month(word: str) -> int:
    """Return the month of a name in any language or of the start of an English one, or 0."""
    return _months().get(plain(word), 0)


@lru_cache
def _months() -> dict[str, int]:
    by_name: dict[str, int] = {}
    for language, months in _MONTHS.items():
        for number, names in enumerate(months.split("|"), 1):
            for name in map(plain, names.split()):
                by_name[name] = number
                if language == "en":
                    by_name |= {name[:end]: number for end in range(3, len(name))}
    return by_name


@lru_cache
def scales(language: str) -> dict[str, int]:
    """Return the powers of ten by their words in a language, or as most languages use them."""
    by_word: dict[str, int] = {}
    lines = _SCALES[""].split("|")
    if language in _SCALES:
        lines += _SCALES[language].split("|")
    for line in lines:
        power, *names = line.split()
        by_word |= {plain(name): int(power) for name in names}
    return by_word


@lru_cache
def answers() -> dict[str, bool]:
    """Return the words for yes and no in every language."""
    no = {plain(word): False for word in _NO.split()}
    return no | {plain(word): True for word in _YES.split()}


MAX_DIGITS, MAX_ANSWER = 30, 20
MAX_SCALES, MAX_PARTS = 3, 8  # words such as thousand in a row; parts that add up to one amount

# Signs that mean the same as an ASCII one, and invisible marks.
_NO_BREAK = "\u00a0"
_SAME = str.maketrans(
    {
        **dict.fromkeys("\u2007\u2008\u2009\u200a\u202f\u205f", _NO_BREAK),
        "\u3000": " ",
        **dict.fromkeys("’ʼ＇٬", "'"),
        **dict.fromkeys("\u2010\u2011\u2012\u2212\ufe63－", "-"),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e"),
        **dict.fromkeys("\u2060\u2066\u2067\u2068\u2069\ufeff"),
        **dict(zip("，．٫／（）＄￥＋", ",../()$¥+", strict=True)),
    }
)
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
_ONE_SIGN_FRACTION = re.compile("[\u00bc-\u00be\u2150-\u215e\u2189]")

# Numbers.

_SIGNS = "$€£¥₽₹₺₩₪₴₫₱฿₸₼₾"
_NAMED_MONEY = r"(?:лв|лева|руб|zł|kr|Kč|Ft|TL|Rs|Fr|lei)\b\.?"
_CODES = (
    "AED|ARS|AUD|BGN|BRL|BYN|CAD|CHF|CLP|CNY|COP|CZK|DKK|EUR|GBP|HKD|HUF|ILS|INR|JPY|KRW|KZT"
    "|MXN|NOK|NZD|PLN|RON|RSD|RUB|SAR|SEK|SGD|THB|TRY|UAH|USD|ZAR"
)
_CURRENCY = rf"(?:[A-Z]{{0,3}}[{_SIGNS}]\s?|[A-Z]{{3}}\s|{_NAMED_MONEY}\s?)?"
_MONEY_BEHIND = rf"\s?(?:[{_SIGNS}]|(?:{_CODES})\b|{_NAMED_MONEY}|[円圓圆元원])"
_MONEY = re.compile(_MONEY_BEHIND)
_MONEY_BEFORE = re.compile(rf"(?:[{_SIGNS}]|\b(?:{_CODES})|\b{_NAMED_MONEY})\s?\Z")
_NUMBER, _SPACED = (
    re.compile(
        rf"[1-9]\d{{0,2}}([{parted}])\d{{3}}(?!\d)(?:\1\d{{3}}(?!\d))*(?:[.,]\d+)*|\d+(?:[.,]\d+)*",
        re.ASCII,
    )
    for parted in (f"'_{_NO_BREAK}", f"'_{_NO_BREAK} ")
)
_NO_GROUPS = str.maketrans(dict.fromkeys(f"'_ {_NO_BREAK}"))
_COMMAS = re.compile(r"[1-9]\d{0,2}(?:,\d{2,3})*,\d{3}")
_DOTS = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+")
_MAX_BEFORE = 12  # characters before a number that may hold its sign
_MAX_AROUND = 40  # characters before and behind a number that may name its unit
_LEADING_POINT = re.compile(r"(?<![\w.,])[.,]\Z")
# A dash behind a letter or a digit joins ("unit-2"), and one between spaces parts ("Price - 500").
_MINUS = re.compile(
    rf"(?:(?<![^\W_])[-–]{_CURRENCY}|(?:^|[(:=])\s?[-–]\s{_CURRENCY}"
    r"|\b(?i:minus|минус|moins|menos|meno)\s)\Z"
)
# Of 2019- nobody can tell whether it is less than nothing or the beginning of a time.
_MINUS_BEHIND = re.compile(rf"-(?:{_MONEY_BEHIND})?\s*\Z")
_YEAR = re.compile(r"(?:19|20)\d\d")
# Only a text that is all in brackets is less than nothing: "Reviews (125)" and "(2) rooms" count.
_OPEN = re.compile(rf"(?:^|[:=])\s*{_CURRENCY}\(\s?{_CURRENCY}\Z")
_CLOSE = re.compile(rf"(?:{_MONEY_BEHIND})?\s?\)(?:{_MONEY_BEHIND})?\s*\Z")
_NO_CENTS = re.compile(r"[.,](?:[-–—]|$)")
_POWER = re.compile(r"(?<![^\W_])(?:[kcdm]?m|ft|yd|co|[кдсм]?м)(\s?)\Z", re.IGNORECASE)
_MORE_DIGITS = re.compile(r"[.,]?\d")
_EXPONENT = re.compile(r"(?:e[+-]?|E[+-])\d{1,3}(?!\w)")
_FRACTION = re.compile(r"(\d{1,3})([/⁄])(\d{1,3})(?![\d/.,])", re.ASCII)
_FRACTION_BEHIND = re.compile(rf"[ {_NO_BREAK}-]{{1,2}}{_FRACTION.pattern}", re.ASCII)
_PARTS_OF_ONE = frozenset({2, 3, 4, 8, 16, 32, 64})
_OTHER_POINT = re.compile(r"[·˙_]\d|E\d{1,3}(?!\w)")
_PHONE = re.compile(r"\d{1,3}[ ()/-](?:[ ()/-]*\d){8}(?:[ ()/-]*\d)*(?![.,]\d)", re.ASCII)
_RANGE = re.compile(r"\s?(?:[-–—~～〜]|(?:to|bis|до|à|a|do|tot|até|al)\s)\s?", re.IGNORECASE)
_LETTERS = re.compile(r"\s?(?:(k)|(m|mm|mn)|(b)|tn|(?-i:(?<=\d)T))\b", re.IGNORECASE)
_LETTERS_BEFORE = re.compile(
    rf"\s?(?:([Kkк])|(M|Mn)|(B|Mds?)|(T))\s?(?:[{_SIGNS}]|(?:{_CODES})\b|руб\b)"
)
_BEFORE_POWERS = (0, 3, 6, 9, 3)  # by the group of _LETTERS_BEFORE
_RUPEES = re.compile(r"(?:₹|\bRs\.?|\bINR)\s?\Z")
_RUPEES_BEHIND = re.compile(r"\s?(?:(L|lac)|(Cr))s?\b\.?", re.IGNORECASE)
_WORD = re.compile(r"\s?([^\W\d_]{2,12})\b\.?")
_AND = re.compile(r",?\s(?:(?:and|und|и|y|e|et|i|en|ve)\s)?", re.IGNORECASE)
_TENS = {"十": 1, "십": 1, "百": 2, "백": 2, "千": 3, "仟": 3, "천": 3}
_MYRIADS = {"万": 4, "萬": 4, "만": 4, "億": 8, "亿": 8, "억": 8, "兆": 12, "조": 12}
_EAST = re.compile(rf"\s?([{''.join(_TENS)}]*)([{''.join(_MYRIADS)}]?)")
_EAST_END = re.compile(r"(?=[円圓圆元원人名명戸户個个株坪余多台件])|(?![^\W\d_])")


class _Unclear(Exception):
    """Raised where a number may mean several amounts."""


class Amount(NamedTuple):
    """A number in a text, and the text around it; no value where it may mean several."""

    value: int | float | None
    before: str
    behind: str


def number(text: str, locale: Locale = ANY_LOCALE) -> int | float | None:
    """Return the first number: `$1,234.50`, `1 234,50 €`, `(12)` for -12, `1,2 Mio. €`.

    Returns None where the number may mean several amounts.
    """
    first = next(amounts(text, locale), None)
    return first.value if first else None


def amounts(text: str, locale: Locale = ANY_LOCALE) -> Iterator[Amount]:
    """Return the numbers of a text, one after the other."""
    text = _ascii(text)
    pattern = _NUMBER
    if locale.spaced:
        text = text.replace(_NO_BREAK, " ")
        pattern = _SPACED
    end = 0
    while found := pattern.search(text, end):
        begin = found.start()
        left = max(0, begin - _MAX_BEFORE)
        if text[begin] in "23" and (unit := _POWER.search(text, left, begin)):
            end = begin + 1
            if not _MORE_DIGITS.match(text, end) and (not unit[1] or len(found[0]) == 1):
                continue  # of m2, which counts nothing
            if found[0][1:2] in (" ", _NO_BREAK):  # "m 2 500" may be 2500 or 500
                yield Amount(None, text[left:begin], "")
                return
        try:
            value, begin, end = _amount(text, found, left, locale)
        except _Unclear:
            value, end = None, found.end()
        yield Amount(value, text[max(0, begin - _MAX_AROUND) : begin], text[end:][:_MAX_AROUND])


def _ascii(text: str) -> str:
    """Replace digits, dashes and apostrophes by the ASCII ones, and reduce spaces to two kinds."""
    if text.isascii():
        return text
    text = _ONE_SIGN_FRACTION.sub(lambda one: f" {unicodedata.normalize('NFKC', one[0])}", text)
    return _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text.translate(_SAME))


def _amount(
    text: str, found: re.Match[str], left: int, locale: Locale
) -> tuple[int | float, int, int]:
    """Read a number with what stands before and behind it: its sign, fractions and thousands.

    Returns the number, its beginning and its end.
    """
    begin, end = found.span()
    if not locale.spaced and (longer := _SPACED.match(text, begin)):
        # In English a space separates two numbers, but not the groups of an amount of money.
        behind = longer.end()
        if _MONEY_BEFORE.search(text, left, begin) or _MONEY.match(text, behind):
            end = behind
    if text[begin - 1 : begin] == "+" and _PHONE.match(text, begin):
        raise _Unclear
    written = text[begin:end]
    if point := _LEADING_POINT.search(text, left, begin):
        begin, written = point.start(), f"0{point[0]}{written}"
    if fraction := _FRACTION.match(text, begin):
        value, end = _part_of_one(fraction, text), fraction.end()
    else:
        value = _value(written, locale, without_cents=bool(_NO_CENTS.match(text, end)))
        value, end = _scaled(value, text, begin, end, locale)
    if _MINUS_BEHIND.match(text, end):
        if _YEAR.fullmatch(written):
            raise _Unclear
        return -value, begin, end
    brackets = _OPEN.search(text, left, begin) and _CLOSE.match(text, end)
    if brackets or _MINUS.search(text, left, begin):
        return -value, begin, end
    return value, begin, end


def _part_of_one(fraction: re.Match[str], text: str) -> int | float:
    """Return the value of ½ and `1/2 acre`; of 4/5, as of any text with two numbers, the first."""
    above, below = int(fraction[1]), int(fraction[3])
    if fraction[2] == "⁄" and below:
        return above / below
    if not 0 < above < below or below not in _PARTS_OF_ONE:
        return above
    if not _WORD.match(text, fraction.end()):
        raise _Unclear  # a half, or one of two
    return above / below


def _value(written: str, locale: Locale, without_cents: bool) -> int | float:
    whole = written.translate(_NO_GROUPS)
    grouped = whole != written
    if len(whole) - whole.count(".") - whole.count(",") > MAX_DIGITS:
        raise _Unclear
    comma, dot = whole.rfind(","), whole.rfind(".")
    if comma < 0 and dot < 0:
        return int(whole)
    by_comma, by_dot = (",", _COMMAS, "."), (".", _DOTS, ",")
    if comma >= 0 and dot >= 0:
        separator, pattern, decimal = by_comma if dot > comma else by_dot
        first, _, rest = whole.partition(decimal)
        if grouped or not rest.isdigit() or not pattern.fullmatch(first):
            raise _Unclear
        return float(f"{first.replace(separator, '')}.{rest}")
    separator, pattern, decimal = by_comma if comma >= 0 else by_dot
    several = whole.count(separator) > 1
    by_locale = not grouped and (locale.decimal or ".") == decimal
    # Where a dash stands for the cents, as in 1.200,- the sign before it separates thousands.
    if (several or by_locale or without_cents) and pattern.fullmatch(whole):
        return int(whole.replace(separator, ""))
    if several:
        raise _Unclear
    return float(whole.replace(",", "."))


def _scaled(
    value: int | float, text: str, begin: int, end: int, locale: Locale
) -> tuple[int | float, int]:
    """Apply a fraction, exponent, or words such as million; returns the number and its end."""
    if end == len(text):
        return value, end
    if _OTHER_POINT.match(text, end):
        raise _Unclear
    if exponent := _EXPONENT.match(text, end):
        power = int(exponent[0][1:])
        if abs(power) > MAX_DIGITS:
            raise _Unclear
        return _whole(float(f"{value}e{power}")), exponent.end()
    if fraction := _FRACTION_BEHIND.match(text, end):
        above, below = int(fraction[1]), int(fraction[3])
        if isinstance(value, int) and 0 < above < below and below in _PARTS_OF_ONE:
            return value + above / below, fraction.end()
    if not text.isascii() and (east := _east(value, text, end, locale)):
        return east
    power, end = _power(text, begin, end, locale)
    if power:
        return _with_rest(value, power, text, end, locale)
    if between := _RANGE.match(text, end):  # 3 – 5 million are no 3
        other = _SPACED.match(text, between.end())
        if other and _power(text, other.start(), other.end(), locale)[0]:
            raise _Unclear
        if other and _east(1, text, other.end(), locale):
            raise _Unclear
    return value, end


def _power(text: str, begin: int, end: int, locale: Locale) -> tuple[int, int]:
    """Return the power of ten named by the words and letters behind a number, and their end."""
    total, unclear = 0, False
    for _ in range(MAX_SCALES):
        word = _WORD.match(text, end)
        named = scales(locale.language).get(plain(word[1])) if word else None
        if word and named is not None:
            unclear = unclear or not named
            total, end = total + (named or 3), word.end()
        elif letter := _LETTERS_BEFORE.match(text, end):
            if letter[4] and locale.language != "de":
                raise _Unclear  # a thousand, or a million of millions
            group = letter.lastindex or 0
            return total + _BEFORE_POWERS[group], letter.end(group)
        else:
            break
        if unclear and total > 3:
            unclear = False  # 2 mil millones are clear
    if unclear:
        raise _Unclear
    before = max(0, begin - _MAX_BEFORE)
    if not total and _MONEY_BEFORE.search(text, before, begin):
        rupees = _RUPEES.search(text, before, begin) and _RUPEES_BEHIND.match(text, end)
        if rupees:
            return 5 if rupees[1] else 7, rupees.end()
        if letter := _LETTERS.match(text, end):
            return 3 * (letter.lastindex or 4), letter.end()
    return total, end


def _with_rest(
    value: int | float, power: int, text: str, end: int, locale: Locale
) -> tuple[int | float, int]:
    """Add what follows in `2 млн 500 тыс.`, and in `1 млн 250 000 руб.`, one amount of money."""
    total = _times(value, power)
    for _ in range(MAX_PARTS):
        between = _AND.match(text, end)
        rest = _SPACED.match(text, between.end()) if between else None
        if not isinstance(value, int) or not rest or (more := _rest(rest, locale)) is None:
            break
        smaller, behind = _power(text, rest.start(), rest.end(), locale)
        added = _times(more, smaller)
        if added >= 10**power or (not smaller and not _MONEY.match(text, behind)):
            break
        total, power, end = total + added, smaller, behind
        if not smaller:
            break
    return total, end


def _east(
    value: int | float, text: str, end: int, locale: Locale
) -> tuple[int | float, int] | None:
    """Read 3万5000, 1億2,000万 and 5千万, whose parts are added; returns the number and its end."""
    total: int | float = 0
    part: int | float = 0
    below, ends = 10 ** (2 * MAX_DIGITS), 0
    for _ in range(MAX_PARTS):
        scale = _EAST.match(text, end)
        if not scale:
            break
        tens, myriads = sum(_TENS[sign] for sign in scale[1]), _MYRIADS.get(scale[2], 0)
        if not tens + myriads:
            break
        if (not myriads or myriads == 12) and not _EAST_END.match(text, scale.end()):
            break  # the beginning of a word
        if value * 10 ** (tens if part else tens + myriads) >= below:
            break
        part += _times(value, tens)
        if myriads:
            total, part = total + _times(part, myriads), 0
        below, ends = 10 ** (myriads or tens), scale.end()
        rest = _NUMBER.match(text, ends + (text[ends : ends + 1] in (" ", _NO_BREAK)))
        if not rest or (added := _rest(rest, locale)) is None:
            break
        value, end = added, rest.end()
        further = _EAST.match(text, end)
        is_last = not further or not any(further.groups())
        is_one = rest.start() == ends or end == len(text) or _MONEY.match(text, end)
        if is_last and is_one and value < below:
            part, ends = part + value, end
    if not ends:
        return None
    return total + part, ends


def _rest(found: re.Match[str], locale: Locale) -> int | float | None:
    """Return what a further number adds, if that is clear."""
    try:
        return _value(found[0], locale, without_cents=False)
    except _Unclear:
        return None


def _times(value: int | float, power: int) -> int | float:
    return _whole(round(value * 10**power, 2))


def _whole(value: int | float) -> int | float:
    return int(value) if value == int(value) else value


def integer(text: str, locale: Locale = ANY_LOCALE) -> int | None:
    """Return the first number in a text, if it is whole."""
    value = number(text, locale)
    if value is None or value != int(value):
        return None
    return int(value)


# Dates.

_NAME = r"([A-Za-zÀ-ɏ\u0300-\u036fЀ-ӿ]{2,16})"
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
    (re.compile(r"^(\d{4})(\d{2})(\d{2})(?:T\d{4,6}Z?)?\Z"), (1, 2, 3)),
)
_SLASHED = re.compile(r"(?<!\d)(\d{1,2})([/-])(\d{1,2})\2(\d{4})(?!\d)")


def day(text: str, locale: Locale = ANY_LOCALE) -> str | None:
    """Return the first date in a text as 2026-11-15; the locale decides about 03/04/2026."""
    text = _ascii(text).replace("–", "-")
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
