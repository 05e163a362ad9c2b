"""A crawler that loses nothing, and proves it."""

from typing import Any

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Load the Celery application when `celery -A crawler` asks for it, and not before: it costs
    half a second."""
    if name == "app":
        from crawler.errors import ConfigError

        try:
            from crawler.tasks import app
        except ConfigError as error:
            raise SystemExit(f"Error: {error}") from None
        return app
    raise AttributeError(f"module 'crawler' has no attribute {name!r}")
