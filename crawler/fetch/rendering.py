"""What a browser is asked to do with a page, and what it gives back."""

from typing import Literal

import msgspec

from crawler.models import Page

Action = Literal["wait_for", "click", "fill", "scroll", "press", "wait"]
ResourceType = Literal["image", "media", "font", "stylesheet"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do on a page after it has loaded."""

    action: Action
    selector: str = ""
    value: str = ""
    """The text to fill in, or the key to press."""
    seconds: float = 0.0
    """How long to wait at most, or exactly for `wait`."""
    times: int = 1
    """How often at most: a button "load more" is clicked until it is gone or brings nothing."""


class RenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a page is rendered."""

    wait_for: str = ""
    """A CSS selector; empty: until the network is quiet."""
    steps: tuple[Step, ...] = ()
    block: tuple[ResourceType, ...] = ("image", "media", "font")
    """Resources that are not loaded. A screenshot or a PDF needs them all the same."""
    screenshot: bool = False
    pdf: bool = False


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A page as a browser has rendered it."""

    page: Page
    """Its DOM as UTF-8, with status and headers of the response."""
    response: Page
    """The response that it came from, as its server sent it."""
    requests: int = 0
    """Requests of the page for other things than itself."""
    received: int = 0
    """Bytes over the wire, with those of the response."""
    refused: tuple[str, ...] = ()
    """Addresses that the page asked for and did not get, shortened."""
    screenshot: bytes = b""
    pdf: bytes = b""
