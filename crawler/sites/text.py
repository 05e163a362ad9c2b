"""Texts of a page: read, folded and bounded; and which of them are no labels or values."""

import re
from itertools import islice

from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.fetch.budget import Budget

MAX_TEXT, MAX_STRING = 100_000, 2_000  # characters of a page's text, and of any other value
LARGE = 1_000_000  # bytes of a page above which its text is not read as a whole
MAX_EXCERPT_NODES = 1_000

_WORDS = re.compile(r"\S+")
_BEFORE_SIGN = re.compile(r"\0(?=[,.;:)])")


def find(tree: LexborHTMLParser, query: str, budget: Budget) -> list[LexborNode]:
    """Search a page; the budget counts the bytes searched."""
    budget.check(len(tree.raw_html))
    return tree.css(query)


def joined(text: str) -> str:
    """Fold white space; a NUL between text nodes becomes a space, but not before a comma."""
    if "\0" in text:
        text = _BEFORE_SIGN.sub("", text).replace("(\0", "(").replace("\0", " ")
    return " ".join(text.split())


def words(node: LexborNode, budget: Budget, limit: int = MAX_STRING) -> str:
    """Return the first words of an element."""
    if len(node.parser.raw_html) <= LARGE:
        return joined(node.text(separator="\0"))[:limit]
    parts, size = [], 0
    for inner in node.traverse(include_text=True):
        budget.check()
        if inner.is_text_node:
            text = inner.text_content or ""
            folded = _folded(text, limit)
            parts.append(f"{' ' * text[:1].isspace()}{folded}{' ' * text[-1:].isspace()}")
            size += len(folded)
            if size > limit:
                break
    return joined("\0".join(parts))[:limit]


def _folded(text: str, limit: int) -> str:
    """Fold the beginning of a text without making a list of all its words."""
    found, size = [], 0
    for match in _WORDS.finditer(text):
        found.append(match[0])
        size += len(match[0]) + 1
        if size > limit:
            break
    return " ".join(found)


def excerpt(node: LexborNode, enough: int = MAX_STRING) -> str:
    """Return the first words of an element; unlike `words`, cheap however deep they are nested.

    It may stop where it has more than `enough` characters.
    """
    first = node.child
    if first and first.is_element_node and not first.next:
        first = first.child  # mostly the text of a link or of bold words
    if first and first.is_text_node and not first.next:
        return " ".join((first.text_content or "")[:MAX_STRING].split())
    parts, size = [], 0
    for inner in islice(node.traverse(include_text=True), MAX_EXCERPT_NODES):
        if inner.is_text_node:
            text = (inner.text_content or "")[:MAX_STRING]
            parts.append(text)
            size += len(text)
            if size > MAX_STRING or (size > enough and len("".join(text.split())) > enough):
                break
    return joined("\0".join(parts))[:MAX_STRING]


def own_text(node: LexborNode) -> str:
    """Return the text of an element without that of the elements in it."""
    if len(node.parser.raw_html) <= LARGE:
        return node.text(deep=False)
    parts, left = [], MAX_TEXT
    for inner in node.iter(include_text=True):
        if inner.is_text_node:
            parts.append((inner.text_content or "")[:left])
            left -= len(parts[-1])
            if not left:
                break
    return "".join(parts)


MAX_NAME = 60  # characters of a name in which a known word is looked for

_DAY = (
    r"\d{1,4}[-./]\d{1,2}[-./]\d{2,4}|\d{1,2}\.? [^\W\d]{3,12}\.?,? \d{4}"
    r"|[^\W\d]{3,12}\.? \d{1,2},? \d{4}"
)
DATE = re.compile(
    rf"(?:[^\W\d]{{2,12}}\.?,? )?(?:{_DAY})(?:,? ?\d{{1,2}}:\d{{2}}.{{0,10}}| ?[^\W\d]{{1,5}}\.)?"
)
_SHORT_DATE = re.compile(r"\d{1,2}\.? [^\W\d]{3,9}\.?|[A-Z][^\W\d]{2,8}\.? \d{1,2}|\d{1,2}:\d\d")
_UNIT = (
    r"(?:seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|weeks?|months?|years?|[smhdwy])"
    r"|(?:Sekunde|Minute|Stunde|Tag|Woche|Monat|Jahr)\w{0,2}"
    r"|(?:segundo|minuto|hora|día|dia|semana|mes|año|ano|ora|ore|giorn|settiman|ann)\w{0,3}"
    r"|(?:seconde|heure|jour|semaine|mois|an)s?|(?:uur|dag|dagen|week|weken|maanden?|jaar)"
    r"|(?:секунд|минут|час|де?н|дни|дня|седмиц|недел|месец|месяц|годин|год|лет)\w{0,3}"
    r"|(?:sekund|minut|godzin|dni|dzień|tygodni|miesi)\w{0,3}"
    r"|(?:saniye|dakika|saat|gün|hafta|ay|yıl)"
)
_AGO = re.compile(
    rf"(?:(?:about |over )?(?:\d{{1,3}}|an?) ?(?:{_UNIT}) (?:ago|fa|geleden|temu|önce|назад|atrás)"
    rf"|(?:vor|hace|il y a|преди|há) (?:\d{{1,3}}|\w{{1,5}}) ?(?:{_UNIT})"
    r"|\d{1,3} ?(?:秒|分|時間|小时|小時|日|天|週間|か月|个月|年)前"
    r"|(?:just now|yesterday|today|gestern|heute|ayer|hoy|hier|aujourd'hui|вчера|днес|сегодня"
    r"|ieri|oggi|ontem|hoje|gisteren|vandaag|wczoraj|dziś|dzisiaj|dün|bugün|昨日|今日|昨天|今天))"
    r"(?!\w)",
    re.IGNORECASE,
)
_PRICE = re.compile(
    r"(?:from |ab |от |desde )?(?:[A-Z]{0,3}[$€£¥₽₹₺]|[A-Z]{3} |zł |kr )? ?\d[\d.,' ]{0,14}(?:,-)?"
    r" ?(?:[$€£¥₽₹₺円元]|[A-Z]{3}|лв\.?|руб\.?|zł|kr|TL)?(?:/\w{1,6})?"
)
_IS_MONEY = re.compile(r"[$€£¥₽₹₺円元]|[A-Z]{3}|лв|руб|zł|kr|TL|\d[.,]\d\d(?!\d)")
_COUNT = re.compile(r"\(?\d{1,3}\)?(?: ?[-:–] ?\d{1,3})?")
_MEASURED = re.compile(
    r"""value|price|tax|total|amount|fee|cost|due|balance|assess|market|rent|deposit|paid|sale
    |charge|credit|levy|exempt|income|land|improv|building|sum\b|rate|area|acre|size|width|depth
    |length|height|front|weight|room|bed|bath|stor(?:y|ie|ey)|floor|unit|level|garage|parking
    |fireplace|count|number|lot|block|section|township|range|book|page|year|age\b|school|ward
    |wert|preis|steuer|betrag|kosten|summe|gebühr|miete|kauf|gesamt|fläche|zimmer|geschoss|etage
    |\bbad|bäder|stellpl|anzahl|jahr|flur|blatt|größe|grund
    |цен|стойност|оценк|данък|данъч|такс|сума|наем|площ|ста[ия]|спалн|бан[ия]|етаж|гараж|брой|годин
    |стоимость|налог|комнат|этаж|аренд|сумм|кол
    |precio|valor|impuesto|importe|coste|renta|alquiler|superficie|habitac|dormitor|baño|planta|año
    |garaje|número|gastos|prix|valeur|montant|loyer|surface|pièce|chambre|salle|étage|charges
    |prezzo|valore|affitto|superfic|camer|bagn|piano|piani|anno|spese|preço|área|quarto|banheiro
    |vaga|andar|aluguel|condom|iptu|prijs|waarde|huur|oppervl|kamer|verdieping|bouwjaar
    |cena|wartość|czynsz|powierzch|poko|piętr|podatek|rok\b|fiyat|değer|kira|metrekare|oda|kat\b
    |banyo|面積|価格|賃料|階|部屋|室|年|面积|价格|层""",
    re.IGNORECASE | re.VERBOSE,
)
"""Names of what is counted, measured or paid in a record."""
_LANGUAGES = """english deutsch français francais español espanol italiano português portugues
    nederlands polski русский български türkçe turkce 日本語 中文 简体中文 繁體中文 한국어
    العربية ελληνικά čeština svenska dansk norsk suomi magyar română українська hrvatski srpski
    српски slovenčina slovenščina català eesti latviešu lietuvių עברית हिन्दी tiếng việt bahasa
    en de fr es it pt nl pl ru bg tr ja zh"""
_ACTIONS = """share|print|save|email|e-mail|log in|login|log out|logout|sign in|sign up|sign out
    |register|download|upload|edit|delete|remove|reply|report|like|follow|subscribe|unsubscribe
    |search|cancel|submit|close|back|next|previous|home|help|more|read more|show more|view
    |compare|add to cart|buy now|favorite|bookmark|copy|copy link|send|tweet|pin|contact|map|menu
    |reset|clear|export|quote|teilen|drucken|speichern|anmelden|abmelden|registrieren
    |herunterladen|merken|antworten|melden|weiter|zurück|suchen|schließen|senden|löschen
    |bearbeiten|imprimir|compartir|guardar|entrar|acceder|registrarse|descargar|enviar|volver
    |siguiente|anterior|buscar|cerrar|editar|eliminar|imprimer|partager|enregistrer|connexion
    |inscription|télécharger|envoyer|retour|suivant|précédent|сподели|принтирай|печат|запази|вход
    |изход|регистрация|изпрати|изтегли|назад|напред|търси|затвори|поделиться|печать|сохранить
    |войти|выйти|скачать|отправить|далее|поиск|закрыть|condividi|stampa|salva|accedi|registrati
    |scarica|invia|indietro|avanti|cerca|chiudi|partilhar|compartilhar|salvar|cadastrar|baixar
    |voltar|delen|afdrukken|opslaan|inloggen|registreren|zoeken|udostępnij|drukuj|zapisz|zaloguj
    |zarejestruj|pobierz|wyślij|szukaj|paylaş|yazdır|kaydet|giriş|kayıt ol|indir|gönder
    |共有|印刷|保存|ログイン|登録|分享|打印|登录|注册"""
_REMARKS = """note notes notice warning caution tip hint important attention disclaimer ps update
    hinweis achtung wichtig nota aviso atención attention remarque важно внимание забележка
    примечание uwaga dikkat nb source quelle fuente photo foto image bild снимка"""
_IS_LANGUAGE, _IS_REMARK = frozenset(_LANGUAGES.split()), frozenset(_REMARKS.split())
_IS_ACTION = frozenset(phrase.strip() for phrase in _ACTIONS.split("|"))


def is_noise(name: str, value: str) -> bool:
    """Say whether two unmarked texts cannot be a label and its value, by what they say."""
    label = name.rstrip(": ").casefold()
    if label in _IS_LANGUAGE:
        return True
    return label in _IS_ACTION and value.casefold() in _IS_ACTION


def is_remark(name: str) -> bool:
    """Say whether a word before a colon announces a sentence, such as `Note`."""
    return name.casefold() in _IS_REMARK


def are_noise(pairs: list[tuple[str, str]]) -> bool:
    """Say whether pairs of one form are no record: headlines, comments, prices or scores."""
    values = [value for _, value in pairs if value]
    if len(values) < 2:
        return False
    if all(map(_is_when, values)):
        return True
    if all(map(_is_price, values)) or (len(values) > 2 and all(map(_COUNT.fullmatch, values))):
        return not any(_MEASURED.search(name, 0, MAX_NAME) for name, _ in pairs)
    return False


def _is_when(value: str) -> bool:
    """Say whether a text is a date, or begins with a time such as `2 hours ago`."""
    return bool(DATE.fullmatch(value) or _SHORT_DATE.fullmatch(value) or _AGO.match(value))


def _is_price(value: str) -> bool:
    return bool(_PRICE.fullmatch(value) and _IS_MONEY.search(value))
