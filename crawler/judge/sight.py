"""What a visitor would see of a page: its title and headings, its own words, its forms; all of it bounded."""

from itertools import islice

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode

RICH = 1_200
"""So many characters of own text make a page that is looked at no further, unless its title or a heading is odd."""
GLANCE_NODES, MOST_NODES = 6_000, 20_000
MOST_TEXT, MOST_PIECE, MOST_HEADING, MOST_HEADINGS, MOST_LISTED = 6_000, 2_000, 300, 8, 60
MOST_INSIDE, MOST_WAITING_WORDS = 100, 60

_OWN, _FRAME, _LINK, _CONTROL = range(4)
_ZONES = {
    **dict.fromkeys(("nav", "header", "footer", "aside", "menu"), _FRAME),
    "a": _LINK,
    **dict.fromkeys(("label", "button", "select", "option", "textarea", "legend"), _CONTROL),
}
_SKIPPED = frozenset({"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas", "video"})
_HEADINGS = frozenset({"h1", "h2", "h3", "h4"})
_CELLS = frozenset({"td", "dd", "dt"})
_BOXES = frozenset({"div", "section", "form", "dialog", "p", "ul", "main", "article", "span", "table"})
_BUTTON_TYPES = frozenset({"submit", "button", "image"})
_SILENT_TYPES = frozenset({"hidden", "checkbox", "radio", "reset"})
_MOUNTS = frozenset(
    {"root", "app", "__next", "__nuxt", "___gatsby", "svelte", "react-root", "app-root", "application", "main-app"}
    | {"q-app", "ember-app", "viewdiv", "jimu-layout-manager", "app-container", "react-app", "vue-app", "contentmain"}
)


class Sight(msgspec.Struct):
    """What is seen; texts are in lower case with single spaces. Grows while the page is walked."""

    title: str = ""
    headings: list[str] = []
    main_heading: str = ""
    """The first of the highest order."""
    pieces: list[str] = []
    """The page's own words, outside menus, links and controls."""
    own: int = 0
    """Their number of characters."""
    parts: int = 0
    """In how many pieces of text they are."""
    framed: list[str] = []
    """What stands in headers, footers and menus, but in no link."""
    linked: int = 0
    links: int = 0
    """Those outside headers, footers and menus."""
    cells: int = 0
    images: int = 0
    frames: int = 0
    buttons: list[str] = []
    fields: int = 0
    """What a visitor can fill in, passwords apart."""
    passwords: int = 0
    hidden_fields: list[str] = []
    mounts: int = 0
    """Elements that a script is to fill, and that are empty."""

    @property
    def text(self) -> str:
        """The beginning of the page's own words."""
        return squashed(" ".join(self.pieces))[:MOST_TEXT]

    @property
    def frame_text(self) -> str:
        """The beginning of what stands around them."""
        return squashed(" ".join(self.framed))[:MOST_TEXT]


def squashed(text: str) -> str:
    """Lower case, single spaces, and one kind of apostrophe."""
    return " ".join(text.lower().replace("’", "'").replace("‘", "'").split())


def glance(tree: LexborHTMLParser) -> Sight:
    """A look that ends as soon as the page has shown enough of its own text."""
    return _walked(tree, GLANCE_NODES, RICH, False)


def look(tree: LexborHTMLParser) -> Sight:
    """A look at the whole page, hidden parts left out."""
    return _walked(tree, MOST_NODES, 1 << 60, True)


def _walked(tree: LexborHTMLParser, nodes: int, enough: int, closely: bool) -> Sight:
    title = tree.css_first("head > title, body > title")
    sight = Sight(title=squashed(title.text()[:MOST_HEADING]) if title else "")
    top = tree.body
    if top is None:
        return sight
    stack: list[tuple[LexborNode, int]] = []
    node, zone, rank = top.child, _OWN, "h9"
    while nodes > 0:
        if node is None:
            if not stack:
                break
            node, zone = stack.pop()
            continue
        nodes -= 1
        tag = node.tag or ""
        if tag == "-text":
            _read(sight, node.text_content or "", zone)
            if sight.own >= enough:
                break
            node = node.next
            continue
        if tag in _SKIPPED:
            sight.frames += tag in ("iframe", "object")
            node = node.next
            continue
        if tag in _HEADINGS and zone != _LINK and len(sight.headings) < MOST_HEADINGS:
            words = squashed(node.text()[:MOST_HEADING])
            sight.headings.append(words)
            if words and tag < rank:
                rank, sight.main_heading = tag, words
        elif tag in _CELLS:
            sight.cells += node.child is not None
        elif tag == "a":
            sight.links += zone == _OWN
        elif closely and (tag in _BOXES or tag in _READ or "-" in tag) and not _noted(sight, node, tag):
            node = node.next
            continue
        inner = node.child
        after = node.next
        if inner is None:
            node = after
            continue
        if after is not None:
            stack.append((after, zone))
        zone = _ZONES.get(tag, zone) if zone in (_OWN, _FRAME) else zone
        node = inner
    return sight


def _read(sight: Sight, words: str, zone: int) -> None:
    size = len(words)
    if size < 64:  # the usual piece of white space between two tags
        words = words.strip()
        size = len(words)
    if not size:
        return
    if zone == _LINK:
        sight.linked += size
    elif zone == _OWN:
        if size >= 64:
            words = " ".join(words[:MOST_PIECE].split())
            size = len(words) + max(0, size - MOST_PIECE)
        sight.own += size
        sight.parts += size > 0
        if len(sight.pieces) * 8 < MOST_TEXT:
            sight.pieces.append(words)
    elif zone == _FRAME and len(sight.framed) < MOST_LISTED:
        sight.framed.append(words[:MOST_HEADING])


def _noted(sight: Sight, node: LexborNode, tag: str) -> bool:
    """Take down what a control or a box says of itself; False where a visitor would not see it."""
    attributes = node.attributes
    if tag == "input":
        _note_input(sight, attributes)
    elif tag == "button":
        if len(sight.buttons) < MOST_LISTED:
            sight.buttons.append(squashed(node.text()[:MOST_HEADING]))
    elif tag in ("textarea", "select"):
        sight.fields += 1
    elif tag == "img":
        sight.images += 1
    else:
        identity = (attributes.get("id") or "").lower()
        style = (attributes.get("style") or "").replace(" ", "").lower()
        # Servers that stream put what comes late into hidden parts, which a script then moves to their places.
        if ("hidden" in attributes and not identity.startswith("s:")) or "display:none" in style:
            return False
        if not sight.mounts and (identity in _MOUNTS or tag.endswith(("-root", "-app"))) and _is_empty(node):
            sight.mounts += 1
    return True


_READ = frozenset({"input", "button", "textarea", "select", "img"})


def _note_input(sight: Sight, attributes: dict[str, str | None]) -> None:
    kind = (attributes.get("type") or "text").lower()
    if kind == "password":
        sight.passwords += 1
    elif kind in _BUTTON_TYPES:
        if len(sight.buttons) < MOST_LISTED:
            sight.buttons.append(squashed((attributes.get("value") or "")[:MOST_HEADING]))
    elif kind == "hidden":
        if len(sight.hidden_fields) < MOST_LISTED:
            sight.hidden_fields.append((attributes.get("name") or "").lower()[:MOST_HEADING])
    elif kind not in _SILENT_TYPES:
        sight.fields += 1


def _is_empty(node: LexborNode) -> bool:
    """Whether there is nothing in it but perhaps a word or two, such as “Loading”."""
    size = 0
    for inner in islice(node.traverse(include_text=True), MOST_INSIDE):
        if inner.is_text_node and not ((parent := inner.parent) and parent.tag in _SKIPPED):
            size += len((inner.text_content or "").strip())
    return size <= MOST_WAITING_WORDS
