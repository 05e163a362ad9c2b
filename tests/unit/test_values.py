"""Numbers, dates and answers as the pages of many countries write them, with and without a
locale."""

import unicodedata
from collections.abc import Callable
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.sites import values
from crawler.sites.values import ANY_LOCALE, LOCALES, boolean, day, integer, number

NO_BREAK, NARROW, THIN = "\u00a0", "\u202f", "\u2009"


# Numbers.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Spaces of every kind part thousands.
        ("85 000 EUR", 85000),
        ("684 540,50 лв", 684540.5),
        ("684 540,50 лв.", 684540.5),
        ("2 500 €/кв. м.", 2500),
        ("85\u00a0000\u00a0€", 85000),
        ("1\u202f234\u202f567,89\u202f€", 1234567.89),
        ("1\u2009234.5 kg", 1234.5),
        ("Цена: 129 900 лв. (с ДДС)", 129900),
        ("Цена – 500 лв", 500),
        ("от 1 250 000 ₽", 1250000),
        ("12 990 руб./мес.", 12990),
        ("3 000,00 zł", 3000.0),
        ("1 299,- Kč", 1299),
        ("kr 12 500", 12500),
        ("NOK 12 500,00", 12500.0),
        ("1 234 m²", 1234),
        ("1 234 m2", 1234),
        ("85 m2", 85),
        ("120 кв.м", 120),
        ("250 ft2", 250),
        ("Площ (m2): 85", 85),
        ("Площ, м2 – 120,5", 120.5),
        ("km2 12", 12),
        ("85 000 – 90 000 EUR", 85000),
        ("2 стаи, 85 000 EUR", 2),
        ("10 000", 10000),
        ("999 999 999", 999999999),
        ("85 000 3 стаи", 85000),
        # No groups of three, so no thousands.
        ("02 345 67 89", 2),
        ("12 34 567", 12),
        ("5 1234", 5),
        ("2024 150", 2024),
        ("1 23", 1),
        # Apostrophes, Swiss and Arabic.
        ("CHF 1'234.50", 1234.5),
        ("CHF 1’234’567.–", 1234567),
        ("Fr. 1'200.--", 1200),
        ("CHF 500.-", 500),
        ("1'234,50", 1234.5),
        ("5'10\"", 5),
        ("١٬٢٣٤٫٥", 1234.5),
        # Points and commas by their places.
        ("$1,234,567.89", 1234567.89),
        ("1.234.567,89 €", 1234567.89),
        ("R$ 1.234.567,89", 1234567.89),
        ("₺1.234.567,89", 1234567.89),
        ("£1,234,567", 1234567),
        ("1.234.567 €", 1234567),
        ("¥1,234,567", 1234567),
        ("€ 499,-", 499),
        ("49,99 €", 49.99),
        ("EUR 49.99", 49.99),
        ("0,125", 0.125),
        ("0.125", 0.125),
        ("0,5 dekar", 0.5),
        ("12,5 %", 12.5),
        ("99.9%", 99.9),
        ("1234,567", 1234.567),
        ("1 234,567", 1234.567),
        ("$.99", 0.99),
        (".5 acres", 0.5),
        (",75 ha", 0.75),
        ("No.5", 5),
        ("Rs.500", 500),
        ("Rs. 12,34,567", 1234567),
        ("₹ 12,34,567.50", 1234567.5),
        ("₹1,23,45,678", 12345678),
        ("1.234,56.78", None),
        ("1 234.567,89", None),
        ("1.2.3", None),
        ("12.03.2024", None),
        # Signs.
        ("-12", -12),
        ("\u221212,5", -12.5),
        ("\u20135 °C", -5),
        ("+7", 7),
        ("- 500", -500),
        ("Saldo: - 500,00 €", -500.0),
        ("Price - 500", 500),
        ("-$1,234", -1234),
        ("$-1,234", -1234),
        ("-€ 1.234,50", -1234.5),
        ("-CHF 1'234", -1234),
        ("EUR -1 234", -1234),
        ("(1,234.50)", -1234.5),
        ("($1,234)", -1234),
        ("(1 234,50 €)", -1234.5),
        ("(EUR 500)", -500),
        ("(85 m2)", 85),
        ("10-20", 10),
        ("unit-2", 2),
        ("2019\u20132020", 2019),
        # Other digits.
        ("٨٥٠٠٠ درهم", 85000),
        ("۱۲۳", 123),
        ("१२,३४,५६७", 1234567),
        ("１２３", 123),
        ("１，２３４円", 1234),
        ("￥１２，８００", 12800),
        ("\u200f-\u200e1,234", -1234),
        # Thousands and millions in words.
        ("1,2 млн. лв.", 1200000),
        ("1.5 млрд", 1500000000),
        ("150 тыс. руб.", 150000),
        ("150 хил. лв.", 150000),
        ("2,5 Mio. €", 2500000),
        ("3 Mrd. Euro", 3000000000),
        ("1.2 million EUR", 1200000),
        ("5 millones de pesos", 5000000),
        ("2 milhões", 2000000),
        ("1,5 mln zł", 1500000),
        ("$1.25B", 1250000000),
        ("1.2M €", 1200000),
        ("450K USD", 450000),
        ("12 m", 12),
        ("12 Milben", 12),
        ("3,480万円", 34800000),
        ("1億2,000万円", 120000000),
        ("1.5亿元", 150000000),
        ("3억 5,000만원", 350000000),
        ("n/a", None),
        ("m2", None),
        ("m²", None),
    ],
)
def test_numbers_without_a_locale(text: str, value: float | None) -> None:
    """The first number of a text, whatever stands around it; one whose separators contradict each
    other is none."""
    found = number(text)

    assert (found, type(found)) == (value, type(value))
    assert integer(text) == (int(value) if value is not None and value == int(value) else None)


@pytest.mark.parametrize(
    ("text", "without", "by_locale"),
    [
        (
            "1.234",
            1.234,
            {"de": 1234, "bg": 1234, "pt-BR": 1234, "en-US": 1.234, "de-CH": 1.234, "es-MX": 1.234},
        ),
        (
            "1,234",
            1234,
            {"de": 1.234, "bg": 1.234, "fr": 1.234, "en-GB": 1234, "it-CH": 1234, "ja": 1234},
        ),
        ("-85.000 €", -85.0, {"de": -85000, "es-ES": -85000, "en": -85.0}),
        ("12 345 Main St", 12345, {"en-US": 12, "fr": 12345, "bg": 12345}),
        # One meaning only: the locale changes nothing.
        ("1.23", 1.23, {"de": 1.23, "en": 1.23}),
        ("1,23", 1.23, {"de": 1.23, "en": 1.23}),
        ("0.125", 0.125, {"de": 0.125, "en": 0.125}),
        ("1234.567", 1234.567, {"de": 1234.567}),
        ("1.234,50", 1234.5, {"de": 1234.5, "en-US": 1234.5}),
        ("1,234.50", 1234.5, {"de": 1234.5, "en-US": 1234.5}),
        ("1.234.567", 1234567, {"de": 1234567, "en-US": 1234567}),
        ("12,34,567", 1234567, {"de": 1234567, "en-IN": 1234567}),
        ("1 234,567", 1234.567, {"bg": 1234.567, "ru": 1234.567}),
    ],
)
def test_a_locale_decides_what_is_ambiguous(
    text: str, without: float, by_locale: dict[str, float]
) -> None:
    """Of `1.234` and `1,234` the locale tells the decimal sign; what has one meaning only keeps
    it."""
    assert number(text) == without
    assert {name: number(text, LOCALES[name]) for name in by_locale} == by_locale


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # The digit of a unit is no number, whatever follows.
        ("m2 240", 240),
        ("Fläche m2 1.250,5", 1250.5),
        ("ft2 3 500", 3500),
        ("км2 12", 12),
        ("CO2 130 g/km", 130),
        ("Height m 2.5", 2.5),
        ("m 2 120", None),
        # Every dash that touches the number, before or behind it, and the word.
        *((f"{dash}7,5 %", -7.5) for dash in "-\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"),
        ("2.345,60-", -2345.6),
        ("730- EUR", -730),
        ("730-€", -730),
        ("минус 8 °C", -8),
        ("-kr 500", -500),
        ("10-", -10),
        ("10- 20", 10),
        ("2019–", 2019),
        ("2019-", None),
        # Brackets around all of a text, with its currency.
        ("(2,300 GBP)", -2300),
        ("(1 700 лв.)", -1700),
        ("(900) €", -900),
        ("($3.5M)", -3500000),
        ("Saldo: (85)", -85),
        ("Reviews (125)", 125),
        ("(3) bedrooms", 3),
        # Parts that add up.
        ("4万2000円", 42000),
        ("2億3,456万7,890円", 234567890),
        ("7千万円", 70000000),
        ("2千5百万", 25000000),
        ("45만 6,700원", 456700),
        ("5천만원", 50000000),
        ("4万 50㎡", 40000),
        ("제12조의", 12),
        ("3 млн 400 тыс. руб.", 3400000),
        ("1 млн 250 000 руб.", 1250000),
        ("2 Mio. 300 Tsd. Euro", 2300000),
        ("3 milyar 500 milyon TL", 3500000000),
        ("2 million 3 bedrooms", 2000000),
        ("1,2 млн. 120 кв. м", 1200000),
        # Words that mean one thing wherever they are written.
        ("4 mil millones", 4000000000),
        ("7 bilhões", 7000000000),
        ("3 Billionen", 3000000000000),
        ("$4 trillion", 4000000000000),
        ("£3tn", 3000000000000),
        ("60 duizend", 60000),
        ("150 mila €", 150000),
        ("3 lakh", 300000),
        ("Rs. 2.5 Cr", 25000000),
        ("2 Md€", 2000000000),
        ("20 tn", 20),
        ("500 CR", 500),
        # Words that mean several things.
        ("4 mil", None),
        ("4 bin", None),
        ("350 T€", None),
        # Exponents and fractions.
        ("3.4e5", 340000),
        ("7e3", 7000),
        ("2.5E-3", 0.0025),
        ("1e400", None),
        ("12E4", None),
        ("4¼ acres", 4.25),
        ("4 ½", 4.5),
        ("¾", 0.75),
        ("5 3/8 in", 5.375),
        ("2-1/2 acres", 2.5),
        ("1/4 acre", 0.25),
        ("1/4", None),
        ("4/5", 4),
        # A dash for the cents.
        ("3.400,-", 3400),
        ("3,400,-", 3400),
        ("3.400.–", 3400),
        # None of these numbers is the value.
        ("3 – 5 million", None),
        ("od 1 do 2 mln", None),
        ("3～5万円", None),
        ("+359 888 123 456", None),
        ("2·5", None),
    ],
)
def test_numbers_that_are_easily_cut(text: str, value: float | None) -> None:
    """Signs, units, parts and words that belong to a number are never left out: it is read whole,
    or not at all."""
    assert number(text) == value


@pytest.mark.parametrize(
    ("text", "by_locale"),
    [
        ("R$ 420 mil", {"pt-BR": 420000, "es": 420000, "en": None}),
        ("2,5 mil M€", {"es": 2500000000}),
        ("450 bin TL", {"tr": 450000}),
        ("3 Billion €", {"de": 3 * 10**12, "fr": 3 * 10**12, "en": 3 * 10**9, "de-CH": 3 * 10**12}),
        ("2 Trillion", {"de": 2 * 10**18, "en": 2 * 10**12}),
        ("350 T€", {"de": 350000, "en": None}),
        ("3,400,-", {"de": 3400, "en": 3400}),
        ("72 000 EUR", {"en": 72000, "ja": 72000, "de": 72000}),
        ("Price: € 72 000", {"en-GB": 72000, "zh": 72000}),
        ("Flat 3 120 sqm", {"en": 3}),
        ("+359 888 123 456", {"en": None, "bg": None}),
    ],
)
def test_a_locale_tells_what_words_and_spaces_mean(
    text: str, by_locale: dict[str, float | None]
) -> None:
    """A billion is what the language says; spaces within a sum of money part thousands
    everywhere."""
    assert {name: number(text, LOCALES[name]) for name in by_locale} == by_locale


@given(
    st.integers(1_000, 10**13),
    st.sampled_from(["{}", "{} EUR", "ca. {} m²", "-{}"]),
    st.sampled_from(["french", "russian", "si"]),
    st.sampled_from(sorted(LOCALES)),
)
def test_spaces_that_do_not_break_join_in_every_locale(
    whole: int, around: str, style: str, name: str
) -> None:
    """A no-break or thin space between groups of three has one meaning."""
    text = around.format(formatted(whole, None, style))

    assert number(text, LOCALES[name]) == (-whole if text.startswith("-") else whole)


@pytest.mark.parametrize("language", ["", *values._SCALES])
def test_every_word_for_thousands_is_read(language: str) -> None:
    """Each word, in any case and with the point of an abbreviation, multiplies; what is unclear
    gives none."""
    locale = LOCALES.get(language, ANY_LOCALE)
    for word, power in values.scales(language).items():
        for text in (f"3 {word}", f"3 {word.upper()}.", f"{word}: 3 {word} EUR"):
            assert number(text, locale) == (3 * 10**power if power else None), text


STYLES = {
    "none": (0, "", "."),
    "none, comma": (0, "", ","),
    "english": (3, ",", "."),
    "german": (3, ".", ","),
    "french": (3, NARROW, ","),
    "russian": (3, NO_BREAK, ","),
    "bulgarian": (3, " ", ","),
    "si": (3, THIN, "."),
    "swiss": (3, "'", "."),
    "swiss, typographic": (3, "’", "."),
    "indian": (2, ",", "."),
}


def formatted(whole: int, cents: int | None, style: str) -> str:
    size, separator, decimal = STYLES[style]
    digits = str(whole)
    written = digits
    if size and len(digits) > 3:
        head, written = digits[:-3], digits[-3:]
        while head:
            head, written = head[:-size], f"{head[-size:]}{separator}{written}"
    return written if cents is None else f"{written}{decimal}{cents:02}"


@given(
    st.integers(0, 10**13),
    st.none() | st.integers(0, 99),
    st.sampled_from(sorted(STYLES)),
    st.sampled_from(
        [
            "{}",
            "{} €",
            "€ {}",
            "EUR {}",
            "{} лв.",
            "ca. {} m²",
            "({})",
            "-{}",
            "\u2212{} kr",
            "Preis: {},-",
        ]
    ),
    st.sampled_from(["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９"]),
)
def test_what_is_written_in_any_style_is_read_back(
    whole: int, cents: int | None, style: str, around: str, digits: str
) -> None:
    """Every grouping, with two decimals or none, in any digits and in any company, gives the number
    back."""
    written = formatted(whole, cents, style).translate(str.maketrans("0123456789", digits))
    expected = whole if cents is None else float(f"{whole}.{cents:02}")
    negative = around.startswith(("-", "\u2212", "("))
    text = around.format(written)
    # One point or comma before three digits is ambiguous, and only the locale can tell.
    name = {"german": "de", "english": "en", "indian": "en-IN"}.get(style, "")

    assert number(text, LOCALES[name] if name else ANY_LOCALE) == (
        -expected if negative else expected
    )


@given(
    st.text(max_size=50) | st.text("0123456789 .,'-()€m2kM万", max_size=50),
    st.sampled_from([ANY_LOCALE, *LOCALES.values()]),
)
def test_no_text_raises(text: str, locale: values.Locale) -> None:
    """Any text is a number, a date, an answer or none."""
    number(text, locale)
    day(text, locale)
    boolean(text)


@pytest.mark.parametrize("text", ["9" * 100_000, "1" + " 234" * 50_000, "1" + ",234" * 50_000])
def test_a_number_without_end_is_none(text: str) -> None:
    """No number has more than thirty digits, however they are grouped."""
    assert number(text) is None


# Dates.


@pytest.mark.parametrize(
    "text",
    [
        *(
            "5 March 2024",
            "March 5th, 2024",
            "Tue, 5 Mar 2024 10:00",
            "2024-03-05",
            "05-Mar-2024",
            "5th of March 2024",
        ),
        *("March 5,2024", "5 March,2024", "MARCH 5 2024"),
        *(
            "5 de marzo de 2024",
            "martes, 5 de marzo del 2024",
            "5 mar. 2024",
            "05/mar/2024",
            "marzo 5, 2024",
        ),
        *(
            "5. März 2024",
            "Dienstag, 5.März 2024",
            "05. Mär. 2024",
            "5. Mrz 2024",
            "5 MÄRZ 2024",
            "05.03.2024",
        ),
        *(
            "5 марта 2024 г.",
            "5 марта 2024 года",
            "5-го марта 2024",
            "5 мар. 2024 г.",
            "05.03.2024 г.",
            "5 МАРТА 2024",
        ),
        *(
            "2024年3月5日",
            "2024年03月05日(火)",
            "２０２４年３月５日",
            "2024 年 3 月 5 日",
            "2024/03/05",
        ),
        *("5 mars 2024", "mardi 5 mars 2024 à 10 h", "le 5 mars 2024"),
        *("5 de março de 2024", "5 mar 2024", "terça-feira, 5 de Março de 2024"),
        *("5 marzo 2024", "martedì 5 marzo 2024"),
        *("5 maart 2024", "dinsdag 5 mrt. 2024", "di 5 maart 2024"),
        *("5 marca 2024 r.", "wtorek, 5 marca 2024", "5 mar 2024"),
        *("5 Mart 2024 Salı", "5 Mar 2024"),
        *("2024年3月5号", "2024-3-5"),
        *(
            "5 март 2024 г.",
            "вторник, 5 март 2024",
            "5-ти март 2024",
            "05 мар 2024",
            "Обновена на 5 март, 2024 г.",
        ),
        *("2024년 3월 5일", "٢٠٢٤-٠٣-٠٥"),
    ],
)
def test_dates_in_many_languages(text: str) -> None:
    """One day as eleven languages and East Asia write it."""
    assert day(text) == "2024-03-05"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1er janvier 2024", "2024-01-01"),
        ("1º de janeiro de 2024", "2024-01-01"),
        ("1° gennaio 2024", "2024-01-01"),
        ("1-ви януари 2024 г.", "2024-01-01"),
        ("1 ene 2024", "2024-01-01"),
        ("3 stycznia 2024", "2024-01-03"),
        ("3 lutego 2024", "2024-02-03"),
        ("3 şubat 2024", "2024-02-03"),
        ("3 févr. 2024", "2024-02-03"),
        ("12 avril 2024", "2024-04-12"),
        ("12 kwietnia 2024", "2024-04-12"),
        ("12 mei 2024", "2024-05-12"),
        ("12 мая 2024", "2024-05-12"),
        ("12 mai 2024", "2024-05-12"),
        ("12 юни 2024", "2024-06-12"),
        ("12 juin 2024", "2024-06-12"),
        ("12 juil. 2024", "2024-07-12"),
        ("12 lipca 2024", "2024-07-12"),
        ("12 luglio 2024", "2024-07-12"),
        ("12 août 2024", "2024-08-12"),
        ("12 aou\u0302t 2024", "2024-08-12"),
        ("12 AOUT 2024", "2024-08-12"),
        ("12 sierpnia 2024", "2024-08-12"),
        ("12 eylül 2024", "2024-09-12"),
        ("12 сентября 2024", "2024-09-12"),
        ("12 setembro 2024", "2024-09-12"),
        ("12 października 2024", "2024-10-12"),
        ("12 ottobre 2024", "2024-10-12"),
        ("12 Okt. 2024", "2024-10-12"),
        ("12 KASIM 2024", "2024-11-12"),
        ("12 listopada 2024", "2024-11-12"),
        ("12 ноември 2024", "2024-11-12"),
        ("24. Dezember 2024", "2024-12-24"),
        ("24 dic 2024", "2024-12-24"),
        ("24 Aralık 2024", "2024-12-24"),
        ("24 grudnia 2024", "2024-12-24"),
        ("Jui 5, 2024", None),
        ("5 marchand 2024", None),
        ("31 février 2024", None),
        ("2024年13月1日", None),
        ("List 5, 2024", None),
        ("5 март", None),
        ("1 ян. 2024", "2024-01-01"),
        ("12 ЯН 2024 г.", "2024-01-12"),
        ("12 of 2024", None),
        ("5–3–2024", "2024-05-03"),
    ],
)
def test_other_months(text: str, value: str | None) -> None:
    """Ordinals, genitives, abbreviations and accents, also where they are left out; other words are
    no months."""
    assert day(text) == value


@pytest.mark.parametrize(
    ("text", "without", "by_locale"),
    [
        (
            "03/04/2024",
            "2024-03-04",
            {"de": "2024-04-03", "en-GB": "2024-04-03", "en-US": "2024-03-04"},
        ),
        ("3-4-2024", "2024-03-04", {"nl": "2024-04-03", "en": "2024-03-04"}),
        ("25/12/2024", "2024-12-25", {"fr": "2024-12-25", "en-US": "2024-12-25"}),
        ("12/25/2024", "2024-12-25", {"fr": "2024-12-25", "en-US": "2024-12-25"}),
        ("3.4.2024", "2024-04-03", {"de": "2024-04-03", "en-US": "2024-04-03"}),
        ("2024/03/04", "2024-03-04", {"de": "2024-03-04", "en-US": "2024-03-04"}),
    ],
)
def test_a_locale_tells_the_order_of_day_and_month(
    text: str, without: str, by_locale: dict[str, str]
) -> None:
    """Without a locale the month of 03/04/2024 is first; a date that has one meaning only keeps
    it."""
    assert day(text) == without
    assert {name: day(text, LOCALES[name]) for name in by_locale} == by_locale


def test_no_name_means_two_months() -> None:
    """What is January in one language is not another month in the next."""
    seen: dict[str, int] = {}
    for months in values._MONTHS.values():
        assert months.count("|") == 11
        for number_, names in enumerate(months.split("|"), 1):
            for name in names.split():
                assert (
                    seen.setdefault(values.plain(name), number_) == number_ == values.month(name)
                ), name


FORMS: list[Callable[[str], str]] = [
    str,
    str.upper,
    str.title,
    lambda text: unicodedata.normalize("NFD", text),
]


@given(
    st.dates(date(1000, 1, 1)),
    st.sampled_from(sorted(values._MONTHS)),
    st.integers(0, 5),
    st.sampled_from(FORMS),
)
def test_dates_with_a_name_are_read_back(
    when: date, language: str, at: int, form: Callable[[str], str]
) -> None:
    """Every name of every month, in any case and form of Unicode, between its day and its year."""
    names = values._MONTHS[language].split("|")[when.month - 1].split()
    name = form(names[at % len(names)])

    for text in (
        f"{when.day} {name} {when.year}",
        f"{when.day}. {name}. {when.year}",
        f"{when.day}-{name}-{when.year}",
    ):
        assert day(text) == when.isoformat()


@given(st.dates(date(1000, 1, 1)), st.sampled_from(sorted(LOCALES)))
def test_dates_of_a_locale_are_read_back(when: date, name: str) -> None:
    """Day and month in the locale's own order."""
    order = "{0:%d}/{0:%m}/{0.year:04}" if LOCALES[name].day_first else "{0:%m}/{0:%d}/{0.year:04}"

    assert day(order.format(when), LOCALES[name]) == when.isoformat()
    assert day(f"{when.year}年{when.month}月{when.day}日", LOCALES[name]) == when.isoformat()
    assert day(when.isoformat(), LOCALES[name]) == when.isoformat()


# Answers.


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        ("Yes", "No"),
        ("TRUE", "false"),
        ("Sí", "No"),
        ("SI", "no."),
        ("Ja", "Nein"),
        ("wahr", "falsch"),
        ("Да", "Нет"),
        ("ДА", "Не"),
        ("はい", "いいえ"),
        ("あり", "なし"),
        ("有", "無"),
        ("Oui", "Non"),
        ("vrai", "faux"),
        ("Sim", "Não"),
        ("sim", "NAO"),
        ("Sì", "No"),
        ("Ja", "Nee"),
        ("Tak", "Nie"),
        ("prawda", "fałsz"),
        ("Evet", "HAYIR"),
        ("是", "否"),
        ("有", "无"),
        ("✓", "✗"),
        ("истина", "ложь"),
        ("Има", "Няма"),
        ("есть", "отсутствует"),
        ("Var", "YOK"),
    ],
)
def test_answers_in_many_languages(yes: str, no: str) -> None:
    """Yes and no, whatever their case and accents."""
    assert (boolean(yes), boolean(f" {no} ")) == (True, False)


@pytest.mark.parametrize("text", ["maybe", "да, но", "nein danke", "", "yes" * 100_000, "не е"])
def test_other_words_are_no_answers(text: str) -> None:
    """An answer is the whole text."""
    assert boolean(text) is None
