"""The browser of a process, if one is installed."""

import importlib
from typing import cast

from crawler.config import Settings
from crawler.worker.pages import Browser

NO_BROWSER = "no browser is installed; pip install 'crawler[browser]' installs one"


def find_browser(settings: Settings) -> Browser | None:
    """Return the browser of this process, which is not started yet; None where there is none."""
    try:
        module = importlib.import_module("crawler.fetch.browser")
    except ImportError:
        return None
    return cast(Browser | None, module.Browser.of(settings))
