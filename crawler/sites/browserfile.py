"""The key `browser` of a site's file: what a browser does with a page, and its checks."""

import difflib
import re
from functools import partial
from typing import Any

from crawler.errors import UsageError
from crawler.models import HTTP, Fetcher
from crawler.render_options import (
    ACTIONS,
    MAX_STEPS,
    MAX_VALUE,
    RenderOptions,
    ResourceType,
    Seconds,
    Step,
    Times,
)
from crawler.sites.fieldfile import checked_css
from crawler.sites.yamlfile import (
    KINDS,
    Checks,
    Node,
    Wrong,
    checked,
    checked_text,
    converted,
    each,
    mapping,
    text_check,
)

_NAMED = (
    "Enter", "Tab", "Escape", "Space", "Backspace", "Delete", "Insert", "Home", "End", "PageUp",
    "PageDown", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", *(f"F{n}" for n in range(1, 13)),
)  # fmt: skip
_KEYS = {name.lower(): name for name in _NAMED}
_KEY = re.compile(r"((?:(?:Shift|Control|Alt|Meta)\+)*)([!-~]|[A-Za-z0-9]+)")


def checked_browser(node: Node) -> dict[str, Any]:
    """Check the key `browser`; return what is given."""
    return checked(mapping("browser", node), RenderOptions, " in browser", _CHECKS)


def check_browser(options: RenderOptions, fetcher: Fetcher | None) -> None:
    """Check options of a program; raises `UsageError`."""
    if fetcher == HTTP and options.needs_browser:
        raise UsageError("options: browser: a browser is needed, and fetcher is http")
    where = "wait_for"
    try:
        if options.wait_for:
            checked_css(options.wait_for)
        for number, step in enumerate(options.steps or (), 1):
            where = f"step {number}"
            check_step(step)
    except ValueError as error:
        raise UsageError(f"options: browser: {where}: {error}") from None


def check_step(step: Step) -> None:
    """Check a step of a program; raises `ValueError`."""
    if problem := step.problem:
        raise ValueError(problem)
    if step.element:
        checked_css(step.element)
    if step.press:
        key_named(step.press)


def key_named(text: str) -> str:
    """Return the name of a key, with those that are pressed with it; raises `ValueError`."""
    found = _KEY.fullmatch(text)
    if found and found[2].lower() in _KEYS:
        return found[1] + _KEYS[found[2].lower()]
    if found and len(found[2]) == 1:
        return text
    near = difflib.get_close_matches(text.lower(), _KEYS, n=1)
    hint = f"did you mean {_KEYS[near[0]]}?" if near else "such as Enter, Tab or Control+A"
    raise ValueError(f"{text[:60]!r} is not a key; {hint}")


def _wait_for(node: Node) -> str:
    """Check a selector; an empty text undoes that of the site."""
    if node.kind == "scalar" and not node.text:
        return ""
    return checked_text("wait_for", node, checked_css)


def _block(node: Node) -> tuple[ResourceType, ...]:
    check = text_check("block", partial(converted, kind=ResourceType))
    nodes = [node] if node.kind == "scalar" else node.items
    if node.kind == "mapping":
        raise Wrong(f"block must be a list, not {KINDS[node.kind]}", node.line)
    return tuple(dict.fromkeys(check(each) for each in nodes))


def _steps(node: Node) -> tuple[Step, ...]:
    if node.kind != "sequence":
        example = '`- click: ".more"`'
        raise Wrong(f"steps must be a list, as in {example}, not {KINDS[node.kind]}", node.line)
    return each("steps", node, MAX_STEPS, _step)


def _step(node: Node) -> Step:
    entries = mapping("a step", node)
    for name in ACTIONS:
        if name in entries and entries[name][1].is_null:
            hint = "a selector that begins with # must be in quotes"
            raise Wrong(f"{name} is empty; {hint}", entries[name][0])
    step = Step(**checked(entries, Step, " in a step", _STEP_CHECKS))
    if step.problem:
        raise Wrong(f"steps: {step.problem}", node.line)
    return step


def _scroll(text: str) -> int | str:
    if re.fullmatch(r"[+-]?[\d.]+", text):
        return int(converted(text, Times))
    return checked_css(text)


def _value(node: Node) -> str:
    """Check the text that is filled in; no message shows it."""
    if node.kind != "scalar":
        raise Wrong(f"value must be a single text, not {KINDS[node.kind]}", node.line)
    if len(node.text) > MAX_VALUE:
        reason = f"value has {len(node.text):,} characters, more than {MAX_VALUE:,}"
        raise Wrong(reason, node.line)
    return node.text


_CHECKS: Checks = {"wait_for": _wait_for, "block": _block, "steps": _steps}
_STEP_CHECKS: Checks = {
    **{name: text_check(name, checked_css) for name in ("wait_for", "click", "fill", "selector")},
    "press": text_check("press", key_named),
    "scroll": text_check("scroll", _scroll),
    "wait": text_check("wait", partial(converted, kind=Seconds)),
    "times": text_check("times", partial(converted, kind=Times)),
    "seconds": text_check("seconds", partial(converted, kind=Seconds)),
    "value": _value,
}
