"""How numbers and dates are written: separators, day and month, months and answers in words."""

import unicodedata
from functools import lru_cache
from typing import NamedTuple


class Locale(NamedTuple):
    """Decides where a value can be read in two ways."""

    decimal: str = ""
    """The decimal sign of `1.234` and `1,234`; if empty, the point is one, and the comma is not."""
    day_first: bool = False  # whether 03/04/2026 is in April
    spaced: bool = True  # whether spaces separate thousands


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
KNOWN = {name: locale for locale, names in _NAMES for name in names.split()}

_MONTHS = {
    "bg": """януари яну|февруари февр фев|март мар|април апр|май|юни|юли|август авг
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
_YES = """yes y true t 1 on x ✓ ✔ ☑ checked ja j wahr oui vrai sí verdadero sim verdadeiro vero
    waar tak prawda evet doğru да истина вярно はい 有り あり 有 是 真"""
_NO = """no n false f 0 off ✗ ✘ ☐ unchecked nein falsch non faux falso não nee neen onwaar nie
    fałsz hayır yanlış нет не ложь невярно いいえ 無し なし 無 无 否 假 偽"""


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
def answers() -> dict[str, bool]:
    """Return the words for yes and no in every language."""
    no = {plain(word): False for word in _NO.split()}
    return no | {plain(word): True for word in _YES.split()}
