"""Work for a Gateway, and a Gateway to work for."""

import re

from crawler.config import Settings
from crawler.errors import ConfigError

TOKEN = re.compile(r"[!-~]{1,4096}")


def token(settings: Settings) -> str:
    """The secret of GATEWAY_TOKEN, else of the file that GATEWAY_TOKEN_FILE names; no error ever shows it."""
    if settings.gateway_token:
        return _checked(settings.gateway_token, "GATEWAY_TOKEN")
    path = settings.gateway_token_file
    if path is None:
        raise ConfigError("there is no token: set GATEWAY_TOKEN, or GATEWAY_TOKEN_FILE to the name of a file with it")
    try:
        with path.open("rb") as file:
            text = file.read(10_000).decode("ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not plain ASCII text"
        raise ConfigError(f"GATEWAY_TOKEN_FILE={path}: it cannot be read ({reason})") from None
    return _checked(text, f"GATEWAY_TOKEN_FILE={path}")


def _checked(text: str, source: str) -> str:
    if not text:
        raise ConfigError(f"{source}: there is nothing in it")
    if not TOKEN.fullmatch(text):
        raise ConfigError(f"{source}: a token is at most 4,096 printable ASCII characters without spaces")
    return text
