"""What is done on a page after it has loaded: clicks, scrolling and the like, with their limits."""

import asyncio
from collections.abc import Awaitable, Callable

from playwright.async_api import Error, Locator
from playwright.async_api import Page as Tab

from crawler.errors import FetchError
from crawler.fetch.rendering import Step

STEP_S, MAX_STEP_S = 10.0, 60.0
"""Time limit of a step that names none, and of any."""
AGAIN_S = 1.0
"""How long a button that was clicked before may take to be there again."""
MAX_TIMES = 100
_LOOK = """() => {
  const text = document.documentElement?.textContent ?? "";
  let hash = 0;
  for (let at = 0; at < text.length; at++) hash = (hash * 31 + text.charCodeAt(at)) | 0;
  return [location.href, document.getElementsByTagName("*").length, text.length, hash].join(" ");
}"""
"""Changes with whatever a reader of the page would notice."""
_HEIGHT = """element => {
  const scrolled = element ?? document.scrollingElement ?? document.documentElement;
  scrolled.scrollTo(0, scrolled.scrollHeight);
  return scrolled.scrollHeight;
}"""


class Steps:
    """Takes steps on one page; `settle` waits until it has loaded what a step has begun."""

    def __init__(self, tab: Tab, settle: Callable[[], Awaitable[None]]) -> None:
        self._tab, self._settle = tab, settle

    async def wait_for_page(self, selector: str) -> None:
        """Wait for the element that says that the page is ready."""
        step = Step(action="wait_for", selector=selector, seconds=2 * STEP_S)
        await self._try(f"wait_for {selector}", step)

    async def take(self, steps: tuple[Step, ...]) -> None:
        """Take all steps; raises `FetchError` with the number of the one that failed."""
        for number, step in enumerate(steps, 1):
            shown = f"{step.action} {step.selector}".strip()
            await self._try(f"step {number} ({shown})", step)

    async def _try(self, name: str, step: Step) -> None:
        seconds = min(step.seconds or STEP_S, MAX_STEP_S)
        try:
            await self._take(step, seconds)
        except Error as error:
            message = f"{name}: {_told(error, seconds)}"
            raise FetchError("step_failed", message[:500]) from None

    async def _take(self, step: Step, seconds: float) -> None:
        limit_ms = seconds * 1000
        element = self._tab.locator(f"css={step.selector}").first if step.selector else None
        match step.action, element:
            case "wait", _:
                await asyncio.sleep(min(step.seconds, MAX_STEP_S))
                return
            case "wait_for", Locator():
                await element.wait_for(state="attached", timeout=limit_ms)
                return
            case "click", Locator():
                await self._click(element, min(step.times, MAX_TIMES), limit_ms)
                return
            case "scroll", _:
                await self._scroll(element, min(step.times, MAX_TIMES), limit_ms)
                return
            case "fill", Locator():
                await element.fill(step.value, timeout=limit_ms)
            case "press", Locator():
                await element.press(step.value, timeout=limit_ms)
            case "press", _:
                await self._tab.keyboard.press(step.value)
            case _:
                raise Error("it needs a selector")
        await self._settle()

    async def _click(self, element: Locator, times: int, limit_ms: float) -> None:
        """Click until the element is gone or disabled, or until a click changes nothing."""
        for number in range(times):
            if number and not await self._is_clickable(element):
                return
            before = await self._tab.evaluate(_LOOK)
            await element.click(timeout=limit_ms)
            await self._settle()
            if await self._tab.evaluate(_LOOK) == before:
                return

    async def _is_clickable(self, element: Locator) -> bool:
        try:
            await element.wait_for(state="visible", timeout=AGAIN_S * 1000)
            return await element.is_enabled(timeout=AGAIN_S * 1000)
        except Error:
            return False

    async def _scroll(self, element: Locator | None, times: int, limit_ms: float) -> None:
        """Scroll to the end until it moves away no more."""
        known = -1
        for _ in range(times):
            if element:
                height = await element.evaluate(_HEIGHT, timeout=limit_ms)
            else:
                height = await self._tab.evaluate(_HEIGHT, None)
            if height == known:
                return
            known = height
            await self._settle()


def _told(error: Error, seconds: float) -> str:
    """Return in one line why a step failed, without what the driver logs of it."""
    if "Timeout" in error.message:
        return f"there is no such element that it can be done with within {seconds:g} s"
    return error.message.strip().partition("\n")[0]
