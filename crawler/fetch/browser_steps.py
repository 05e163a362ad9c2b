"""What is done on a page after it has loaded: clicks, scrolling and the like, with their limits."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from playwright.async_api import Error, Locator
from playwright.async_api import Page as Tab

from crawler.render_options import Step

STEP_S, READY_S = 10.0, 20.0
"""Time limits of a step that names none, and of the wait for the page."""
MAX_PROBLEM = 500
AGAIN_S = 1.0
"""How long a button that was clicked before may take to be there again, and how late a page may
begin to do something."""
_CONTAINS = re.compile(
    r""":contains\(\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')(?:\s+i)?\s*\)""", re.IGNORECASE
)
"""What browsers do not have; Playwright's own name for it ignores case."""
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

    async def take(self, wait_for: str, steps: tuple[Step, ...]) -> str:
        """Wait for an element if there is one to wait for, and take all steps; return which one
        failed, and why."""
        if wait_for:
            step = Step(wait_for=wait_for, seconds=READY_S)
            if problem := await self._try(step):
                return f"wait_for {wait_for}: {problem}"[:MAX_PROBLEM]
        for number, step in enumerate(steps, 1):
            if problem := await self._try(step):
                shown = f"{step.action} {step.element}".strip()
                return f"step {number} ({shown}): {problem}"[:MAX_PROBLEM]
        return ""

    async def _try(self, step: Step) -> str:
        seconds = step.seconds or STEP_S
        try:
            await self._take(step, seconds * 1000)
        except Error as error:
            if "has been closed" in error.message or "crashed" in error.message:
                raise
            return _told(error, seconds)
        return ""

    async def _take(self, step: Step, limit_ms: float) -> None:
        element = self._element(step.element)
        match step.action, element:
            case "wait", _:
                await asyncio.sleep(step.wait)
                return
            case "wait_for", Locator():
                await element.wait_for(state="attached", timeout=limit_ms)
                return
            case "click", Locator():
                await self._click(element, step.repeats, limit_ms)
                return
            case "scroll", _:
                await self._scroll(element, step.repeats, limit_ms)
                return
            case "fill", Locator():
                await element.fill(step.value or "", timeout=limit_ms)
            case "press", Locator():
                await element.press(step.press, timeout=limit_ms)
            case "press", _:
                await self._tab.keyboard.press(step.press)
        await self._settle()

    def _element(self, selector: str) -> Locator | None:
        """Return the first element that a selector finds."""
        if not selector:
            return None
        return self._tab.locator("css=" + _CONTAINS.sub(r":has-text(\1)", selector)).first

    async def _click(self, element: Locator, times: int, limit_ms: float) -> None:
        """Click until the element is gone or disabled, or until a click changes nothing."""
        for number in range(times):
            if number and not await self._is_clickable(element):
                return
            before = await self._tab.evaluate(_LOOK)
            await element.click(timeout=limit_ms)
            await self._settle()
            if number + 1 < times and await self._tab.evaluate(_LOOK) == before:
                await self._linger()
                if await self._tab.evaluate(_LOOK) == before:
                    return

    async def _linger(self) -> None:
        """Wait a little longer: what a page does on a click or on scrolling may be late."""
        await asyncio.sleep(AGAIN_S)
        await self._settle()

    async def _is_clickable(self, element: Locator) -> bool:
        try:
            await element.wait_for(state="visible", timeout=AGAIN_S * 1000)
            return await element.is_enabled(timeout=AGAIN_S * 1000)
        except Error:
            return False

    async def _scroll(self, element: Locator | None, times: int, limit_ms: float) -> None:
        """Scroll to the end until it moves away no more."""
        known: Any = None
        for _ in range(times):
            height = await self._scroll_once(element, limit_ms)
            if height == known:
                await self._linger()
                height = await self._scroll_once(element, limit_ms)
                if height == known:
                    return
            known = height
            await self._settle()

    async def _scroll_once(self, element: Locator | None, limit_ms: float) -> Any:
        """Scroll to the end; return where that is, or what the page's scripts say instead."""
        if element:
            return await element.evaluate(_HEIGHT, timeout=limit_ms)
        return await self._tab.evaluate(_HEIGHT, None)


def _told(error: Error, seconds: float) -> str:
    """Return in one line why a step failed, without what the driver logs of it."""
    if "Timeout" in error.message:
        return f"there is no such element that it can be done with within {seconds:g} s"
    return error.message.strip().partition("\n")[0]
