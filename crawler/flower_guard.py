"""What keeps strangers' pages out of a Flower without a password: it answers to addresses and
`localhost` alone.

A page of any site can have its own name lead to 127.0.0.1 (DNS rebinding) and then read what Flower
shows as if it were of its own origin. The browser still sends that name as `Host`.
"""

import ipaddress
import sys
from typing import Any

REFUSAL = (
    "This Flower has no password, so it answers to an address or localhost only, not to a name. "
    "Set FLOWER_BASIC_AUTH=user:password to reach it by name.\n"
)


def install(**_: Any) -> None:
    """Guard the Flower of this process, if it is one; for Celery's signal that an app's modules are
    loaded."""
    module = sys.modules.get("flower.app")
    if module is None:
        return
    from tornado.web import RequestHandler

    class Refusal(RequestHandler):
        """The answer to any other name."""

        def prepare(self) -> None:
            self.set_status(403)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(REFUSAL)

    flower: Any = module.Flower
    find_handler = flower.find_handler

    def guarded(self: Any, request: Any, **details: Any) -> Any:
        options = self.options
        open_to_names = options.basic_auth or options.auth or options.unix_socket
        if open_to_names or is_plain(request.host_name):
            return find_handler(self, request, **details)
        return self.get_handler_delegate(request, Refusal)

    flower.find_handler = guarded


def is_plain(host: str) -> bool:
    """Whether nobody else can have a host lead to this machine: it is an address, or
    `localhost`."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
