"""What a visitor would see of a page: its title and headings, its own words, its forms; all of it
bounded."""

from itertools import islice

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.fetch.budget import Budget

RICH = 1_200
"""So many characters of own text make a page that is looked at no further, unless its title or a
heading is odd."""
FULL = 2_400
"""The same for text and links together."""
MOST_NODES = 20_000
MOST_TEXT, MOST_PIECE, MOST_HEADING, MOST_LISTED = 6_000, 2_000, 300, 60
MOST_HEADINGS, MOST_SECOND_HEADINGS = 4, 2
MOST_INSIDE, MOST_WAITING_WORDS, MOST_LABEL = 100, 60, 30
LARGE = 64_000
"""Bytes of a page of which no element's whole text is copied: it may be all of the page, for each
of many elements."""

_OWN, _FRAME, _CONTROL = range(3)
_ZONES = {
    "header": _FRAME,
    **dict.fromkeys(("label", "button", "select", "option", "textarea", "legend"), _CONTROL),
}
_UNSEEN = frozenset({"script", "style", "noscript", "template", "svg", "math"})
_SKIPPED = _UNSEEN | {
    "nav",
    "footer",
    "aside",
    "menu",
    "iframe",
    "object",
    "canvas",
    "video",
    "audio",
}
_APART = _SKIPPED | {"a", *_ZONES}
_CELLS = frozenset({"td", "dd", "dt"})
# Servers that stream put what comes late into hidden parts (S:0, S:1 …), which a script then moves
# to their places.
_HIDDEN = '[hidden]:not([id^="S:"]), [style*="display:none" i], [style*="display: none" i]'
_BUTTON_TYPES = frozenset({"submit", "button", "image"})
_SILENT_TYPES = frozenset({"hidden", "checkbox", "radio", "reset", "search"})
_MOUNTS = ", ".join(
    [
        f"#{name}"
        for name in (
            "root",
            "app",
            "__next",
            "__nuxt",
            "___gatsby",
            "svelte",
            "react-root",
            "app-root",
        )
    ]
    + [
        f"#{name}"
        for name in (
            "application",
            "main-app",
            "q-app",
            "ember-app",
            "viewDiv",
            "jimu-layout-manager",
        )
    ]
    + [f"#{name}" for name in ("app-container", "react-app", "vue-app", "contentMain", "main")]
    + ["app-root", "app-component", "ion-app", "my-app"]
)


class Sight(msgspec.Struct):
    """What is seen, growing while the page is walked; texts are in lower case with single
    spaces."""

    title: str = ""
    headings: list[str] = []
    """Those that speak for the whole page: the highest, and a second order of which there are
    few."""
    pieces: list[str] = []
    """The page's own words, outside menus, links and controls."""
    own: int = 0
    """Their number of characters."""
    parts: int = 0
    """In how many pieces of text they are."""
    framed: list[str] = []
    """What stands in headers, but in no link."""
    linked: int = 0
    links: int = 0
    """Those outside headers, footers and menus."""
    labels: list[str] = []
    """The short ones of their texts, as they are."""
    cells: int = 0
    images: bool = False
    frames: int = 0
    buttons: list[str] = []
    fields: int = 0
    """What a visitor can fill in, passwords and searches apart."""
    passwords: int = 0
    hidden_fields: list[str] = []
    mounts: int = 0
    """Elements that a script is to fill, and that are empty."""

    @property
    def lines(self) -> list[str]:
        """Title and headings."""
        return [self.title, *self.headings]

    @property
    def text(self) -> str:
        """The beginning of the page's own words."""
        return squashed(" ".join(self.pieces))[:MOST_TEXT]

    @property
    def rich(self) -> bool:
        """Whether there is so much to read that only a title can make it a wall."""
        return self.own >= RICH or self.own + self.linked >= FULL


def squashed(text: str) -> str:
    """Lower case, single spaces, and one kind of apostrophe."""
    return " ".join(text.lower().replace("’", "'").replace("‘", "'").split())


def glance(tree: LexborHTMLParser, budget: Budget) -> Sight:
    """A look that ends as soon as the page has shown enough to read."""
    title = tree.css_first("head > title, body > title")
    sight = Sight(title=squashed(beginning(title, MOST_HEADING)) if title else "")
    sight.headings = _headings(tree, frozenset(), budget)
    sight.own = _prose(tree.tags("p"))
    if sight.own < RICH:
        _walk(sight, tree.body, True, frozenset(), budget)
    return sight


def look(tree: LexborHTMLParser, glanced: Sight, budget: Budget) -> Sight:
    """A look at the whole page, hidden parts left out."""
    budget.check(len(tree.raw_html))
    hidden = frozenset(node.mem_id for node in tree.css(_HIDDEN)[:MOST_NODES])
    budget.check(len(tree.raw_html))
    sight = glanced
    if hidden or glanced.rich:
        sight = Sight(title=glanced.title, headings=_headings(tree, hidden, budget))
        _walk(sight, tree.body, False, hidden, budget)
    _note_controls(sight, tree, hidden, budget)
    return sight


def beginning(node: LexborNode, most: int, deep: bool = True) -> str:
    """The first characters of an element's text, or of that which is in no other element inside
    it."""
    if len(node.parser.raw_html) <= LARGE:
        return node.text(deep=deep)[:most]
    pieces, left = [], most
    for inner in islice(
        node.traverse(include_text=True) if deep else node.iter(include_text=True), MOST_NODES
    ):
        if inner.is_text_node:
            pieces.append((inner.text_content or "")[:left])
            left -= len(pieces[-1])
            if not left:
                break
    return "".join(pieces)


def _headings(tree: LexborHTMLParser, hidden: frozenset[int], budget: Budget) -> list[str]:
    first, second = tree.tags("h1")[:MOST_HEADINGS], tree.tags("h2")
    nodes = (
        first + (second if len(second) <= MOST_SECOND_HEADINGS or not first else [])[:MOST_HEADINGS]
    )
    nodes = nodes or tree.css("h3, h4, h5")[:MOST_HEADINGS]
    budget.check(len(tree.raw_html))
    return [
        squashed(beginning(node, MOST_HEADING))
        for node in nodes
        if not (hidden and _is_within(node, hidden))
    ]


def _prose(paragraphs: list[LexborNode]) -> int:
    """How many letters the first paragraphs of the page's own text have at least, up to what makes
    it rich."""
    size = 0
    own: dict[int, bool] = {}
    for node in paragraphs[:MOST_LISTED]:
        outer = node.parent
        place = outer.mem_id if outer else 0
        if place not in own:
            for _ in range(MOST_INSIDE):
                if outer is None or outer.tag in _APART:
                    break
                outer = outer.parent
            own[place] = outer is None
        if own[place]:
            size += len("".join(beginning(node, MOST_TEXT, deep=False).split()))
            if size >= RICH:
                break
    return size


def _walk(
    sight: Sight, top: LexborNode | None, in_haste: bool, hidden: frozenset[int], budget: Budget
) -> None:
    """Read the body's text, piece by piece."""
    stack: list[tuple[LexborNode, int]] = []
    node, zone = top.child if top else None, _OWN
    own = parts = linked = links = cells = 0
    for _ in range(MOST_NODES):
        while node is None and stack:
            node, zone = stack.pop()
        if node is None:
            break
        budget.check()
        tag, after = node.tag or "", node.next
        if tag == "-text":
            words = " ".join((node.text_content or "")[:MOST_PIECE].split())
            if words and zone == _OWN:
                own += len(words)
                parts += 1
                if own < MOST_TEXT or parts < MOST_LISTED:
                    sight.pieces.append(words)
            elif words and zone == _FRAME and len(sight.framed) < MOST_LISTED:
                sight.framed.append(words[:MOST_HEADING])
            if in_haste and (own >= RICH or own + linked >= FULL):
                break
        elif tag == "a":
            links += zone == _OWN
            words = beginning(node, MOST_TEXT).strip()
            linked += len(words)
            if len(words) <= MOST_LABEL and len(sight.labels) < MOST_LISTED:
                sight.labels.append(words)
        elif (
            tag not in _SKIPPED and not (hidden and node.mem_id in hidden) and (inner := node.child)
        ):
            if after is not None:
                stack.append((after, zone))
            cells += tag in _CELLS
            zone = _ZONES.get(tag, zone) if zone <= _FRAME else zone
            after = inner
        node = after
    sight.own, sight.parts, sight.linked, sight.links, sight.cells = (
        own,
        parts,
        linked,
        links,
        cells,
    )


def _note_controls(
    sight: Sight, tree: LexborHTMLParser, hidden: frozenset[int], budget: Budget
) -> None:
    """Take down what a visitor can fill in, press or look at."""
    for node in tree.css("input, button, textarea, select")[:MOST_LISTED]:
        budget.check()
        if node.tag == "input" and _attribute(node, "type") == "hidden":
            sight.hidden_fields.append(_attribute(node, "name"))
        elif not _is_within(node, hidden):
            _note_control(sight, node)
    budget.check(len(tree.raw_html))
    sight.images = tree.css_first("img") is not None
    frames = tree.css("iframe, frame, object, embed")[:MOST_LISTED]
    sight.frames = sum(not (frame.parent and frame.parent.tag == "noscript") for frame in frames)
    budget.check(len(tree.raw_html))
    sight.mounts = sum(map(_is_empty, tree.css(_MOUNTS)[:MOST_HEADINGS]))
    budget.check(len(tree.raw_html))


def _attribute(node: LexborNode, name: str) -> str:
    return (node.attrs.get(name) or "")[:MOST_HEADING].lower()


def _note_control(sight: Sight, node: LexborNode) -> None:
    kind = _attribute(node, "type") or "text"
    if node.tag == "button":
        sight.buttons.append(squashed(beginning(node, MOST_HEADING)))
    elif node.tag != "input":
        sight.fields += 1
    elif kind == "password":
        sight.passwords += 1
    elif kind in _BUTTON_TYPES:
        sight.buttons.append(squashed(_attribute(node, "value")))
    elif kind not in _SILENT_TYPES:
        sight.fields += 1


def _is_within(node: LexborNode, hidden: frozenset[int]) -> bool:
    """Whether an element lies in one of these."""
    if not hidden:
        return False
    outer: LexborNode | None = node
    for _ in range(MOST_INSIDE):
        if outer is None:
            return False
        if outer.mem_id in hidden:
            return True
        outer = outer.parent
    return False


def _is_empty(node: LexborNode) -> bool:
    """Whether there is nothing in it but perhaps a word or two, such as “Loading”."""
    size = 0
    for inner in islice(node.traverse(include_text=True), MOST_INSIDE):
        if inner.is_text_node and not ((parent := inner.parent) and parent.tag in _UNSEEN):
            size += len((inner.text_content or "").strip())
    return size <= MOST_WAITING_WORDS
