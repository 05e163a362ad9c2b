"""How numbers and dates are written: separators, day and month, months and answers in words."""

import unicodedata
from functools import lru_cache
from typing import NamedTuple


class Locale(NamedTuple):
    """Decides where a value can be read in two ways."""

    decimal: str = ""
    """The decimal sign of `1.234` and `1,234`; if empty, the point is one, and the comma is not."""
    day_first: bool = False  # whether 03/04/2026 is in April
    spaced: bool = True  # whether plain spaces separate thousands; no-break ones always do
    language: str = ""  # decides about words for thousands and millions, such as `de`


ANY = Locale()

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
KNOWN = {
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


def named(text: str) -> str:
    """Return a locale's name for one in any case, with `-` or `_`; raises `KeyError`."""
    language, dash, country = text.replace("_", "-").partition("-")
    name = language.lower() + dash + country.upper()
    if not country:
        name = language.lower()
    if name not in KNOWN:
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
