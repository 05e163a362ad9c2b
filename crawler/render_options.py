"""What a browser is asked to do with a page: by a site's file, a job or the API."""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

MAX_STEPS, MAX_TIMES, MAX_STEP_S = 50, 100, 60
MAX_SELECTOR, MAX_VALUE, MAX_KEY = 1_000, 10_000, 50
PASSWORD = re.compile(
    r"(?<![a-z])pass(?![a-z])|passw|passphrase|passcode|pwd|kennwort|парол", re.IGNORECASE
)
"""Found in names and selectors of password fields."""
ACTIONS = ("wait_for", "click", "fill", "press", "scroll", "wait")

Selector = Annotated[str, Meta(max_length=MAX_SELECTOR)]
Times = Annotated[
    int, Meta(ge=1, le=MAX_TIMES, description=f"a whole number from 1 to {MAX_TIMES}")
]
Seconds = Annotated[
    float, Meta(ge=0.1, le=MAX_STEP_S, description=f"a number from 0.1 to {MAX_STEP_S} seconds")
]
Boolean = Annotated[bool, Meta(description="true or false")]
ResourceType = Literal["image", "media", "font", "stylesheet"]
DEFAULT_BLOCK: tuple[ResourceType, ...] = ("image", "media", "font")

_GOES_WITH = {
    "value": ("fill",),
    "selector": ("press",),
    "times": ("click", "scroll"),
    "seconds": ("wait_for", "click", "fill", "press", "scroll"),
}
"""The actions that each other key of a step says more about."""


class Step(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One thing to do on a page after it has loaded: one action, and what goes with it."""

    wait_for: Selector = ""
    click: Selector = ""
    fill: Selector = ""
    press: Annotated[str, Meta(max_length=MAX_KEY)] = ""  # a key, such as Enter
    scroll: Times | Selector = ""  # how often, or the element that is scrolled
    wait: Seconds = 0.0
    value: Annotated[str, Meta(max_length=MAX_VALUE)] | None = None  # what is filled in
    selector: Selector = ""  # of the element that gets the key
    times: Times | None = None  # how often at most, until it changes nothing more
    seconds: Seconds | None = None  # how long the element is waited for

    @property
    def action(self) -> str:
        """What is done."""
        return next((name for name in ACTIONS if getattr(self, name)), "")

    @property
    def element(self) -> str:
        """The selector of what it is done with; empty: the page."""
        if self.action == "press":
            return self.selector
        found = getattr(self, self.action, "")
        return found if isinstance(found, str) else ""

    @property
    def repeats(self) -> int:
        """How often it is done at most."""
        if isinstance(self.scroll, int):
            return self.scroll
        return self.times or 1

    @property
    def problem(self) -> str:
        """Why it is no step; empty if it is one."""
        found = [name for name in ACTIONS if getattr(self, name)]
        if len(found) != 1:
            here = " and ".join(found) or "none"
            return f"a step has one of {', '.join(ACTIONS)}; here is {here}"
        for key, actions in _GOES_WITH.items():
            if getattr(self, key) not in ("", None) and self.action not in actions:
                return f"{key} goes with {' or '.join(actions)}, not with {self.action}"
        if self.times and isinstance(self.scroll, int):
            return "scroll has a number already; times goes with the selector of an element"
        if self.fill and self.value is None:
            return 'fill has no value; an empty one is ""'
        if self.fill and PASSWORD.search(self.fill):
            return "a password has no place in a step; sign in with login"
        return ""


class RenderOptions(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How a page is rendered. What is None is left to whoever else has a say, and to defaults."""

    wait_for: Selector | None = None  # without one: until the network is quiet
    block: tuple[ResourceType, ...] | None = None  # what is not loaded
    steps: Annotated[tuple[Step, ...], Meta(max_length=MAX_STEPS)] | None = None
    screenshot: Boolean | None = None
    pdf: Boolean | None = None

    @property
    def needs_browser(self) -> bool:
        """Whether only a browser can do what is asked for."""
        return bool(self.wait_for or self.steps or self.screenshot or self.pdf)

    @property
    def waits_s(self) -> float:
        """Seconds that its steps wait in any case."""
        return sum(step.wait for step in self.steps or ())

    def over(self, below: "RenderOptions") -> "RenderOptions":
        """Return these options, and those below where these say nothing."""
        own = {name: getattr(self, name) for name in self.__struct_fields__}
        said = {name: value for name, value in own.items() if value is not None}
        return msgspec.structs.replace(below, **said)
