"""Words of addresses and texts in one spelling: lower case, Latin letters, no abbreviations."""

import re
import unicodedata
from functools import lru_cache

MAX_CHARS = 20_000
"""Characters of a text that are read."""

_BULGARIAN = {
    "а": "a", "б": "b", "в": "v", "г": "g", "д": "d", "е": "e", "ж": "zh", "з": "z", "и": "i",
    "й": "y", "к": "k", "л": "l", "м": "m", "н": "n", "о": "o", "п": "p", "р": "r", "с": "s",
    "т": "t", "у": "u", "ф": "f", "х": "h", "ц": "ts", "ч": "ch", "ш": "sh", "щ": "sht", "ъ": "a",
    "ь": "y", "ю": "yu", "я": "ya",
}  # fmt: skip
"""The streamlined system of the Bulgarian transliteration act."""
_OTHER_LETTERS = {"ё": "e", "ы": "y", "э": "e", "є": "ye", "і": "i", "ї": "yi", "ґ": "g", "ѝ": "i"}
"""Letters that only Russian and Ukrainian have, and an accented one."""
_LETTERS = str.maketrans(_BULGARIAN | _OTHER_LETTERS)
_WORD = re.compile(r"[^\W\d_]+|\d+")
_ENDING = re.compile(r"ия\b")
_SAME_SOUND = (("ts", "c"), ("tz", "c"), ("kh", "h"), ("ph", "f"), ("w", "v"), ("y", "i"),
               ("j", "i"), ("x", "ks"), ("q", "k"))  # fmt: skip
"""Spellings that people choose freely in Latin letters: Lozenets, Lozenetz, Lozenec."""
_TWICE = re.compile(r"([a-z])\1+")
_ROMAN = re.compile(r"[ivx]+")
_NO_NAMES = """
    кв квартал жк ж к ул улица бул булевард пл площад гр град с село община област обл район р н
    м местност зона бл блок вх вход ет етаж ап апартамент до на в
    улиця вул вулиця проспект пр просп бульвар пер переулок провулок мкр микрорайон г город
    д дом кв квартира место смт
    street str st avenue ave av road rd boulevard blvd bul ul square sq lane ln drive dr court ct
    quarter district city town village residential complex neighborhood neighbourhood zh k zhk jk
    kv gr obl rayon apt apartment unit suite ste no nr the in of
"""


def latin(text: str) -> str:
    """Return a text in lower case and Latin letters, without accents."""
    lowered = unicodedata.normalize("NFKC", text[:MAX_CHARS]).casefold()
    # Before accents are taken away: й is и with a breve to Unicode.
    spelled = _ENDING.sub("ia", lowered).translate(_LETTERS)
    if spelled.isascii():
        return spelled
    decomposed = unicodedata.normalize("NFKD", spelled)
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def text_words(text: str) -> list[str]:
    """Return the words and numbers of a text in Latin letters."""
    return _WORD.findall(latin(text))


@lru_cache(maxsize=50_000)
def name_words(text: str) -> tuple[str, ...]:
    """Return the words and numbers that name a place, each once, in their order.

    Words such as street or quarter are left out, in full and abbreviated.
    """
    found = (_one_spelling(word) for word in text_words(text) if word not in _no_names())
    return tuple(dict.fromkeys(word for word in found if word))


def _one_spelling(word: str) -> str:
    if _ROMAN.fullmatch(word):
        return word
    for given, chosen in _SAME_SOUND:
        word = word.replace(given, chosen)
    return _TWICE.sub(r"\1", word)


@lru_cache(maxsize=1)
def _no_names() -> frozenset[str]:
    return frozenset(latin(_NO_NAMES).split())
