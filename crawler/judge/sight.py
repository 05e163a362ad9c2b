"""What a visitor sees of a page: its title and headings, its own words, its forms; all bounded."""

from itertools import islice

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.fetch.budget import Budget

RICH = 1_200
"""Characters of own text that make a page good, unless its title or a heading is odd."""
FULL = 2_400
"""The same for own text and links together."""
MAX_NODES = 20_000
MAX_TEXT, MAX_PIECE, MAX_HEADING, MAX_LISTED = 6_000, 2_000, 300, 60
MAX_HEADINGS, MAX_SECOND_HEADINGS = 4, 2
MAX_INSIDE, MAX_WAITING_WORDS, MAX_LABEL = 100, 60, 30
LARGE = 64_000
"""Bytes from which on no element's whole text is copied: it may be the whole page, for each of
many elements."""

_OWN, _FRAME, _CONTROL = range(3)
_CONTROLS = ("label", "button", "select", "option", "textarea", "legend")
_ZONES = {"header": _FRAME, **dict.fromkeys(_CONTROLS, _CONTROL)}
UNSEEN = frozenset({"script", "style", "noscript", "template", "svg", "math"})
_SKIPPED = UNSEEN.union(
    ("nav", "footer", "aside", "menu", "iframe", "object", "canvas", "video", "audio")
)
_APART = _SKIPPED | {"a", *_ZONES}
_CELLS = frozenset({"td", "dd", "dt"})
_NOT_FACTS = frozenset({"a", "table", "form", "input", "select", "button", "h1", "h2", "h3", "img"})
# Servers that stream put late parts into hidden elements (S:0, S:1 …); a script then moves them.
HIDDEN = '[hidden]:not([id^="S:"]), [style*="display:none" i], [style*="display: none" i]'
_BUTTON_TYPES = frozenset({"submit", "button", "image"})
_SILENT_TYPES = frozenset({"hidden", "checkbox", "radio", "reset", "search"})
_MOUNTS = (
    "#root, #app, #__next, #__nuxt, #___gatsby, #svelte, #react-root, #app-root, #application, "
    "#main-app, #q-app, #ember-app, #viewDiv, #jimu-layout-manager, #app-container, #react-app, "
    "#vue-app, #contentMain, #main, app-root, app-component, ion-app, my-app"
)
"""Elements that frameworks fill by script."""


class Sight(msgspec.Struct):
    """What is seen of a page; texts are in lower case with single spaces."""

    title: str = ""
    headings: list[str] = []
    """Those that speak for the whole page: the highest, and second ones if they are few."""
    pieces: list[str] = []
    """The page's own words, outside menus, links and controls."""
    own: int = 0
    """Characters of own words."""
    parts: int = 0
    """Pieces of own words."""
    framed: list[str] = []
    """Words in headers, outside links."""
    linked: int = 0
    links: int = 0
    """Links outside headers, footers and menus."""
    labels: list[str] = []
    """Short texts of links, unchanged."""
    cells: int = 0
    images: bool = False
    frames: int = 0
    buttons: list[str] = []
    fields: int = 0
    """Fields to fill in, except passwords and searches."""
    passwords: int = 0
    hidden_fields: list[str] = []
    mounts: int = 0
    """Empty elements for a script to fill."""

    @property
    def lines(self) -> list[str]:
        """Title and headings."""
        return [self.title, *self.headings]

    @property
    def text(self) -> str:
        """The beginning of the page's own words."""
        return squashed(" ".join(self.pieces))[:MAX_TEXT]

    @property
    def rich(self) -> bool:
        """Whether there is so much to read that only a title can make it a wall."""
        return self.own >= RICH or self.own + self.linked >= FULL


def squashed(text: str) -> str:
    """Lower case, single spaces, and one kind of apostrophe."""
    return " ".join(text.lower().replace("’", "'").replace("‘", "'").split())


def glance(tree: LexborHTMLParser, budget: Budget) -> Sight:
    """Read a page until it has shown enough text."""
    title = tree.css_first("head > title, body > title")
    sight = Sight(headings=_headings(tree, frozenset(), budget))
    if title:
        sight.title = squashed(beginning(title, MAX_HEADING))
    sight.own = _prose(tree.tags("p"))
    if sight.own < RICH:
        _walk(sight, tree.body, True, frozenset(), budget)
    return sight


def look(tree: LexborHTMLParser, glanced: Sight, budget: Budget) -> Sight:
    """Read a whole page, without its hidden parts."""
    budget.check(len(tree.raw_html))
    hidden = frozenset(node.mem_id for node in tree.css(HIDDEN)[:MAX_NODES])
    budget.check(len(tree.raw_html))
    sight = glanced
    if hidden or glanced.rich:
        sight = Sight(title=glanced.title, headings=_headings(tree, hidden, budget))
        _walk(sight, tree.body, False, hidden, budget)
    _note_controls(sight, tree, hidden, budget)
    return sight


def beginning(node: LexborNode, most: int, deep: bool = True) -> str:
    """Return the first characters of an element's text, or of its own text nodes only."""
    if len(node.parser.raw_html) <= LARGE:
        return node.text(deep=deep)[:most]
    pieces, left = [], most
    nodes = node.iter(include_text=True)
    if deep:
        nodes = node.traverse(include_text=True)
    for inner in islice(nodes, MAX_NODES):
        if inner.is_text_node:
            pieces.append((inner.text_content or "")[:left])
            left -= len(pieces[-1])
            if not left:
                break
    return "".join(pieces)


def _headings(tree: LexborHTMLParser, hidden: frozenset[int], budget: Budget) -> list[str]:
    nodes, second = tree.tags("h1")[:MAX_HEADINGS], tree.tags("h2")
    if len(second) <= MAX_SECOND_HEADINGS or not nodes:
        nodes = nodes + second[:MAX_HEADINGS]
    nodes = nodes or tree.css("h3, h4, h5")[:MAX_HEADINGS]
    budget.check(len(tree.raw_html))
    seen = [node for node in nodes if not _is_within(node, hidden)]
    return [squashed(beginning(node, MAX_HEADING)) for node in seen]


def _prose(paragraphs: list[LexborNode]) -> int:
    """Count letters of the first paragraphs of own text, up to what makes a page rich."""
    size = 0
    own: dict[int, bool] = {}
    for node in paragraphs[:MAX_LISTED]:
        outer = node.parent
        place = outer.mem_id if outer else 0
        if place not in own:
            for _ in range(MAX_INSIDE):
                if outer is None or outer.tag in _APART:
                    break
                outer = outer.parent
            own[place] = outer is None
        if own[place]:
            size += len("".join(beginning(node, MAX_TEXT, deep=False).split()))
            if size >= RICH:
                break
    return size


def _walk(
    sight: Sight, top: LexborNode | None, in_haste: bool, hidden: frozenset[int], budget: Budget
) -> None:
    """Read the body's text, piece by piece."""
    stack: list[tuple[LexborNode, int]] = []
    node, zone = top and top.child, _OWN
    own = parts = linked = links = cells = 0
    for _ in range(MAX_NODES):
        while node is None and stack:
            node, zone = stack.pop()
        if node is None:
            break
        budget.check()
        tag, after = node.tag or "", node.next
        if tag == "-text":
            words = " ".join((node.text_content or "")[:MAX_PIECE].split())
            if words and zone == _OWN:
                own += len(words)
                parts += 1
                if own < MAX_TEXT or parts < MAX_LISTED:
                    sight.pieces.append(words)
            elif words and zone == _FRAME and len(sight.framed) < MAX_LISTED:
                sight.framed.append(words[:MAX_HEADING])
            if in_haste and (own >= RICH or own + linked >= FULL):
                break
        elif tag == "a":
            links += zone == _OWN
            words = beginning(node, MAX_TEXT).strip()
            linked += len(words)
            if len(words) <= MAX_LABEL and len(sight.labels) < MAX_LISTED:
                sight.labels.append(words)
        elif tag not in _SKIPPED and node.mem_id not in hidden and (inner := node.child):
            if after is not None:
                stack.append((after, zone))
            cells += tag in _CELLS and _is_fact(inner)
            zone = _ZONES.get(tag, zone) if zone <= _FRAME else zone
            after = inner
        node = after
    sight.own, sight.parts, sight.cells = own, parts, cells
    sight.linked, sight.links = linked, links


def _is_fact(first: LexborNode) -> bool:
    """Whether a cell holds a fact, by what it begins with. The cells of a layout hold menus, forms
    and other tables: with these counted, a login page in a layout table would be a record."""
    node: LexborNode | None = first
    if first.tag == "-text" and not (first.text_content or "").strip():
        node = first.next
    return node is not None and node.tag not in _NOT_FACTS


def _note_controls(
    sight: Sight, tree: LexborHTMLParser, hidden: frozenset[int], budget: Budget
) -> None:
    """Note what a visitor can fill in, press or look at."""
    for node in tree.css("input, button, textarea, select")[:MAX_LISTED]:
        budget.check()
        if node.tag == "input" and _attribute(node, "type") == "hidden":
            sight.hidden_fields.append(_attribute(node, "name"))
        elif not _is_within(node, hidden):
            _note_control(sight, node)
    budget.check(len(tree.raw_html))
    sight.images = tree.css_first("img") is not None
    frames = tree.css("iframe, frame, object, embed")[:MAX_LISTED]
    sight.frames = sum(not (frame.parent and frame.parent.tag == "noscript") for frame in frames)
    budget.check(len(tree.raw_html))
    sight.mounts = sum(map(_is_empty, tree.css(_MOUNTS)[:MAX_HEADINGS]))
    budget.check(len(tree.raw_html))


def _attribute(node: LexborNode, name: str) -> str:
    return (node.attrs.get(name) or "")[:MAX_HEADING].lower()


def _note_control(sight: Sight, node: LexborNode) -> None:
    kind = _attribute(node, "type") or "text"
    if node.tag == "button":
        sight.buttons.append(squashed(beginning(node, MAX_HEADING)))
    elif node.tag != "input":
        sight.fields += 1
    elif kind == "password":
        sight.passwords += 1
    elif kind in _BUTTON_TYPES:
        sight.buttons.append(squashed(_attribute(node, "value")))
    elif kind not in _SILENT_TYPES:
        sight.fields += 1


def _is_within(node: LexborNode, hidden: frozenset[int]) -> bool:
    """Whether an element lies in one of the hidden ones."""
    outer: LexborNode | None = node
    for _ in range(MAX_INSIDE):
        if outer is None or not hidden:
            return False
        if outer.mem_id in hidden:
            return True
        outer = outer.parent
    return False


def _is_empty(node: LexborNode) -> bool:
    """Whether an element has no text, or only a word or two such as “Loading”."""
    size = 0
    for inner in islice(node.traverse(include_text=True), MAX_INSIDE):
        if inner.is_text_node and not ((parent := inner.parent) and parent.tag in UNSEEN):
            size += len((inner.text_content or "").strip())
    return size <= MAX_WAITING_WORDS
