"""An array that may hold anything, cut into its elements: what is wrong inside one costs no
other."""

import json
import re

from crawler.errors import GatewayRefused

# It only finds where an element ends; what it consists of is judged later, alone.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
_SPACE = re.compile(r"[ \t\r\n]*+")
_MARK = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)


def elements(body: bytes, most: int) -> list[bytes]:
    """Each element as it is written; raises `GatewayRefused` where there is no array, or one of too
    many."""
    text = body.decode(
        "utf-8", "surrogateescape"
    )  # bytes that are no text are their element's own affair
    at = _behind(text, 0, "[")
    found: list[bytes] = []
    while text[at : at + 1] != "]":
        at = at if not found else _behind(text, at, ",")
        end = _end(text, at)
        found.append(text[at:end].encode("utf-8", "surrogateescape"))
        if len(found) > most:
            raise GatewayRefused(413, f"there are more than {most:,} results in the body")
        at = _space(text, end)
    if _space(text, at + 1) < len(text):
        raise GatewayRefused(422, f"the body: something follows the array (character {at + 2})")
    return found


def _space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


def _behind(text: str, at: int, sign: str) -> int:
    """The place of what follows this sign, which must be the next."""
    at = _space(text, at)
    if text[at : at + 1] != sign:
        where = "at its end" if at >= len(text) else f"at character {at + 1}"
        raise GatewayRefused(422, f"the body: it is no JSON array; {sign!r} is missing {where}")
    return _space(text, at + 1)


def _end(text: str, at: int) -> int:
    try:
        return _DECODER.raw_decode(text, at)[1]
    except json.JSONDecodeError as error:
        raise GatewayRefused(
            422, f"the body: not JSON: {error.msg} (character {error.pos + 1})"
        ) from None
    except RecursionError:
        return _closing(text, at)


def _closing(text: str, at: int) -> int:
    """The end of an element that is nested too deep to be parsed."""
    depth = 0
    for mark in _MARK.finditer(text, at):
        depth += (mark[0] in "[{") - (mark[0] in "]}")
        if depth == 0:
            return mark.end()
    raise GatewayRefused(422, "the body is nested too deep, and ends before its array does")
