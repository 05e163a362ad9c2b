"""A hook for schemathesis: as with any client that keeps to the contract, no two requests share an Idempotency-Key."""

import re
from itertools import count
from typing import Any

import schemathesis

_numbers = count()


@schemathesis.hook
def before_call(ctx: Any, case: Any, **kwargs: Any) -> None:
    """Make a valid key unique; one that is not valid stays so."""
    key = (case.headers or {}).get("Idempotency-Key")
    if key and re.fullmatch("[!-~]{1,200}", key):
        case.headers["Idempotency-Key"] = f"{key[:180]}-{next(_numbers)}"
