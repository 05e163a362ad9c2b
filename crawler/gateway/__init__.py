"""The Gateway: the agent that works for one, and a reference Gateway (`reference/`)."""

import re

from crawler.config import Settings
from crawler.errors import ConfigError


def token(settings: Settings) -> str:
    """Return GATEWAY_TOKEN, or what GATEWAY_TOKEN_FILE holds now; raises `ConfigError`."""
    if settings.gateway_token is not None:
        return _checked(settings.gateway_token, "GATEWAY_TOKEN")
    path = settings.gateway_token_file
    if path is None:
        raise ConfigError(
            "there is no token for the Gateway; set GATEWAY_TOKEN, or GATEWAY_TOKEN_FILE to a file"
        )
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"GATEWAY_TOKEN_FILE={path}: cannot be read ({error.strerror})") from None
    return _checked(text.strip(), f"GATEWAY_TOKEN_FILE={path}")


def _checked(secret: str, where: str) -> str:
    if not secret:
        raise ConfigError(f"{where}: holds no token")
    if not re.fullmatch(r"[!-~]{1,4096}", secret):
        raise ConfigError(
            f"{where}: a token is printable ASCII without spaces, at most 4,096 characters"
        )
    return secret
