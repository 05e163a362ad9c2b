"""What a browser gives back of a page."""

import msgspec

from crawler.models import Page


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A page as a browser has rendered it."""

    page: Page
    """Its DOM as UTF-8, with status and headers of the response."""
    response: Page
    """The response that it came from, as its server sent it."""
    step_failed: str = ""
    """Why a step could not be taken; then the page is as it was before it."""
    requests: int = 0
    """Requests of the page for other things than itself."""
    received: int = 0
    """Bytes over the wire, with those of the response."""
    refused: tuple[str, ...] = ()
    """Addresses that the page asked for and did not get, shortened."""
    screenshot: bytes = b""
    pdf: bytes = b""
    seen: bytes = b""
    """All texts that its screenshot and its PDF may show."""
