"""CSS selectors whose time grows with the page's size, and not with a power of it.

Lexbor finds `a b c` by trying every way up the tree, and counts siblings again for each
`:nth-child()`: on a hostile page, a harmless selector takes hours. So Lexbor is asked for single
elements only; their relations are checked here, with sets.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import attrgetter

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from crawler.fetch import budget

MAX_LENGTH = 1_000  # characters of a selector
MAX_COMMAS = 31  # every element is compared with each part of a list
MAX_FOUND = 110_000  # elements that a part of a selector may find, some 250 bytes each
MAX_KEPT = 20_000  # elements kept for the next selector
MANY = 200  # looks that may take some tenths of a millisecond
_PARTS = re.compile(
    r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\\.|/\*.*?\*/|\s+|[()\[\],>+~|:]"""
    r"""|[^"'\\/\s()\[\],>+~|:]+|.""",
    re.S,
)
_NTH = re.compile(
    r"(?:(even|odd)|([+-]?\d*)n\s*(?:([+-])\s*(\d+))?|([+-]?\d+))(?:\s+of\s+(.+))?", re.I | re.S
)
_COMBINATORS = frozenset(">+~")
_PLAIN_NAMES = (
    "any-link checked disabled empty enabled first-child last-child link only-child optional"
    " required root"
)
_PLAIN = frozenset(_PLAIN_NAMES.split())
_NTHS = {
    "nth-child": (False, False),
    "nth-last-child": (False, True),
    "nth-of-type": (True, False),
    "nth-last-of-type": (True, True),
}
_FIRST, _LAST = "first-of-type", "last-of-type"
_FUNCTIONS = ("not", "is", "where", "has", "contains", *_NTHS)
_KNOWN = sorted({*_PLAIN, _FIRST, _LAST, "only-of-type", *(f"{name}()" for name in _FUNCTIONS)})


class Nth(msgspec.Struct, frozen=True):
    """The element's number among its siblings is `first` plus a multiple of `step`."""

    step: int
    first: int
    of_type: bool
    from_end: bool
    among: "Selector | None" = None

    def fits(self, number: int) -> bool:
        rest = number - self.first
        if self.step == 0:
            return rest == 0
        return rest % self.step == 0 and rest // self.step >= 0


class Has(msgspec.Struct, frozen=True):
    """The element has such relatives."""

    relatives: tuple["Complex", ...]


class Is(msgspec.Struct, frozen=True):
    """The element is, or is not, one of those selected."""

    selector: "Selector"
    wanted: bool


class Step(msgspec.Struct, frozen=True):
    """What Lexbor finds alone, further conditions, and the relation to the step before."""

    combinator: str
    base: str
    filters: tuple[Nth | Has | Is, ...] = ()


Complex = tuple[Step, ...]


class Selector(msgspec.Struct, frozen=True):
    """A compiled list of selectors; `direct` where Lexbor finds all of them quickly."""

    text: str
    complexes: tuple[Complex, ...]
    direct: bool


class TooMuch(Exception):
    """The page is too large for the search."""


class SearchBudget:
    """Counts elements looked at; the page's own budget counts them too."""

    def __init__(self, looks: int, page: budget.Budget) -> None:
        self.left, self._page = looks, page

    def spend(self, looks: int) -> None:
        """Count looks; raises `TooMuch` above the limit."""
        if looks < MANY:
            self._page.check()
        else:
            self._page.look()
        self.left -= looks
        if self.left < 0:
            raise TooMuch


# Compiling.


@lru_cache(maxsize=10_000)
def compile(text: str) -> Selector:
    """Compile a selector; raises `ValueError` with a reason for its author."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the selector has {len(text):,} characters, more than {MAX_LENGTH:,}")
    if not all(sign.isprintable() or sign.isspace() for sign in text):
        raise ValueError("the selector holds a character that cannot be printed")
    parts = [part for part in _PARTS.findall(text) if not part.startswith("/*")]
    if parts.count(",") > MAX_COMMAS:
        raise ValueError(f"the selector lists more than {MAX_COMMAS + 1} parts")
    is_whole = _is_whole(parts)
    for at, part in enumerate(parts):
        around = parts[max(0, at - 1) : at] + parts[at + 1 : at + 2]
        if part.lower() == "contains" and around == [":", "("]:
            parts[at] = "lexbor-contains"
    known = "".join(parts)
    if not is_whole or not _is_known(known):
        raise ValueError(f"{text!r} is not a CSS selector")
    return _selector(known)


def _is_whole(parts: list[str]) -> bool:
    """Say whether all brackets and quotes are closed; CSS would close them at the text's end."""
    opened: list[str] = []
    for at, part in enumerate(parts):
        if part in ("(", "["):
            opened.append(part)
        elif part in (")", "]"):
            if not opened or opened.pop() + part not in ("()", "[]"):
                return False
        elif part in ('"', "'", "\\") or "".join(parts[at : at + 2]).startswith("/*"):
            return False
    return not opened


def _is_known(text: str) -> bool:
    try:
        LexborHTMLParser("").css(text)
    except SelectolaxError as error:
        if str(error).startswith("Can't initialize"):
            raise MemoryError from error
        return False
    except UnicodeEncodeError:
        return False
    return True


def _selector(text: str) -> Selector:
    complexes = tuple(map(_complex, _listed(text)))
    return Selector(text.strip(), complexes, all(map(_is_direct, complexes)))


def _is_single(steps: Complex) -> bool:
    return len(steps) == 1 and not steps[0].filters


def _is_direct(steps: Complex) -> bool:
    """Say whether Lexbor can be trusted: of `:is(a, b) c` it finds only some."""
    if len(steps) == 1:
        return not steps[0].filters
    plain = all(not step.filters and "(" not in step.base for step in steps)
    return plain and all(step.combinator in ("", ">", "+") for step in steps)


def _listed(text: str) -> list[list[str]]:
    """Cut a list of selectors into parts; brackets with their contents are one part."""
    listed: list[list[str]] = [[]]
    depth = 0
    for part in _PARTS.findall(text):
        if depth:
            listed[-1][-1] += part
        elif part == ",":
            listed.append([])
        else:
            listed[-1].append(part)
        depth += (part in ("(", "[")) - (part in (")", "]"))
    return listed


def _complex(parts: list[str]) -> Complex:
    steps: list[Step] = []
    combinator, compound = "", list[str]()
    for part in [*parts, " "]:
        if part not in _COMBINATORS and not part.isspace():
            if part == "|" and compound[-1:] == ["|"]:
                raise ValueError("columns (||) cannot be selected")
            compound.append(part)
            continue
        if compound:
            steps.append(_step(combinator, compound))
            combinator, compound = " ", []
        if part in _COMBINATORS:
            combinator = part
    if not steps:
        raise ValueError("a part of the selector is empty")
    return tuple(steps)


def _step(combinator: str, parts: list[str]) -> Step:
    base = ""
    filters: list[Nth | Has | Is] = []
    at = 0
    while at < len(parts):
        part, name, argument = [*parts[at : at + 3], "", ""][:3]
        at += 1
        if part != ":":
            base += part
            continue
        if not name:
            raise ValueError("a colon in the selector stands alone")
        if not argument.startswith("("):
            argument = ""
        kept, added = _pseudo(name.lower(), argument[1:-1], f":{name}{argument}")
        base += kept
        filters += added
        at += 1 + bool(argument)
    if not _is_known(base or "*"):
        raise ValueError(f"{''.join(parts)!r} cannot be selected")
    return Step(combinator, base or "*", tuple(filters))


def _pseudo(name: str, argument: str, text: str) -> tuple[str, list[Nth | Has | Is]]:
    """Return what Lexbor gets of a pseudo-class, and the conditions that are checked here."""
    first, last = Nth(0, 1, True, False), Nth(0, 1, True, True)
    if name in _PLAIN or name == "lexbor-contains":
        return text, []
    if name == _FIRST:
        return "", [first]
    if name == _LAST:
        return "", [last]
    if name == "only-of-type":
        return "", [first, last]
    if name in _NTHS:
        return "", [_nth(argument, *_NTHS[name])]
    if name == "has":
        return "", [Has(tuple(map(_relative, _listed(argument))))]
    if name in ("not", "is", "where"):
        inner = _selector(argument)
        if all(map(_is_single, inner.complexes)):
            return text, []
        return "", [Is(inner, name != "not")]
    known = ", ".join(_KNOWN)
    raise ValueError(
        f"the pseudo-class :{name} cannot be asked of a stored page; known are {known}"
    )


def _relative(parts: list[str]) -> Complex:
    first, *steps = _complex(parts)
    return (msgspec.structs.replace(first, combinator=first.combinator or " "), *steps)


def _nth(argument: str, of_type: bool, from_end: bool) -> Nth:
    found = _NTH.fullmatch(argument.strip())
    if not found:
        raise ValueError(f"({argument}) does not say which; write (2), (odd) or (3n + 1)")
    word, step, sign, first, only, among = found.groups()
    if word:
        step, first = 2, word.lower() == "odd"
    elif only:
        step, first = 0, only
    else:
        first = f"{sign or ''}{first or 0}"
        if step in ("", "+", "-"):
            step += "1"
    members = _selector(among) if among else None
    return Nth(int(step), int(first), of_type, from_end, members)


# Searching.

Nodes = dict[int, LexborNode]
_parent: Callable[[LexborNode], LexborNode | None] = attrgetter("parent")


class Search:
    """Searches one page within a budget; keeps what was found for the next selectors."""

    def __init__(self, tree: LexborHTMLParser, budget: SearchBudget) -> None:
        self._tree, self._budget = tree, budget
        self._seen: dict[str, list[LexborNode]] = {}
        self._size = self._kept = 0

    def find(self, selector: Selector) -> list[LexborNode]:
        """Return all that is selected in the page's order; raises `TooMuch` above the budget."""
        if len(selector.complexes) == 1:
            if selector.direct:
                return self._css(selector.text)
            return list(self._complex(selector.complexes[0]).values())
        found: set[int] | None = None
        if not all(map(_is_single, selector.complexes)):
            found = self._found(selector)
        # Asked for a list, Lexbor would return an element once for each part that selects it:
        # hundreds of megabytes.
        bases = dict.fromkeys(steps[-1].base for steps in selector.complexes)
        nodes = self._css(f":is({', '.join(bases)})")
        if found is None:
            return nodes
        return [node for node in nodes if node.mem_id in found]

    def _found(self, selector: Selector) -> set[int]:
        found: set[int] = set()
        for steps in selector.complexes:
            if _is_direct(steps):
                query = "".join([f"{step.combinator}{step.base}" for step in steps])
                found.update(node.mem_id for node in self._css(query))
            else:
                found.update(self._complex(steps))
        return found

    def _css(self, query: str) -> list[LexborNode]:
        found = self._seen.get(query)
        if found is not None:
            self._budget.spend(len(found) + 1)
            return found
        if not self._size and self._tree.root:
            self._size = sum(1 for _ in self._tree.root.traverse())
        self._budget.spend(self._size // 20)
        found = self._tree.css(query)
        self._budget.spend(len(found) + 1)
        if len(found) > MAX_FOUND:
            raise TooMuch
        if self._kept + len(found) <= MAX_KEPT:
            self._kept += len(found)
            self._seen[query] = found
        return found

    def _complex(self, steps: Complex) -> Nodes:
        found = {node.mem_id: node for node in self._matching(steps[0])}
        for step in steps[1:]:
            if not found:
                break
            related = self._related(step.combinator, found)
            found = {node.mem_id: node for node in self._matching(step) if related(node)}
        return found

    def _matching(self, step: Step) -> list[LexborNode]:
        nodes = self._css(step.base)
        for each in step.filters:
            if nodes:
                passes = self._passes(each)
                nodes = [node for node in nodes if passes(node)]
        return nodes

    def _passes(self, condition: Nth | Has | Is) -> Callable[[LexborNode], bool]:
        match condition:
            case Is():
                those = self._found(condition.selector)
                return lambda node: (node.mem_id in those) is condition.wanted
            case Has():
                having: set[int] = set()
                for steps in condition.relatives:
                    having |= self._having(steps)
                return lambda node: node.mem_id in having
            case Nth():
                return self._counting(condition)

    def _related(self, combinator: str, found: Nodes) -> Callable[[LexborNode], bool]:
        """Return a check whether an element is so related to one of those found."""
        if combinator == ">":
            return lambda node: (parent := node.parent) is not None and parent.mem_id in found
        if combinator == "+":
            return lambda node: (before := _before(node)) is not None and before.mem_id in found
        onward = _parent if combinator == " " else _before
        known: dict[int, bool] = dict.fromkeys(found, True)

        def related(node: LexborNode) -> bool:
            path, other, answer = [], onward(node), False
            while other is not None:
                key = other.mem_id
                if key in known:
                    answer = known[key]
                    break
                path.append(key)
                other = onward(other)
            self._budget.spend(len(path))
            known.update(dict.fromkeys(path, answer))
            return answer

        return related

    def _having(self, steps: Complex) -> set[int]:
        """Return the elements that have such relatives, going back from the last one."""
        nodes = self._matching(steps[-1])
        for this, before in zip(steps[:0:-1], steps[-2::-1], strict=True):
            anchors = self._anchors(this.combinator, nodes)
            nodes = [node for node in self._matching(before) if node.mem_id in anchors]
        return self._anchors(steps[0].combinator, nodes)

    def _anchors(self, combinator: str, nodes: list[LexborNode]) -> set[int]:
        """Return the elements to which one of the nodes is so related."""
        onward = _parent if combinator in " >" else _before
        anchors: set[int] = set()
        for node in nodes:
            other = onward(node)
            while other is not None and (key := other.mem_id) not in anchors:
                anchors.add(key)
                self._budget.spend(1)
                if combinator in ">+":
                    break
                other = onward(other)
        return anchors

    def _counting(self, nth: Nth) -> Callable[[LexborNode], bool]:
        members = self._found(nth.among) if nth.among else None
        numbers: dict[int, int] = {}
        counted: set[int] = set()

        def passes(node: LexborNode) -> bool:
            parent = node.parent
            if parent is None:
                return nth.fits(1)
            if parent.mem_id not in counted:
                counted.add(parent.mem_id)
                numbers.update(self._numbers(parent, nth, members))
            return node.mem_id in numbers and nth.fits(numbers[node.mem_id])

        return passes

    def _numbers(
        self, parent: LexborNode, nth: Nth, members: Iterable[int] | None
    ) -> Iterator[tuple[int, int]]:
        children = [
            (child.mem_id, child.tag if nth.of_type else "")
            for child in parent.iter()
            if child.is_element_node
        ]
        self._budget.spend(len(children) + 1)
        counts: dict[str | None, int] = {}
        if nth.from_end:
            children.reverse()
        for key, tag in children:
            if members is None or key in members:
                counts[tag] = counts.get(tag, 0) + 1
                yield key, counts[tag]


def _before(node: LexborNode) -> LexborNode | None:
    """Return the element before; text and comments do not count."""
    other = node.prev
    while other is not None and not other.is_element_node:
        other = other.prev
    return other
