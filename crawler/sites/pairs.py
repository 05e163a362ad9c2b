"""Finds labels with their values, and tables, by the markup that pages use for them.

A `th`, `dt` or `label`, a colon, or a class with such a name marks a label. Other elements are
labels by position: every other cell of a row, bold text before a value, the first of two elements.
They must look like labels, their values must not be prose, and outside of tables at least two must
have the same form.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.fetch.budget import Budget
from crawler.sites.text import (
    DATE,
    LARGE,
    MAX_STRING,
    MAX_TEXT,
    are_noise,
    excerpt,
    find,
    is_noise,
    is_remark,
    joined,
    own_text,
    words,
)

MAX_FIELDS, MAX_KEY = 2_000, 200
MAX_TABLES, MAX_COLUMNS, MAX_ROWS, MAX_CELLS = 100, 50, 1_000, 20_000
MAX_SIBLINGS, MAX_LINES = 20, 4  # nodes behind a label that may be its value; lines of an address
MAX_LABEL, MAX_WORDS, MAX_WORDS_MARKED = 60, 6, 9  # characters; words of unmarked, marked labels
MAX_UNMARKED = 500  # characters of an unmarked label's value

Pair = tuple[str, str]
Cell = tuple[str, str, LexborNode]  # tag, words and node
Row = list[Cell]
Grid = list[Row]
Look = tuple[str | None, ...]  # what tells labels from values by sight

_LABELLED = re.compile(r"([^:：]{1,60})(?::\s+|：\s*)(\S.{0,499})")
_LETTER = re.compile(r"[^\W\d_]")
_DIGIT = re.compile(r"\d")
_NAMED = re.compile(r"label|lbl|caption|field-?name|\bkey\b", re.IGNORECASE)
_VALUED = re.compile(
    r"(?:^|[\s_-])(?:value|val|number|count|amount|figure|data)(?:$|\s)", re.IGNORECASE
)
_DASH = re.compile(r"[:：\s]*(?:[–—=|•·-](?:\s+|\Z))?")  # between a label and its value
_LABELS = (
    ":not(a) > b, :not(a) > strong, label, [class*=label i], :first-child:not(td, :only-child, th,"
    " li, tr, a, h1, h2, h3, dt, dd, legend, code, kbd, input, thead, tbody, br, wbr, img,"
    " blockquote, :has(div, ul, table))"
)
"""Elements that may be labels; what most pages have many of is ruled out here, to save time."""
_BOLD = frozenset({"b", "strong"})
_WRAPPERS = frozenset(("div", "span", "p", "font", "label", "b", "strong", "u", "em"))
_BLOCKS = frozenset(
    "table ul ol dl form fieldset h1 h2 h3 section article pre hr".split()  # noqa: SIM905
)
_PARTS_OF_PAGES = frozenset(("div", "ul", "ol", "section", "form", "p", "table"))
_ASIDE = re.compile(
    r"(?:^|\s|(?<!has)(?<!with)(?<!no)[_-])"
    r"(?:footer|nav|navbar|menu|breadcrumbs?|pagination|pager)(?:$|\s)|\bcookies?\b",
    re.IGNORECASE,
)
"""Names of parts beside the record; `has-menu` and `menu-open` may name the whole page."""


def read(tree: LexborHTMLParser, budget: Budget) -> tuple[list[Pair], list[Grid]]:
    """Return the pairs of label and value, and the tables that have a head."""
    headed, plain = grids(tree, budget)
    aside = _Aside()
    inline, cells = _inline(tree, aside, budget)
    found: list[Pair] = []
    for rows in plain:
        budget.check()
        if not aside.holds(rows[0][0][2]):
            found += _table_pairs(rows, cells)
    for rows in headed:
        budget.check()
        if len(rows) == 2 and not aside.holds(rows[0][0][2]):
            found += _zipped(rows[0], rows[1])
    found += _list_pairs(tree, aside, budget)
    found += inline
    if plain_pairs := list(_plain_pairs(tree, aside, budget)):
        known = {(name.rstrip(": "), value) for name, value in found}
        found += [pair for pair in plain_pairs if pair not in known]
    return found[:MAX_FIELDS], headed


def add_ancestors(node: LexborNode, known: set[int]) -> None:
    """Add the elements around a node, up to one that is known."""
    outer = node.parent
    while outer is not None and outer.mem_id not in known:
        known.add(outer.mem_id)
        outer = outer.parent


class _Aside:
    """Knows which parts of a page are menus and small print; looks at each element once."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def holds(self, node: LexborNode) -> bool:
        """Say whether a node lies in such a part."""
        path = []
        outer = node.parent
        inside = False
        while outer is not None:
            known = self._known.get(outer.mem_id)
            if known is not None:
                inside = known
                break
            path.append(outer)
            outer = outer.parent
        for element in reversed(path):
            inside = inside or _is_aside(element)
            self._known[element.mem_id] = inside
        return inside


def _is_aside(node: LexborNode) -> bool:
    tag = node.tag
    if tag not in _PARTS_OF_PAGES:
        return tag in ("nav", "footer")
    attributes = node.attributes
    names = f"{attributes.get('id') or ''} {attributes.get('class') or ''}"
    return bool(_ASIDE.search(names[:MAX_KEY]))


def is_label(text: str, max_words: int = MAX_WORDS) -> bool:
    """Say whether a text can be a label: short, with letters, no sentence, number or date."""
    name = text.rstrip(": ")
    if not 0 < len(name) <= MAX_LABEL or name.count(" ") >= max_words or name[-1] in "!,;":
        return False
    if ": " in name or (name[-1] == "." and len(name) - name.rfind(" ") > 5):
        return False
    if name.replace(" ", "").isalpha():
        return True
    if "@" in name or not (letters := len(_LETTER.findall(name))):
        return False
    return letters > len(_DIGIT.findall(name)) and not DATE.fullmatch(name)


def _is_prose(text: str) -> bool:
    """Say whether a text is a sentence, not a value."""
    parts = text.split()
    if len(parts) < 6 or not (text[-1] in ".!?…" or ". " in text):
        return False
    return 2 * sum(part.islower() for part in parts) > len(parts)


def _is_plausible(name: str, value: str) -> bool:
    """Say whether two unmarked texts can be a label and its value."""
    if not value or len(value) > MAX_UNMARKED or value.endswith(":"):
        return False
    if not is_label(name) or _is_prose(value) or is_noise(name, value):
        return False
    inner = ":" in value and _LABELLED.fullmatch(value)  # a value with a label of its own
    return not inner or not is_label(inner[1])


def _has_digit(row: Row) -> bool:
    return any(_DIGIT.search(text) for _, text, _ in row)


def _look(node: LexborNode) -> Look:
    """Describe how an element looks, by its attributes and its first child."""
    attributes = node.attributes
    own = (attributes.get(name) for name in ("class", "bgcolor", "style", "align"))
    inner = _past_space(node.child)
    if inner is None:
        return (node.tag, *own, None, None)
    if inner.is_text_node:
        return (node.tag, *own, inner.tag, None)
    return (node.tag, *own, inner.tag, inner.attributes.get("class"))


def _kind(node: LexborNode) -> Look:
    tag = node.tag
    if tag in _BOLD:
        return ("b", None)
    return (tag, node.attributes.get("class"))


def _is_space(node: LexborNode) -> bool:
    return node.is_comment_node or (node.is_text_node and node.is_empty_text_node)


def _past_space(node: LexborNode | None) -> LexborNode | None:
    """Return a node, or the first after it that is not white space or a comment."""
    while node is not None and _is_space(node):
        node = node.next
    return node


def _is_link(node: LexborNode) -> bool:
    first = _past_space(node.child)
    return first is not None and first.tag == "a" and _past_space(first.next) is None


def _before(node: LexborNode) -> LexborNode | None:
    """Return the last node before another one that is not white space or a comment."""
    before = node.prev
    while before is not None and _is_space(before):
        before = before.prev
    return before


def _is_alone(node: LexborNode) -> bool:
    """Say whether an element is all that its parent holds."""
    return _past_space(node.next) is None and _before(node) is None


def grids(tree: LexborHTMLParser, budget: Budget) -> tuple[list[Grid], list[Grid]]:
    """Return the rows of the tables with a head, and of the others.

    A row that holds a table is layout. Where several heads follow in a table, each begins another.
    """
    headed: list[Grid] = []
    plain: list[Grid] = []
    cells_left, tables_left = MAX_CELLS, MAX_TABLES
    tables = find(tree, "table", budget)
    layout: set[int] = set()
    for table in tables:
        budget.check()
        add_ancestors(table, layout)
    for table in tables:
        budget.check()
        rows: Grid = []
        for row in islice(_rows(table, layout, budget), MAX_ROWS):
            if row:
                rows.append(row)
                cells_left -= len(row)
                if cells_left <= 0:
                    break
        if rows:
            tables_left -= 1
            for part, has_head in _parts(rows):
                if has_head and len(part) > 1:
                    headed.append(part)
                else:
                    plain.append(part)
        if cells_left <= 0 or not tables_left:
            break
    return headed, plain


def _rows(table: LexborNode, layout: set[int], budget: Budget) -> Iterator[Row]:
    is_large = len(table.parser.raw_html) > LARGE
    for part in table.iter():
        budget.check()
        tag = part.tag
        if tag == "tr":
            if part.mem_id not in layout:
                yield _cells(part, is_large, budget)
        elif tag in ("thead", "tbody", "tfoot"):
            for row in part.iter():
                budget.check()
                if tag == "thead":
                    yield [("th", text, cell) for _, text, cell in _cells(row, is_large, budget)]
                elif row.mem_id not in layout:
                    yield _cells(row, is_large, budget)


def _cells(row: LexborNode, is_large: bool, budget: Budget) -> Row:
    found: Row = []
    for cell in islice(row.iter(), MAX_COLUMNS):
        tag = cell.tag
        if tag in ("td", "th"):
            text = words(cell, budget) if is_large else joined(cell.text(separator="\0"))
            if text == ":" and found:
                label_tag, label, node = found[-1]
                found[-1] = (label_tag, f"{label}:", node)
            else:
                found.append((tag, text[:MAX_STRING], cell))
    return found


def _parts(rows: Grid) -> Iterator[tuple[Grid, bool]]:
    """Cut a table at each further head, and where rows begin to have labels of their own."""
    begin = next((at for at, row in enumerate(rows) if len(row) > 1), 0)
    headed = len(rows) > begin + 1 and _is_head(rows[begin], rows[begin + 1])
    if headed and rows[-1][-1][0] == "th":
        headed = any(tag == "td" for row in rows for tag, _, _ in row)
    by_looks = headed and rows[begin][0][0] == "td"
    for at in range(begin + 2, len(rows)):
        row = rows[at]
        is_marked = row[0][0] == "th" and rows[at - 1][0][0] == "td"
        if not is_marked and not by_looks:
            continue
        if at + 1 < len(rows) and _is_head(row, rows[at + 1]):
            yield rows[begin:at], headed
            begin, headed = at, True
        elif is_marked and headed and row[-1][0] == "td":
            yield rows[begin:at], True
            begin, headed = at, False
    yield rows[begin:], headed


def _is_head(row: Row, below: Row) -> bool:
    """Say whether a row names columns: head cells, or labels that look unlike the row below."""
    if len(row) < 2:
        return False
    if row[0][0] == "th":
        return all(tag == "th" for tag, _, _ in row)
    look = _look(row[0][2])
    if len(row) != len(below) or look == _look(below[0][2]):
        return False
    if any(_look(node) != look for _, _, node in row):
        return False
    # Two cells that differ only in colour from those below are striped rows.
    if len(row) == 2 and look[-2] not in _BOLD:
        return False
    if any(_look(node) == look for _, _, node in below):
        return False
    return all(is_label(text) for _, text, _ in row)


def _zipped(names: Row, cells: Row) -> Iterator[Pair]:
    for (_, name, _), (_, value, _) in zip(names, cells, strict=False):
        if value and is_label(name, MAX_WORDS_MARKED):
            yield name, value


def _table_pairs(rows: Grid, taken: set[int]) -> list[Pair]:
    if taken:
        rows = [row for row in rows if not any(node.mem_id in taken for _, _, node in row)]
    marked: list[Pair] = []
    others: Grid = []
    for row in _without_gaps(rows):
        found = _marked_pairs(row)
        if found is None:
            others.append(row)
        else:
            marked += found
    return marked + _placed_pairs(others)


def _without_gaps(rows: Grid) -> Grid:
    """Drop columns that only make room: those that are empty where a label is due."""
    width = max(map(len, rows), default=0)
    used = {at for row in rows for at, (_, text, _) in enumerate(row) if text}
    if len(used) == width:
        return rows
    kept: set[int] = set()
    for at in range(width):
        if at in used or len(kept) % 2:
            kept.add(at)
    narrow = ([cell for at, cell in enumerate(row) if at in kept] for row in rows)
    return [row for row in narrow if row]


def _marked_pairs(row: Row) -> list[Pair] | None:
    """Return the pairs of a row whose labels have a head cell or a colon; None for other rows."""
    filled = [cell for cell in row if cell[1]]
    if len(row) % 2:
        row = filled
    inside = [found for _, text, node in row if ": " in text and (found := _in_cell(text, node))]
    if inside and len(inside) == len(filled):
        return [pair for found in inside for pair in found if is_label(pair[0])]
    labels = row[::2]
    if len(row) % 2 or any(text and tag != "th" and text[-1] != ":" for tag, text, _ in labels):
        return None
    return list(_zipped(labels, row[1::2]))


def _in_cell(text: str, cell: LexborNode) -> list[Pair]:
    """Return the pairs of a cell that holds `Label: value`, or lines of them."""
    first = _past_space(cell.child)
    if text.count(": ") > 1 and first is not None and first.is_text_node:
        _, pairs = _in_lines(cell, first)
        if pairs:
            return pairs
    found = _LABELLED.fullmatch(text)
    if not found or _is_prose(found[2]):
        return []
    return [(found[1], found[2])]


def _placed_pairs(rows: Grid) -> list[Pair]:
    """Return the pairs of rows in which only a cell's position tells what it is."""
    if not any(text for row in rows for _, text, _ in row):
        return []
    width = max(map(len, rows))
    even = [row for row in rows if len(row) % 2 == 0]
    if not _alternates(even, width):
        if len(rows) == 2 and width > 2 and _is_plain_head(*rows):
            return list(_zipped(*rows))
        return []
    pairs: list[Pair] = []
    for row in even:
        if not all(_is_link(node) for _, text, node in row if text):
            texts = [text for _, text, _ in row]
            pairs += zip(texts[::2], texts[1::2], strict=True)
    if are_noise(pairs):
        return []
    return [pair for pair in pairs if _is_plausible(*pair)]


def _alternates(rows: Grid, width: int) -> bool:
    """Say whether every other cell is a label, by what it says and how it looks."""
    labels = [cell for row in rows for cell in row[::2] if cell[1]]
    filled = [cell for row in rows for cell in row[1::2] if cell[1]]
    if not labels or not filled:
        return False
    likely = sum(is_label(text, MAX_WORDS_MARKED) for _, text, _ in labels)
    if width == 2:
        return 2 * likely > len(labels)
    if 5 * likely < 4 * len(labels):
        return False
    looks = [{_look(row[at][2]) for row in rows if at < len(row)} for at in range(3)]
    if looks[0] == looks[2] and not looks[0] & looks[1]:
        return True
    return len({text for _, text, _ in labels}) == len(labels) and _has_digit(filled)


def _is_plain_head(head: Row, below: Row) -> bool:
    """Say whether the first of two unmarked rows names what is in the second."""
    if len(head) != len(below) or _has_digit(head) or not _has_digit(below):
        return False
    return all(is_label(text) for _, text, _ in head)


def _list_pairs(tree: LexborHTMLParser, aside: _Aside, budget: Budget) -> Iterator[Pair]:
    for terms in find(tree, "dl:not(:has(dl))", budget)[:MAX_TABLES]:
        budget.check(len(tree.raw_html))
        if aside.holds(terms):
            continue
        name = ""
        for node in terms.css("dt, dd")[:MAX_FIELDS]:
            budget.check()
            text = excerpt(node)
            if node.tag == "dt":
                name = text
                continue
            is_answer = name.endswith("?") and (name.count(" ") > 2 or _is_prose(text))
            if text and not is_answer and is_label(name, MAX_WORDS_MARKED):
                yield name, text


class _Found(NamedTuple):
    """A pair outside of table cells; one with a `form` needs others of the same form."""

    name: str
    value: str
    form: tuple[object, ...] | None


def _inline(tree: LexborHTMLParser, aside: _Aside, budget: Budget) -> tuple[list[Pair], set[int]]:
    """Return pairs such as `<b>Owner:</b> Jane Roe<br>`, and the table cells that hold some."""
    if not tree.body:
        return [], set()
    found: list[tuple[_Found, LexborNode]] = []
    likely: Counter[object] = Counter()
    seen: set[int] = set()
    budget.check(len(tree.raw_html))
    for label in tree.body.css(_LABELS)[:MAX_FIELDS]:
        budget.check()
        if label.child is None or label.mem_id in seen:
            continue
        for pair in _run(label, seen, budget):
            found.append((pair, label))
            if pair.form and _is_plausible(pair.name, pair.value):
                likely[pair.form] += 1
    # Most pages have none: only for what can be a pair is it looked up where it lies.
    inside: list[tuple[_Found, LexborNode]] = []
    for pair, label in found:
        budget.check()
        if (not pair.form or likely[pair.form] > 1) and not aside.holds(label):
            inside.append((pair, label))
    found = _without_noise(inside)
    budget.check(len(tree.raw_html))
    forms: dict[object, list[Pair]] = {}
    for pair, _ in found:
        if pair.form:
            forms.setdefault(pair.form, []).append(pair[:2])
    good = {form for form, same in forms.items() if _are_pairs(same)}
    kept: list[Pair] = []
    cells: set[int] = set()
    for (name, value, form), label in found:
        if form and form not in good:
            continue
        cells.add(_cell_of(label))
        is_pair = _is_plausible(name, value) if form else is_label(name, MAX_WORDS_MARKED)
        if value and is_pair:
            kept.append((name, value))
    return kept, cells - {0}


def _without_noise(found: list[tuple[_Found, LexborNode]]) -> list[tuple[_Found, LexborNode]]:
    """Drop lists that are noise; another part of the page may have pairs of the same form."""
    lists: dict[object, list[Pair]] = {}
    places: list[object] = []
    for (name, value, form), label in found:
        box = label.parent and label.parent.parent
        place = form and (form, box.mem_id if box else 0)
        places.append(place)
        if place:
            lists.setdefault(place, []).append((name, value))
    noise = {place for place, pairs in lists.items() if len(pairs) > 2 and are_noise(pairs)}
    return [one for one, place in zip(found, places, strict=True) if place not in noise]


def _are_pairs(pairs: list[Pair]) -> bool:
    """Say whether texts of one form are labels and values: several, and most of them plausible."""
    likely = sum(_is_plausible(*pair) for pair in pairs)
    return likely > 1 and 2 * likely > len(pairs) and not are_noise(pairs)


def _cell_of(node: LexborNode) -> int:
    """Return the table cell that a label lies in, if it is near, or 0."""
    outer = node.parent
    for _ in range(3):
        if outer is None:
            break
        if outer.tag in ("td", "th"):
            return outer.mem_id
        outer = outer.parent
    return 0


def _run(inner: LexborNode, seen: set[int], budget: Budget) -> Iterator[_Found]:
    """Return the pairs that begin with a label and with those beside it that look the same."""
    first = inner
    while _is_alone(first):
        outer = first.parent
        if outer is None or outer.tag not in _WRAPPERS:
            return
        first = outer
    if first.tag in ("td", "th") or (first is not inner and first.mem_id in seen):
        return
    names = (inner.attributes.get("class") or "")[:MAX_KEY]
    named = "label" in (first.tag, inner.tag) or bool(_NAMED.search(names))
    is_value = not named and bool(_VALUED.search(names))
    if named or is_value:
        below: LexborNode | None = first
        if is_value:
            below = _past_space(first.next)
            if below is not None and below.tag == "br":
                below = _past_space(below.next)
        if below is not None and (above := _value_above(below)):
            seen |= {first.mem_id, below.mem_id}
            yield _Found(excerpt(below), above, None)
            return
    if is_value or (not named and _is_in_prose(first, inner)):
        return
    kind = _kind(first)
    form = (kind, first.parent and first.parent.tag)
    if (twin := _twin(first, kind)) is not None:
        seen |= {first.mem_id, twin.mem_id}
        if not (_is_link(first) and _is_link(twin)):
            yield _Found(excerpt(first), excerpt(twin), form)
        return
    is_bold = kind[0] == "b" or inner.tag in _BOLD
    yield from _labels(first, named, is_bold, form, seen, budget)


def _labels(
    first: LexborNode,
    named: bool,
    is_bold: bool,
    form: tuple[Look, object],
    seen: set[int],
    budget: Budget,
) -> Iterator[_Found]:
    label: LexborNode | None = first
    while label is not None:
        budget.check()
        seen.add(label.mem_id)
        name = excerpt(label, MAX_KEY)
        if not 0 < len(name) <= MAX_KEY:
            return
        marked = named or name.endswith((":", "："))
        if not marked and not is_bold and not is_label(name):
            yield _Found(name, name, form)  # what follows need not be read
            return
        value, following = _behind(label, form[0], budget)
        marked = marked or (is_bold and value.startswith((":", "：")))
        value = _DASH.sub("", value, count=1)[:MAX_STRING]
        if (before := _text_before(label)).endswith(":"):
            name, value, marked = joined(before[-MAX_KEY:]), name, True
        if marked and is_label(name, MAX_WORDS_MARKED):
            yield _Found(name, value, None)
        elif value and not marked:
            yield _Found(name, value, form)
        label = following


def _value_above(label: LexborNode) -> str:
    """Return the value before the last element of a box, if their classes tell the two apart."""
    value = _before(label)
    if value is not None and value.tag == "br":
        value = _before(value)
    if value is None or not value.is_element_node or _past_space(label.next) is not None:
        return ""
    of_label, of_value = ((node.attributes.get("class") or "")[:MAX_KEY] for node in (label, value))
    if not _NAMED.search(of_label) or not _VALUED.search(of_value):
        return ""
    return excerpt(value)


def _is_in_prose(first: LexborNode, inner: LexborNode) -> bool:
    """Say whether an element is part of a sentence, such as a bold word, by the text around it."""
    before, after = _text_before(first), ""
    following = first.next
    if following is not None and following.is_text_node:
        after = (following.text_content or "").strip()
    if first.tag in _BOLD or inner.tag in _BOLD:
        has_colon = before.endswith(":") or after.startswith(":")
        return bool(before) and not has_colon and not own_text(inner).rstrip().endswith(":")
    if before:
        return True
    return bool(after) and not after.startswith(":") and not excerpt(first).endswith(":")


def _text_before(node: LexborNode) -> str:
    before = node.prev
    if before is None or not before.is_text_node:
        return ""
    return (before.text_content or "").rstrip()


def _twin(first: LexborNode, kind: Look) -> LexborNode | None:
    """Return the second of two elements of one kind that are all their parent holds."""
    twin = _past_space(first.next)
    if twin is None or twin.is_text_node or _past_space(twin.next) is not None:
        return None
    if _kind(twin) != kind or not first.parent or _past_space(first.parent.child) != first:
        return None
    return twin


def _behind(label: LexborNode, kind: Look, budget: Budget) -> tuple[str, LexborNode | None]:
    """Return the words behind a label, and the next label of its kind, if it is near."""
    lines: list[list[str]] = [[]]
    node = label.next
    for _ in range(MAX_SIBLINGS):
        budget.check()
        if node is None:
            break
        if node.is_text_node:
            lines[-1].append((node.text_content or "")[:MAX_STRING])
        elif node.tag == "br":
            lines.append([])
        elif not node.is_comment_node:
            if _kind(node) == kind:
                return _first_lines(lines), node
            if node.tag in _BLOCKS:
                break
            lines[-1].append(excerpt(node))
        node = node.next
    return _first_lines(lines), None


def _first_lines(lines: list[list[str]]) -> str:
    """Return the first lines of a text, up to an empty one: an address, for example."""
    found: list[str] = []
    for line in lines[: MAX_LINES + 2]:
        text = joined("\0".join(line))
        if found:
            if not text or len(found) == MAX_LINES:
                break
            if _LABELLED.fullmatch(text) or _is_prose(text):
                break
        if text:
            found.append(text)
    return joined("\0".join(found))


# Lines of plain text.

_PLAIN = "p, li, pre, div:not(:has(div, p, ul, table, dl))"
_INLINE = frozenset(("b", "strong", "span", "em", "i", "font", "a", "u", "small", "time", "bdi"))
_DRESS = frozenset(("span", "font", "em", "i", "small", "u"))
_LEADERS = re.compile(r"(?:\s?\.){2,}\s?\Z")
_MAX_COLON = 70  # characters of a line in which its colon is looked for


class _Run:
    """Holds the pairs of similar elements that follow each other."""

    def __init__(self, first: LexborNode) -> None:
        self.pairs: list[Pair] = []
        self.first = self.last = first


def _plain_pairs(tree: LexborHTMLParser, aside: _Aside, budget: Budget) -> Iterator[Pair]:
    """Return pairs such as `<li>Owner: Jane Roe</li>` and `<li>Owner <b>Jane Roe</b></li>`.

    Several must follow each other.
    """
    if not tree.body:
        return
    runs: list[_Run] = []
    by_last: dict[tuple[int, object], _Run] = {}
    budget.check(len(tree.raw_html))
    for node in tree.body.css(_PLAIN)[:MAX_FIELDS]:
        first = node.child
        if first is None or (first.is_element_node and first.tag not in _DRESS):
            continue
        if not first.is_text_node or first.is_empty_text_node:
            first = _past_space(first)
            if first is None or (first.is_element_node and first.tag not in _DRESS):
                continue
        text = (first.text_content or "") if first.is_text_node else _dressed_label(first, budget)
        has_colon = text.find(":", 0, _MAX_COLON) >= 0 or "：" in text[:_MAX_COLON]
        if not has_colon and (not text or len(text) > MAX_LABEL):
            continue
        budget.check()
        if has_colon:
            form, pairs = _in_lines(node, first)
        else:
            form, pairs = _before_value(node, first, text)
        if form is None:
            continue
        before = _before(node)
        run = by_last.pop((before.mem_id, form), None) if before is not None else None
        if run is None:
            run = _Run(node)
            runs.append(run)
        run.pairs += pairs
        run.last = node
        by_last[node.mem_id, form] = run
    for run in runs:
        if _is_record(run) and not aside.holds(run.first):
            yield from run.pairs


def _dressed_label(first: LexborNode, budget: Budget) -> str:
    """Return the text of an element with a colon behind it, or nothing."""
    budget.check()
    after = first.next
    if after is None or not after.is_text_node:
        return ""
    if not (after.text_content or "").lstrip().startswith(":"):
        return ""
    return f"{excerpt(first)}:"


def _is_record(run: _Run) -> bool:
    """Say whether lines are a record: three or more, or all of a box, and each label once."""
    names = {name for name, _ in run.pairs}
    if len(names) < 2 or 4 * len(names) < 3 * len(run.pairs) or are_noise(run.pairs):
        return False
    return len(names) > 2 or (_before(run.first) is None and _past_space(run.last.next) is None)


def _in_lines(node: LexborNode, first: LexborNode) -> tuple[object | None, list[Pair]]:
    """Return the form of an element's lines and their pairs; no form if they have no labels.

    A label may have no value, and then makes no pair.
    """
    if node.tag == "pre":
        if first.next is not None:
            return None, []
        text = (first.text_content or "")[:MAX_TEXT]
        texts = [" ".join(line.split()) for line in text.split("\n")]
    else:
        lines = _lines(first)
        if lines is None:
            return None, []
        texts = [joined("\0".join(line)) for line in lines]
    pairs = _labelled(texts)
    if pairs is None:
        return None, []
    return node.tag, pairs


def _lines(first: LexborNode) -> list[list[str]] | None:
    """Return the texts of each line of an element; None if it holds more than text."""
    lines: list[list[str]] = [[]]
    part: LexborNode | None = first
    for _ in range(MAX_SIBLINGS * MAX_LINES):
        if part is None:
            break
        if part.is_text_node:
            lines[-1].append((part.text_content or "")[:MAX_STRING])
        elif part.tag == "br":
            lines.append([])
        elif part.tag in _INLINE:
            lines[-1].append(excerpt(part))
        elif not part.is_comment_node:
            return None
        part = part.next
    return lines


def _before_value(
    node: LexborNode, first: LexborNode, text: str
) -> tuple[object | None, list[Pair]]:
    """Return the same of an element whose label is text, with its value in one element behind."""
    value = first.next
    if value is None or (tag := value.tag) not in _INLINE or _past_space(value.next) is not None:
        return None, []
    pair = joined(text), excerpt(value)
    if not is_label(pair[0]) or (pair[1] and not _is_plausible(*pair)):
        return None, []
    return (node.tag, tag), [pair] if pair[1] else []


def _labelled(lines: list[str]) -> list[Pair] | None:
    """Return the pairs of lines such as `Owner: Jane Roe`; None if there are other lines.

    Lines without a label belong to the value above them.
    """
    pairs: list[tuple[str, list[str]]] = []
    is_open = False
    for line in lines:
        found = _LABELLED.fullmatch(line)
        name = _LEADERS.sub("", found[1] if found else line[:MAX_LABEL]).rstrip(" :：")
        if found and is_label(name) and not is_remark(name) and not _is_sentence(found[2]):
            pairs.append((name, [found[2]]))
        elif line.endswith((":", "：")) and is_label(line):
            pairs.append((name, []))
        elif line and (not is_open or found or _is_sentence(line)):
            return None
        elif line and len(pairs[-1][1]) < MAX_LINES:
            pairs[-1][1].append(line)
        is_open = bool(line and pairs)
    if not pairs:
        return None
    return [(name, " ".join(values)) for name, values in pairs if values]


def _is_sentence(text: str) -> bool:
    """Say whether a text behind a colon is a sentence, not a value."""
    parts = text.split()
    if len(parts) < 3 or text[-1] not in ".!?…":
        return _is_prose(text)
    return 2 * sum(part.islower() for part in parts) >= len(parts)
