"""What Firecrawl's v2 dialect asks a browser to do, as steps of this crawler."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from crawler.errors import UsageError
from crawler.render_options import MAX_SELECTOR, MAX_STEP_S, MAX_STEPS, MAX_VALUE, Step
from crawler.sites.browserfile import check_step, key_named

Milliseconds = Annotated[int, Field(ge=0, le=1000 * MAX_STEP_S)]
Selector = Annotated[str, Field(min_length=1, max_length=MAX_SELECTOR)]
NO_SCROLLING_UP = "scrolling up has no effect: it brings nothing that is not on the page"


class _Action(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Wait(_Action):
    """Waits for a time, or for an element."""

    type: Literal["wait"]
    milliseconds: Milliseconds | None = None
    selector: Selector | None = None


class Click(_Action):
    """Clicks an element."""

    type: Literal["click"]
    selector: Selector
    all: bool | None = None


class Write(_Action):
    """Writes into the element that was clicked before."""

    type: Literal["write"]
    text: Annotated[str, Field(max_length=MAX_VALUE)]


class Press(_Action):
    """Presses a key."""

    type: Literal["press"]
    key: Annotated[str, Field(max_length=100)]


class Scroll(_Action):
    """Scrolls the page or an element."""

    type: Literal["scroll"]
    direction: Literal["up", "down"] = "down"
    selector: Selector | None = None


class Unsupported(BaseModel):
    """What this server does not do."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    type: Literal["screenshot", "pdf", "scrape", "executeJavascript"]


Action = Annotated[Wait | Click | Write | Press | Scroll | Unsupported, Field(discriminator="type")]
Actions = Annotated[list[Action], Field(max_length=MAX_STEPS)]


def steps_of(wait_ms: int, actions: Sequence[Action]) -> tuple[tuple[Step, ...], list[str]]:
    """Return the steps for `waitFor` and `actions`, and warnings; raises `UsageError`."""
    steps, warnings = [_wait(wait_ms)] * bool(wait_ms), list[str]()
    clicked = ""
    for number, action in enumerate(actions):
        try:
            step = _step(action, clicked)
            if step:
                check_step(step)
                steps.append(step)
            elif isinstance(action, Scroll):
                warnings.append(NO_SCROLLING_UP)
        except ValueError as error:
            raise UsageError(f"actions.{number}: {error}") from None
        if isinstance(action, Click):
            clicked = action.selector
        elif not isinstance(action, Wait):
            clicked = ""
    if len(steps) > MAX_STEPS:
        raise UsageError(f"actions: with waitFor, there are at most {MAX_STEPS}")
    return tuple(steps), list(dict.fromkeys(warnings))


def _wait(milliseconds: int) -> Step:
    return Step(wait=max(milliseconds / 1000, 0.1))


def _step(action: Any, clicked: str) -> Step | None:
    """Return the step for an action; None for one without effect."""
    match action:
        case Wait(selector=str() as selector):
            return Step(wait_for=selector)
        case Wait(milliseconds=int() as milliseconds):
            return _wait(milliseconds) if milliseconds else None
        case Wait():
            raise ValueError("wait needs milliseconds or a selector")
        case Click(all=True):
            raise ValueError("click: all is not supported; the first element is clicked")
        case Click(selector=selector):
            return Step(click=selector)
        case Write(text=text):
            if not clicked:
                raise ValueError("write needs a click on its field before it")
            return Step(fill=clicked, value=text)
        case Press(key=key):
            return Step(press=key_named(key))
        case Scroll(direction="up"):
            return None
        case Scroll(selector=selector):
            return Step(scroll=selector or 1)
    if action.type == "screenshot":
        raise ValueError("screenshot is not supported; the format screenshot shows the end")
    raise ValueError(f"{action.type} is not supported")
