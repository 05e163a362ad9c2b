"""Labels and their values in a page, and its tables, by the shapes that pages give to them.

A `th`, `dt` or `label`, a colon, or a class with that name marks a label. Others are labels by
their place: every other cell of a row, bold before a value, the first of two elements. They must
look like labels, and their values must not be prose; outside of tables, there must be two of the
same form.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.fetch.budget import Budget
from crawler.sites.noise import DATE, are_noise, is_noise, is_remark
from crawler.sites.words import LARGE, MAX_STRING, MAX_TEXT, excerpt, joined, own_text, words

MAX_FIELDS, MAX_KEY = 2_000, 200
MAX_TABLES, MAX_COLUMNS, MAX_ROWS, MAX_CELLS = 100, 50, 1_000, 20_000
MAX_SIBLINGS, MAX_LINES = 20, 4
"""Nodes behind a label that may be its value, and lines of an address."""
MAX_LABEL, MAX_WORDS, MAX_WORDS_MARKED = 60, 6, 9
"""Characters of a label, and words of one that is not marked, and of one that is."""
MAX_UNMARKED = 500
"""Characters of the value of a label that is not marked."""

Pair = tuple[str, str]
Cell = tuple[str, str, LexborNode]
"""Tag, words and node."""
Grid = list[list[Cell]]
Look = tuple[str | None, ...]
"""What tells labels from values, of whatever kind it is."""

_LABELLED = re.compile(r"([^:：]{1,60})(?::\s+|：\s*)(\S.{0,499})")
_LETTER = re.compile(r"[^\W\d_]")
_DIGIT = re.compile(r"\d")
_NAMED = re.compile(r"label|lbl|caption|field-?name|\bkey\b", re.IGNORECASE)
_VALUED = re.compile(
    r"(?:^|[\s_-])(?:value|val|number|count|amount|figure|data)(?:$|\s)", re.IGNORECASE
)
_DASH = re.compile(r"[:：\s]*(?:[–—=|•·-](?:\s+|\Z))?")
"""What stands between a label and its value and belongs to neither."""
_LABELS = (
    ":not(a) > b, :not(a) > strong, label, [class*=label i], :first-child"
    ":not(td, :only-child, th, li, tr, a, h1, h2, h3, dt, dd, legend, code, kbd, input, thead, tbody, br, wbr"
    ", img, blockquote, :has(div, ul, table))"
)
"""Elements that may be labels: those that say so, and the first of several in an element.

What most pages have is ruled out first, to save time."""
_BOLD = frozenset({"b", "strong"})
_WRAPPERS = frozenset({"div", "span", "p", "font", "label", "b", "strong", "u", "em"})
_BLOCKS = frozenset(
    {
        "table",
        "ul",
        "ol",
        "dl",
        "form",
        "fieldset",
        "h1",
        "h2",
        "h3",
        "section",
        "article",
        "pre",
        "hr",
    }
)
_ASIDE = re.compile(
    r"(?:^|\s|(?<!has)(?<!with)(?<!no)[_-])(?:footer|nav|navbar|menu|breadcrumbs?|pagination|pager)(?:$|\s)|\bcookies?\b",
    re.IGNORECASE,
)
"""Names of the parts beside a page's record; not `has-menu` or `menu-open`, which may be names of
all of it."""


def read(tree: LexborHTMLParser, budget: Budget) -> tuple[list[Pair], list[Grid]]:
    """The pairs of label and value in tables, definition lists and elements; and the tables that
    have a head."""
    headed, plain = grids(tree, budget)
    beside = _Beside()
    inline, cells = _inline(tree, beside, budget)
    found: list[Pair] = []
    for rows in plain:
        budget.check()
        if not beside.holds(rows[0][0][2]):
            found += _table_pairs(rows, cells)
    for rows in headed:
        budget.check()
        if len(rows) == 2 and not beside.holds(rows[0][0][2]):
            found += _zipped(rows[0], rows[1])
    found += _list_pairs(tree, beside, budget)
    found += inline
    if plain_pairs := list(_plain_pairs(tree, beside, budget)):
        known = {(name.rstrip(": "), value) for name, value in found}
        found += [pair for pair in plain_pairs if pair not in known]
    return found[:MAX_FIELDS], headed


class _Beside:
    """Knows which parts of a page are menus and small print; asks each element once."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def holds(self, node: LexborNode) -> bool:
        """Whether a node lies in such a part."""
        path = []
        outer = node.parent
        while outer is not None and (known := self._known.get(outer.mem_id)) is None:
            path.append(outer)
            outer = outer.parent
        inside = bool(outer is not None and known)
        for element in reversed(path):
            inside = inside or _is_beside(element)
            self._known[element.mem_id] = inside
        return inside


def _is_beside(node: LexborNode) -> bool:
    tag = node.tag
    if tag in ("nav", "footer"):
        return True
    if tag not in ("div", "ul", "ol", "section", "form", "p", "table"):
        return False
    attributes = node.attributes
    names = f"{attributes.get('id') or ''} {attributes.get('class') or ''}"[:MAX_KEY]
    return bool(_ASIDE.search(names))


def is_label(text: str, most_words: int = MAX_WORDS) -> bool:
    """Whether a text can be a label: short, with letters, no sentence, number or date."""
    name = text.rstrip(": ")
    if not 0 < len(name) <= MAX_LABEL or name.count(" ") >= most_words or name[-1] in "!,;":
        return False
    if ": " in name or (name[-1] == "." and len(name) - name.rfind(" ") > 5):
        return False
    if name.replace(" ", "").isalpha():
        return True
    if "@" in name or not (letters := len(_LETTER.findall(name))):
        return False
    return letters > len(_DIGIT.findall(name)) and not DATE.fullmatch(name)


def _is_prose(text: str) -> bool:
    """Whether a text is a sentence, not a value."""
    parts = text.split()
    if len(parts) < 6 or not (text[-1] in ".!?…" or ". " in text):
        return False
    return 2 * sum(part.islower() for part in parts) > len(parts)


def _is_plausible(name: str, value: str) -> bool:
    """Whether two texts that nothing marks can be a label and its value."""
    if not value or len(value) > MAX_UNMARKED or value.endswith(":"):
        return False
    if not is_label(name) or _is_prose(value) or is_noise(name, value):
        return False
    inner = _LABELLED.fullmatch(value) if ":" in value else None  # a value with a label of its own
    return not inner or not is_label(inner[1])


def grids(tree: LexborHTMLParser, budget: Budget) -> tuple[list[Grid], list[Grid]]:
    """The rows of all tables: first of those with a head, then of the others.

    A row that holds a table only makes the layout. Where heads follow each other in a table, each
    begins another.
    """
    headed: list[Grid] = []
    plain: list[Grid] = []
    left, tables = MAX_CELLS, MAX_TABLES
    budget.check(len(tree.raw_html))
    found = tree.css("table")
    layout = _around(found, budget)
    for table in found:
        budget.check()
        rows: Grid = []
        for row in islice(_rows(table, layout, budget), MAX_ROWS):
            if row:
                rows.append(row)
                left -= len(row)
                if left <= 0:
                    break
        if rows:
            tables -= 1
            for part, has_head in _parts(rows):
                (headed if has_head and len(part) > 1 else plain).append(part)
        if left <= 0 or not tables:
            break
    return headed, plain


def _around(tables: list[LexborNode], budget: Budget) -> set[int]:
    """The elements that hold a table."""
    known: set[int] = set()
    for table in tables:
        budget.check()
        outer = table.parent
        while outer is not None and outer.mem_id not in known:
            known.add(outer.mem_id)
            outer = outer.parent
    return known


def _rows(table: LexborNode, layout: set[int], budget: Budget) -> Iterator[list[Cell]]:
    large = len(table.parser.raw_html) > LARGE
    for part in table.iter():
        budget.check()
        tag = part.tag
        if tag == "tr":
            if part.mem_id not in layout:
                yield _cells(part, large, budget)
        elif tag == "thead":
            for row in part.iter():
                budget.check()
                yield [("th", text, cell) for _, text, cell in _cells(row, large, budget)]
        elif tag in ("tbody", "tfoot"):
            for row in part.iter():
                budget.check()
                if row.mem_id not in layout:
                    yield _cells(row, large, budget)


def _cells(row: LexborNode, large: bool, budget: Budget) -> list[Cell]:
    found: list[Cell] = []
    for cell in islice(row.iter(), MAX_COLUMNS):
        tag = cell.tag
        if tag in ("td", "th"):
            if large:
                text = words(cell, budget)
            elif "\0" in (text := cell.text(separator="\0")):
                text = joined(text)[:MAX_STRING]
            else:
                text = " ".join(text.split())[:MAX_STRING]
            if text == ":" and found:  # of the label before it
                found[-1] = (found[-1][0], f"{found[-1][1]}:", found[-1][2])
            else:
                found.append((tag, text, cell))
    return found


def _parts(rows: Grid) -> Iterator[tuple[Grid, bool]]:
    """The rows from each head to the next, or to where rows begin to have labels; and whether there
    is a head."""
    begin = next((at for at, row in enumerate(rows) if len(row) > 1), 0)
    headed = len(rows) > begin + 1 and _is_head(rows[begin], rows[begin + 1])
    if headed and rows[-1][-1][0] == "th":
        headed = any(tag == "td" for row in rows for tag, _, _ in row)
    by_looks = headed and rows[begin][0][0] == "td"
    others = range(begin + 2, len(rows))
    for at in others if by_looks else [at for at in others if rows[at][0][0] == "th"]:
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


def _is_head(row: list[Cell], below: list[Cell]) -> bool:
    """Whether a row has the names of columns: head cells, or labels that look alike, and unlike
    what is below."""
    if len(row) < 2:
        return False
    if row[0][0] == "th":
        return all(tag == "th" for tag, _, _ in row)
    look = _look(row[0][2])
    if (
        len(row) != len(below)
        or look == _look(below[0][2])
        or any(_look(node) != look for _, _, node in row)
    ):
        return False
    # Two cells that only differ in colour from those below are striped rows.
    if (len(row) == 2 and look[-2] not in _BOLD) or any(
        _look(node) == look for _, _, node in below
    ):
        return False
    return all(is_label(text) for _, text, _ in row)


def _look(node: LexborNode) -> Look:
    """How a cell or an element looks, by its attributes and its first child."""
    attributes = node.attributes
    inner = _past_space(node.child)
    child = inner.attributes.get("class") if inner is not None and not inner.is_text_node else None
    return (
        node.tag,
        *(attributes.get(name) for name in ("class", "bgcolor", "style", "align")),
        inner.tag if inner is not None else None,
        child,
    )


def _past_space(node: LexborNode | None) -> LexborNode | None:
    """A node, or the first one behind it that is not only white space or a comment."""
    while node is not None and (
        node.is_comment_node or (node.is_text_node and node.is_empty_text_node)
    ):
        node = node.next
    return node


def _zipped(names: list[Cell], cells: list[Cell]) -> Iterator[Pair]:
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
    """The rows without columns that only make room: those that are empty where a label is due."""
    used = {at for row in rows for at, (_, text, _) in enumerate(row) if text}
    if rows and len(used) == max(map(len, rows)):
        return rows
    kept: set[int] = set()
    for at in range(max(map(len, rows), default=0)):
        if at in used or len(kept) % 2:
            kept.add(at)
    return [found for row in rows if (found := [cell for at, cell in enumerate(row) if at in kept])]


def _alternates(rows: Grid, width: int) -> bool:
    """Whether every other cell is a label, by what it says and how it looks."""
    even = [row for row in rows if len(row) % 2 == 0]
    labels = [cell for row in even for cell in row[::2] if cell[1]]
    filled = [cell for row in even for cell in row[1::2] if cell[1]]
    if not labels or not filled:
        return False
    likely = sum(is_label(text, MAX_WORDS_MARKED) for _, text, _ in labels)
    if width == 2:
        return 2 * likely > len(labels)
    if 5 * likely < 4 * len(labels):
        return False
    columns = {at: {_look(row[at][2]) for row in even if at < len(row)} for at in range(width)}
    if columns[0] == columns[2] and not columns[0] & columns[1]:
        return True
    distinct = len({text for _, text, _ in labels}) == len(labels)
    return distinct and any(_DIGIT.search(text) for _, text, _ in filled)


def _is_plain_head(head: list[Cell], below: list[Cell]) -> bool:
    """Whether the first of two rows without marks has the names of what is in the second."""
    if len(head) != len(below) or any(
        _DIGIT.search(text) or not is_label(text) for _, text, _ in head
    ):
        return False
    return any(_DIGIT.search(text) for _, text, _ in below)


def _marked_pairs(row: list[Cell]) -> list[Pair] | None:
    """The pairs of a row with a head cell or a colon for each, or None."""
    row = [cell for cell in row if cell[1]] if len(row) % 2 else row
    inside = [found for _, text, node in row if ": " in text and (found := _in_cell(text, node))]
    if inside and len(inside) == sum(bool(text) for _, text, _ in row):
        return [pair for found in inside for pair in found if is_label(pair[0])]
    if len(row) % 2 or not all(
        tag == "th" or text.endswith(":") or not text for tag, text, _ in row[::2]
    ):
        return None
    return [pair for pair in _both(row) if pair[1] and is_label(pair[0], MAX_WORDS_MARKED)]


def _in_cell(text: str, cell: LexborNode) -> list[Pair]:
    """The pairs of a cell with `Label: value`, or with lines of them."""
    first = _past_space(cell.child)
    if text.count(": ") > 1 and first is not None and first.is_text_node:
        _, pairs = _in_lines(cell, first)
        if pairs:
            return pairs
    found = _LABELLED.fullmatch(text)
    return [(found[1], found[2])] if found and not _is_prose(found[2]) else []


def _placed_pairs(rows: Grid) -> list[Pair]:
    """The pairs of rows in which only the place of a cell tells what it is."""
    if not any(text for row in rows for _, text, _ in row):
        return []
    width = max(map(len, rows))
    if _alternates(rows, width):
        even = (row for row in rows if len(row) % 2 == 0)
        pairs = [
            pair
            for row in even
            if not all(_is_link(node) for _, text, node in row if text)
            for pair in _both(row)
        ]
        return [] if are_noise(pairs) else [pair for pair in pairs if _is_plausible(*pair)]
    return list(_zipped(*rows)) if len(rows) == 2 and width > 2 and _is_plain_head(*rows) else []


def _both(row: list[Cell]) -> Iterator[Pair]:
    return ((name, value) for (_, name, _), (_, value, _) in zip(row[::2], row[1::2], strict=True))


def _is_link(node: LexborNode) -> bool:
    first = _past_space(node.child)
    return first is not None and first.tag == "a" and _past_space(first.next) is None


def _list_pairs(tree: LexborHTMLParser, beside: _Beside, budget: Budget) -> Iterator[Pair]:
    budget.check(len(tree.raw_html))
    for terms in tree.css("dl:not(:has(dl))")[:MAX_TABLES]:
        budget.check(len(tree.raw_html))
        name = ""
        if beside.holds(terms):
            continue
        for node in terms.css("dt, dd")[:MAX_FIELDS]:
            budget.check()
            if node.tag == "dt":
                name = excerpt(node)
                continue
            value = excerpt(node)
            is_answer = name.endswith("?") and (name.count(" ") > 2 or _is_prose(value))
            if value and not is_answer and is_label(name, MAX_WORDS_MARKED):
                yield name, value


class _Found(NamedTuple):
    """A pair outside of the cells of tables; those that are not marked are pairs if there are more
    of their form."""

    name: str
    value: str
    form: tuple[object, ...] | None


def _inline(tree: LexborHTMLParser, beside: _Beside, budget: Budget) -> tuple[list[Pair], set[int]]:
    """The pairs such as `<b>Owner:</b> Jane Roe<br>`, and the cells of tables that hold some."""
    found: list[tuple[_Found, LexborNode]] = []
    likely: Counter[object] = Counter()
    seen: set[int] = set()
    budget.check(len(tree.raw_html))
    for label in tree.body.css(_LABELS)[:MAX_FIELDS] if tree.body else ():
        budget.check()
        if label.child is None or label.mem_id in seen:
            continue
        for pair in _run(label, seen, budget):
            found.append((pair, label))
            if pair.form and _is_plausible(pair.name, pair.value):
                likely[pair.form] += 1
    # Most pages have none: only what can be a pair is asked where it lies.
    inside: list[tuple[_Found, LexborNode]] = []
    for pair, label in found:
        budget.check()
        if (not pair.form or likely[pair.form] > 1) and not beside.holds(label):
            inside.append((pair, label))
    found = _without_noise(inside)
    budget.check(len(tree.raw_html))
    forms: dict[object, list[Pair]] = {}
    for pair, _ in found:
        if pair.form:
            forms.setdefault(pair.form, []).append((pair.name, pair.value))
    good = {form for form, pairs in forms.items() if _are_pairs(pairs)}
    kept = [(pair, label) for pair, label in found if not pair.form or pair.form in good]
    taken = {cell for _, label in kept if (cell := _cell_of(label))}
    return [
        (name, value)
        for (name, value, form), _ in kept
        if value and (_is_plausible(name, value) if form else is_label(name, MAX_WORDS_MARKED))
    ], taken


def _without_noise(found: list[tuple[_Found, LexborNode]]) -> list[tuple[_Found, LexborNode]]:
    """What is left without lists that are noise: another part of the page may have their form."""
    lists: dict[object, list[Pair]] = {}
    places: list[object] = []
    for (name, value, form), label in found:
        box = label.parent and label.parent.parent
        places.append((form, box.mem_id if box else 0) if form else None)
        lists.setdefault(places[-1], []).append((name, value))
    noise = {
        place for place, pairs in lists.items() if place and len(pairs) > 2 and are_noise(pairs)
    }
    return [one for one, place in zip(found, places, strict=True) if place not in noise]


def _are_pairs(pairs: list[Pair]) -> bool:
    """Whether what has the same form is labels and values: several of them, and most of them
    plausible."""
    likely = sum(_is_plausible(*pair) for pair in pairs)
    return likely > 1 and 2 * likely > len(pairs) and not are_noise(pairs)


def _cell_of(node: LexborNode) -> int:
    """The cell of a table that a label lies in, if it is near."""
    outer = node.parent
    for _ in range(3):
        if outer is None:
            break
        if outer.tag in ("td", "th"):
            return outer.mem_id
        outer = outer.parent
    return 0


def _run(first: LexborNode, seen: set[int], budget: Budget) -> Iterator[_Found]:
    """The pairs that begin with a label and those beside it that look the same."""
    inner = first
    while _is_alone(first):
        outer = first.parent
        if outer is None or outer.tag not in _WRAPPERS:
            return
        first = outer
    if first.tag in ("td", "th") or (first is not inner and first.mem_id in seen):
        return
    names = (inner.attributes.get("class") or "")[:MAX_KEY]
    named = "label" in (first.tag, inner.tag) or bool(_NAMED.search(names))
    is_value = not named and _VALUED.search(names)
    below = _past_space(first.next) if is_value else first
    if is_value and below is not None and below.tag == "br":
        below = _past_space(below.next)
    if (named or is_value) and below is not None and (above := _value_above(below)):
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
        name = excerpt(label)
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
    """The value before the last element of a box, where their classes say which is which."""
    value = _before(label)
    if value is not None and value.tag == "br":
        value = _before(value)
    if value is None or not value.is_element_node or _past_space(label.next) is not None:
        return ""
    names = [(node.attributes.get("class") or "")[:MAX_KEY] for node in (label, value)]
    return excerpt(value) if _NAMED.search(names[0]) and _VALUED.search(names[1]) else ""


def _is_in_prose(first: LexborNode, inner: LexborNode) -> bool:
    """Whether an element is a word of a sentence, such as `code` or a bold word, by the text around
    it."""
    following = first.next
    after = (
        (following.text_content or "") if following is not None and following.is_text_node else ""
    )
    before = _text_before(first)
    if first.tag in _BOLD or inner.tag in _BOLD:
        if not before:
            return False
        has_colon = (
            before.endswith(":")
            or after.lstrip().startswith(":")
            or own_text(inner).rstrip().endswith(":")
        )
        return not has_colon
    has_words = after.strip() and not after.lstrip().startswith(":")
    return bool(before) or (bool(has_words) and not excerpt(first).endswith(":"))


def _text_before(node: LexborNode) -> str:
    before = node.prev
    return (
        (before.text_content or "").rstrip() if before is not None and before.is_text_node else ""
    )


def _kind(node: LexborNode) -> Look:
    tag = node.tag
    return ("b", None) if tag in _BOLD else (tag, node.attributes.get("class"))


def _is_alone(node: LexborNode) -> bool:
    """Whether an element is all that is in the one around it."""
    if _past_space(node.next) is not None:
        return False
    return _before(node) is None


def _before(node: LexborNode) -> LexborNode | None:
    """The node before another one that is not only white space or a comment."""
    before = node.prev
    while before is not None and (
        before.is_comment_node or (before.is_text_node and before.is_empty_text_node)
    ):
        before = before.prev
    return before


def _twin(first: LexborNode, kind: Look) -> LexborNode | None:
    """The second of two elements of one kind that are all that is in the one around them."""
    twin = _past_space(first.next)
    if (
        twin is None
        or twin.is_text_node
        or _past_space(twin.next) is not None
        or _kind(twin) != kind
    ):
        return None
    return twin if first.parent and _past_space(first.parent.child) == first else None


def _behind(label: LexborNode, kind: Look, budget: Budget) -> tuple[str, LexborNode | None]:
    """The words behind a label, and the next label of its kind, if it is not far."""
    lines: list[list[str]] = [[]]
    node = label.next
    for _ in range(MAX_SIBLINGS):
        budget.check()
        if node is None:
            break
        tag = node.tag
        if node.is_text_node:
            lines[-1].append((node.text_content or "")[:MAX_STRING])
        elif tag == "br":
            lines.append([])
        elif not node.is_comment_node:
            if _kind(node) == kind:
                return _value(lines), node
            if tag in _BLOCKS:
                break
            lines[-1].append(excerpt(node))
        node = node.next
    return _value(lines), None


def _value(lines: list[list[str]]) -> str:
    """The first lines of a text up to an empty one, such as an address."""
    found: list[str] = []
    for line in lines[: MAX_LINES + 2]:
        text = joined("\0".join(line))
        if found and (
            not text or len(found) == MAX_LINES or _LABELLED.fullmatch(text) or _is_prose(text)
        ):
            break
        if text:
            found.append(text)
    return joined("\0".join(found))


# Lines of plain text.

_PLAIN = "p, li, pre, div:not(:has(div, p, ul, table, dl))"
_INLINE = frozenset({"b", "strong", "span", "em", "i", "font", "a", "u", "small", "time", "bdi"})
_DRESS = frozenset({"span", "font", "em", "i", "small", "u"})
_LEADERS = re.compile(r"(?:\s?\.){2,}\s?\Z")
_MAX_COLON = 70
"""Characters of a line in which its colon is looked for."""


class _Lines:
    """The pairs of elements that follow each other and are alike."""

    def __init__(self, first: LexborNode) -> None:
        self.pairs: list[Pair] = []
        self.first = self.last = first


def _plain_pairs(tree: LexborHTMLParser, beside: _Beside, budget: Budget) -> Iterator[Pair]:
    """The pairs such as `<li>Owner: Jane Roe</li>` and `<li>Owner <b>Jane Roe</b></li>`, where
    several follow each other."""
    runs: list[_Lines] = []
    by_last: dict[tuple[int, object], _Lines] = {}
    budget.check(len(tree.raw_html))
    for node in tree.body.css(_PLAIN)[:MAX_FIELDS] if tree.body else ():
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
            run = _Lines(node)
            runs.append(run)
        run.pairs += pairs
        run.last = node
        by_last[node.mem_id, form] = run
    for run in runs:
        if _is_record(run) and not beside.holds(run.first):
            yield from run.pairs


def _dressed_label(first: LexborNode, budget: Budget) -> str:
    """The text of an element with a colon behind it."""
    budget.check()
    after = first.next
    if after is None or not after.is_text_node:
        return ""
    return f"{excerpt(first)}:" if (after.text_content or "").lstrip().startswith(":") else ""


def _is_record(run: _Lines) -> bool:
    """Whether lines are of a record: three or more, or all that is in a box, and each label once."""
    names = {name for name, _ in run.pairs}
    if len(names) < 2 or 4 * len(names) < 3 * len(run.pairs) or are_noise(run.pairs):
        return False
    return len(names) > 2 or (_before(run.first) is None and _past_space(run.last.next) is None)


def _in_lines(node: LexborNode, first: LexborNode) -> tuple[object | None, list[Pair]]:
    """The form of an element's lines, if they have labels, and their pairs: a label may have no
    value."""
    tag = node.tag
    if tag == "pre":
        if first.next is not None:
            return None, []
        text = (first.text_content or "")[:MAX_TEXT]
        pairs = _labelled([" ".join(line.split()) for line in text.split("\n")])
        return (None, []) if pairs is None else (tag, pairs)
    lines: list[list[str]] = [[]]
    part: LexborNode | None = first
    for _ in range(MAX_SIBLINGS * MAX_LINES):
        if part is None:
            break
        if part.is_text_node:
            lines[-1].append((part.text_content or "")[:MAX_STRING])
        elif (inner := part.tag) == "br":
            lines.append([])
        elif inner in _INLINE:
            lines[-1].append(excerpt(part))
        elif not part.is_comment_node:
            return None, []
        part = part.next
    pairs = _labelled([joined("\0".join(line)) for line in lines])
    return (None, []) if pairs is None else (tag, pairs)


def _before_value(
    node: LexborNode, first: LexborNode, text: str
) -> tuple[object | None, list[Pair]]:
    """The same of an element with a label as text, and its value in one element behind it."""
    value = first.next
    if value is None or (tag := value.tag) not in _INLINE or _past_space(value.next) is not None:
        return None, []
    pair = joined(text), excerpt(value)
    if not is_label(pair[0]) or (pair[1] and not _is_plausible(*pair)):
        return None, []
    return (node.tag, tag), [pair] if pair[1] else []


def _labelled(lines: list[str]) -> list[Pair] | None:
    """The pairs of lines such as `Owner: Jane Roe`, each with the lines below it up to the next; None
    if there are others."""
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
    """Whether a text behind a colon is said, not a value."""
    parts = text.split()
    if len(parts) < 3 or text[-1] not in ".!?…":
        return _is_prose(text)
    return 2 * sum(part.islower() for part in parts) >= len(parts)
