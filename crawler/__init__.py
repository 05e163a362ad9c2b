"""A crawler that loses nothing, and proves it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crawler.coordinator import CrawlCoordinator
    from crawler.errors import CrawlerError
    from crawler.library import Store, scrape

__version__ = "0.2.0"
__all__ = ["CrawlCoordinator", "CrawlerError", "Store", "__version__", "scrape"]

_HOMES = {
    "CrawlCoordinator": "crawler.coordinator",
    "CrawlerError": "crawler.errors",
    "Store": "crawler.library",
    "scrape": "crawler.library",
}
"""Where the public names are defined. They are loaded when they are used: `import crawler` stays
cheap."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "app":  # for `celery -A crawler`, and not before: Celery costs half a second
        from crawler.errors import ConfigError

        try:
            from crawler.tasks import app
        except ConfigError as error:
            raise SystemExit(f"Error: {error}") from None
        return app
    raise AttributeError(f"module 'crawler' has no attribute {name!r}")
