"""CSS selectors, in time that grows with the page and not with a power of it.

Lexbor finds `a b c` by trying every way up the tree, and counts siblings anew for each
`:nth-child()`: on a page made for it, a harmless selector takes hours. So it is asked for single
elements only; what relates them is done with sets.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import msgspec
from selectolax.lexbor import LexborHTMLParser, LexborNode, SelectolaxError

from crawler.fetch import budget

MAX_LENGTH, MAX_COMMAS = 1_000, 31
"""Characters of a selector, and commas: every element is compared with each part of a list."""
MAX_FOUND, MAX_KEPT = 110_000, 20_000
"""Elements that a part of a selector may find, some 250 bytes each, and that are kept for the next
who asks."""
_PARTS = re.compile(
    r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\\.|/\*.*?\*/|\s+|[()\[\],>+~|:]|[^"'\\/\s()\[\],>+~|:]+|.""",
    re.S,
)
_NTH = re.compile(
    r"(?:(even|odd)|([+-]?\d*)n\s*(?:([+-])\s*(\d+))?|([+-]?\d+))(?:\s+of\s+(.+))?", re.I | re.S
)
_COMBINATORS = frozenset(">+~")
_PLAIN = frozenset(
    (
        "first-child",
        "last-child",
        "only-child",
        "empty",
        "root",
        "checked",
        "disabled",
        "enabled",
        "link",
        "any-link",
        "required",
        "optional",
    )
)
_COUNTED = {"first-of-type": (True, False), "last-of-type": (True, True)}
_NTHS = {
    "nth-child": (False, False),
    "nth-last-child": (False, True),
    "nth-of-type": (True, False),
    "nth-last-of-type": (True, True),
}
_FUNCTIONS = frozenset({"not", "is", "where", "has", "contains", "lexbor-contains", *_NTHS})
_KNOWN = sorted(
    _PLAIN
    | {*_COUNTED, "only-of-type"}
    | {f"{name}()" for name in _FUNCTIONS - {"lexbor-contains"}}
)


class Nth(msgspec.Struct, frozen=True):
    """An element's number among its siblings is `step` times some whole number, plus `first`."""

    step: int
    first: int
    of_type: bool
    from_end: bool
    among: "Selector | None" = None


class Has(msgspec.Struct, frozen=True):
    """One of these lies in the given relation to the element."""

    relatives: tuple["Complex", ...]


class Is(msgspec.Struct, frozen=True):
    """The element is, or is not, one of those."""

    selector: "Selector"
    wanted: bool


class Step(msgspec.Struct, frozen=True):
    """An element as Lexbor finds it alone, what else is asked of it, and how it relates to the step
    before."""

    combinator: str
    base: str
    filters: tuple[Nth | Has | Is, ...] = ()


Complex = tuple[Step, ...]


class Selector(msgspec.Struct, frozen=True):
    """A list of selectors, compiled; `direct` where Lexbor finds them all quickly."""

    text: str
    complexes: tuple[Complex, ...]
    direct: bool


class TooMuch(Exception):
    """The page is too large for what is looked for."""


MANY = 200
"""Looks that may take some tenths of a millisecond: the clock is looked at."""


class Budget:
    """How many more elements may be looked at; the page's budget hears of every look."""

    def __init__(self, looks: int, page: budget.Budget) -> None:
        self.left, self._page = looks, page

    def spend(self, looks: int) -> None:
        """Count some looks; raises `TooMuch` when there were too many."""
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
    """A selector to search with; raises `ValueError` with a reason for the one who wrote it."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the selector has {len(text):,} characters, more than {MAX_LENGTH:,}")
    if not text.isprintable() and not all(sign.isprintable() or sign.isspace() for sign in text):
        raise ValueError("the selector holds a character that cannot be printed")
    parts = [part for part in _PARTS.findall(text) if not part.startswith("/*")]
    if parts.count(",") > MAX_COMMAS:
        raise ValueError(f"the selector lists more than {MAX_COMMAS + 1} parts")
    known = "".join(
        "lexbor-contains" if _is_contains(parts, at) else part for at, part in enumerate(parts)
    )
    if not _whole(parts) or not _known(known):
        raise ValueError(f"{text!r} is not a CSS selector")
    return _selector(known)


def _is_contains(parts: list[str], at: int) -> bool:
    return (
        parts[at].lower() == "contains"
        and parts[at - 1 : at] == [":"]
        and parts[at + 1 : at + 2] == ["("]
    )


def _whole(parts: list[str]) -> bool:
    """Whether all that is opened is closed: CSS would close it where the text ends, wherever it was
    meant to end."""
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


def _known(text: str) -> bool:
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
    complexes = tuple(_complex(parts) for parts in _cut(_PARTS.findall(text), ","))
    return Selector(text.strip(), complexes, all(map(_is_direct, complexes)))


def _is_direct(steps: Complex) -> bool:
    """Whether Lexbor can be trusted with it: of `:is(a, b) c` it finds only some."""
    if len(steps) == 1:
        return not steps[0].filters
    return all(
        not (step.filters or "(" in step.base) and step.combinator in ("", ">", "+")
        for step in steps
    )


def _cut(parts: list[str], sign: str) -> Iterator[list[str]]:
    """The pieces between the signs that are in no bracket."""
    piece: list[str] = []
    for part, depth in _depths(parts):
        if part == sign and not depth:
            yield piece
            piece = []
        else:
            piece.append(part)
    yield piece


def _depths(parts: Iterable[str]) -> Iterator[tuple[str, int]]:
    depth = 0
    for part in parts:
        depth -= part in ")]"
        yield part, depth
        depth += part in "(["


def _complex(parts: list[str]) -> Complex:
    steps: list[Step] = []
    combinator, compound = "", list[str]()
    for part, depth in [*_depths(parts), (" ", 0)]:
        if depth or not (part in _COMBINATORS or part.isspace()):
            if part == "|" and not depth and compound[-1:] == ["|"]:
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
    base: list[str] = []
    filters: list[Nth | Has | Is] = []
    at = 0
    while at < len(parts):
        if parts[at] == ":":
            end = _end(parts, at)
            if end < at + 2:
                raise ValueError("a colon in the selector stands alone")
            kept, added = _pseudo(
                parts[at + 1].lower(), "".join(parts[at + 3 : end - 1]), "".join(parts[at:end])
            )
            base.append(kept)
            filters += added
            at = end
        else:
            end = _end(parts, at - 1) if parts[at] == "[" else at + 1
            base += parts[at:end]
            at = end
    alone = "".join(base) or "*"
    if not _known(alone):
        raise ValueError(f"{''.join(parts)!r} cannot be selected")
    return Step(combinator, alone, tuple(filters))


def _end(parts: list[str], at: int) -> int:
    """Where the brackets end that begin in the second part from there on, if they do."""
    depth = 0
    for end in range(at + 1, len(parts)):
        depth += (parts[end] in ("(", "[")) - (parts[end] in (")", "]"))
        following = parts[end + 1] if end + 1 < len(parts) else ""
        if not depth and not (end == at + 1 and following == "("):
            return end + 1
    return len(parts)


def _pseudo(name: str, argument: str, text: str) -> tuple[str, list[Nth | Has | Is]]:
    """What Lexbor keeps of a pseudo-class, and what is done here."""
    if name in _PLAIN or name == "lexbor-contains":
        return text, []
    if name in _COUNTED:
        return "", [Nth(0, 1, *_COUNTED[name])]
    if name == "only-of-type":
        return "", [Nth(0, 1, *_COUNTED["first-of-type"]), Nth(0, 1, *_COUNTED["last-of-type"])]
    if name in _NTHS:
        return "", [_nth(argument, *_NTHS[name])]
    if name == "has":
        return "", [Has(tuple(_relative(parts) for parts in _cut(_PARTS.findall(argument), ",")))]
    if name in ("not", "is", "where"):
        inner = _selector(argument)
        if all(len(steps) == 1 and not steps[0].filters for steps in inner.complexes):
            return text, []
        return "", [Is(inner, name != "not")]
    raise ValueError(
        f"the pseudo-class :{name} cannot be asked of a stored page; known are {', '.join(_KNOWN)}"
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
        numbers = (2, 1) if word.lower() == "odd" else (2, 0)
    elif only:
        numbers = (0, int(only))
    else:
        numbers = (
            int(f"{step}1" if step in ("", "+", "-") else step),
            int(f"{sign}{first}") if first else 0,
        )
    return Nth(*numbers, of_type, from_end, _selector(among) if among else None)


# Searching.

Nodes = dict[int, LexborNode]


class Search:
    """Searches one page, within a budget; what was found for one selector helps the next."""

    def __init__(self, tree: LexborHTMLParser, budget: Budget) -> None:
        self._tree, self._budget = tree, budget
        self._seen: dict[str, list[LexborNode]] = {}
        self._size = self._kept = 0

    def find(self, selector: Selector) -> list[LexborNode]:
        """All that it selects, in the page's order; raises `TooMuch` where the budget does not
        suffice."""
        if len(selector.complexes) == 1:
            return (
                self._css(selector.text)
                if selector.direct
                else list(self._complex(selector.complexes[0]).values())
            )
        plain = all(len(steps) == 1 and not steps[0].filters for steps in selector.complexes)
        found = None if plain else self._found(selector)
        # Asked for a list, Lexbor would give an element once for each part that selects it:
        # hundreds of megabytes.
        nodes = self._css(
            ":is(" + ", ".join({steps[-1].base: None for steps in selector.complexes}) + ")"
        )
        return nodes if found is None else [node for node in nodes if node.mem_id in found]

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
        if query not in self._seen:
            self._size = self._size or _size(self._tree)
            self._budget.spend(self._size // 20)
            found = self._tree.css(query)
            self._budget.spend(len(found) + 1)
            if len(found) > MAX_FOUND:
                raise TooMuch
            if self._kept + len(found) > MAX_KEPT:
                return found
            self._kept += len(found)
            self._seen[query] = found
        else:
            found = self._seen[query]
            self._budget.spend(len(found) + 1)
        return found

    def _complex(self, steps: Complex) -> Nodes:
        found = _by_id(self._matching(steps[0]))
        for step in steps[1:]:
            if not found:
                break
            related = self._related(step.combinator, found)
            found = _by_id(node for node in self._matching(step) if related(node))
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
        """Whether an element stands in that relation to one of those."""
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
        """The elements that have such relatives, going back from the last one."""
        nodes = self._matching(steps[-1])
        for this, before in zip(steps[:0:-1], steps[-2::-1], strict=True):
            anchors = self._anchors(this.combinator, nodes)
            nodes = [node for node in self._matching(before) if node.mem_id in anchors]
        return self._anchors(steps[0].combinator, nodes)

    def _anchors(self, combinator: str, nodes: list[LexborNode]) -> set[int]:
        """The elements to which one of those stands in that relation."""
        onward = _parent if combinator in " >" else _before
        anchors: set[int] = set()
        for node in nodes:
            other = onward(node)
            while other is not None and (key := other.mem_id) not in anchors:
                anchors.add(key)
                self._budget.spend(1)
                other = onward(other) if combinator in " ~" else None
        return anchors

    def _counting(self, nth: Nth) -> Callable[[LexborNode], bool]:
        members = None if nth.among is None else self._found(nth.among)
        numbers: dict[int, int] = {}
        counted: set[int] = set()

        def passes(node: LexborNode) -> bool:
            parent = node.parent
            if parent is None:
                return _fits(nth, 1)
            if parent.mem_id not in counted:
                counted.add(parent.mem_id)
                numbers.update(self._numbers(parent, nth, members))
            return node.mem_id in numbers and _fits(nth, numbers[node.mem_id])

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
        for key, tag in reversed(children) if nth.from_end else children:
            if members is None or key in members:
                counts[tag] = counts.get(tag, 0) + 1
                yield key, counts[tag]


def _size(tree: LexborHTMLParser) -> int:
    return sum(1 for _ in tree.root.traverse()) if tree.root else 0


def _by_id(nodes: Iterable[LexborNode]) -> Nodes:
    """In their order, and once each: Lexbor gives what two parts of a list select twice."""
    return {node.mem_id: node for node in nodes}


def _parent(node: LexborNode) -> LexborNode | None:
    return node.parent


def _before(node: LexborNode) -> LexborNode | None:
    """The element before it, whatever text and comments are between."""
    other = node.prev
    while other is not None and not other.is_element_node:
        other = other.prev
    return other


def _fits(nth: Nth, number: int) -> bool:
    rest = number - nth.first
    return rest == 0 if nth.step == 0 else rest % nth.step == 0 and rest // nth.step >= 0
