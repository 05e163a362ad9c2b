"""Says why a record is invalid: required fields that it lacks, and what its JSON Schema refuses.

`fastjsonschema` makes Python code of a schema: 4 µs for a record, where `jsonschema` takes 88. It
would fetch other schemas, and search with `re`, which may hang. So references lead only into the
schema itself and never in a circle, and patterns are RE2.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from crawler.sites.fieldfile import MISSING
from crawler.sites.selectors import pattern

MAX_RULES = 10_000  # schemas in a schema, each counted wherever a reference repeats it
MAX_REFERENCES = 20  # references that lead from one to the next
MAX_REASONS, MAX_REASON = 20, 300  # reasons of one record, and characters of each
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_DEFINITIONS = ("definitions", "$defs")
_NOTES = ("$schema", "$id", "$comment", "title", "description", "examples", "default")
_ONE = ("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties")
_SEVERAL, _NAMED = ("allOf", "anyOf", "oneOf"), ("properties", *_DEFINITIONS)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


_KEYWORDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (_is_number, "a number")
    ),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        (_is_count, "a whole number"),
    ),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "required": (_are_names, "a list of names"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list"),
    "const": (lambda _: True, ""),
    "type": (
        lambda value: set(value if _are_names(value) else [str(value)]) <= _TYPES,
        f"one of {', '.join(sorted(_TYPES))}, or a list of them",
    ),
}
"""The keywords whose values are no schemas: what a value must be, and how that is said."""
_KNOWN = sorted({*_KEYWORDS, *_ONE, *_SEVERAL, *_NAMED, "items", "pattern", "$ref"})


def checked(schema: Any) -> str:
    """Return a schema as JSON, without notes; raises `ValueError` for one that cannot be used."""
    plain = _checked(schema, "", schema)
    if not isinstance(plain, dict):
        plain = {"not": {}} if plain is False else {}
    _count(plain, plain, (), [MAX_RULES])
    text = msgspec.json.encode(plain, order="sorted").decode()
    compiled(text)
    return text


def _checked(schema: Any, path: str, root: Any) -> Any:
    if isinstance(schema, bool):
        return schema
    if isinstance(schema, dict):
        plain = {
            key: _keyword(key, value, path, root)
            for key, value in schema.items()
            if key not in _NOTES
        }
        if "$ref" not in plain or len(plain) == 1:
            return plain
        raise ValueError(f"{_at(path)}beside $ref nothing counts; write allOf")
    raise ValueError(f"{_at(path)}a schema must be a mapping, or true or false")


def _at(path: str) -> str:
    return f"{path.removeprefix('.')}: " if path else ""


def _keyword(key: str, value: Any, path: str, root: Any) -> Any:
    """Check one keyword of a schema with its value."""
    inside = f"{path}.{key}"
    expected = ""
    if key in _KEYWORDS:
        fits, expected = _KEYWORDS[key]
        if fits(value):
            return value
    elif key == "pattern":
        pattern(str(value))
        return str(value)
    elif key == "$ref":
        _target(str(value), root)
        return str(value)
    elif key in _ONE or (key == "items" and not isinstance(value, list)):
        return _checked(value, inside, root)
    elif key in _SEVERAL or key == "items":
        expected = "a list of schemas"
        if isinstance(value, list) and value:
            return [_checked(each, inside, root) for each in value]
    elif key in _NAMED:
        expected = "a mapping of names to schemas"
        if isinstance(value, dict):
            return {name: _checked(each, f"{inside}.{name}", root) for name, each in value.items()}
    if expected:
        raise ValueError(f"{_at(path)}{key} must be {expected}")
    raise ValueError(f"{_at(path)}{key[:60]!r} is not known; known are {', '.join(_KNOWN)}")


def _target(reference: str, root: Any) -> Any:
    """Return what a reference means: a definition of the same schema."""
    start, _, name = reference.rpartition("/")
    group = start.removeprefix("#/")
    definitions = root.get(group)
    if group not in _DEFINITIONS or not isinstance(definitions, dict) or name not in definitions:
        hint = "a reference leads to a definition of the same schema, as in #/definitions/price"
        raise ValueError(f"$ref: there is no {reference[:60]!r}; {hint}")
    return definitions[name]


def _count(schema: Any, root: dict[str, Any], inside: tuple[str, ...], left: list[int]) -> None:
    """Refuse circles, and references that repeat references until checking never ends."""
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"it has more than {MAX_RULES:,} rules, with what references repeat")
    if isinstance(schema, list):
        for each in schema:
            _count(each, root, inside, left)
    if not isinstance(schema, dict):
        return
    if reference := schema.get("$ref"):
        if reference in inside:
            raise ValueError(f"$ref: {reference[:60]!r} leads back to itself")
        if len(inside) == MAX_REFERENCES:
            raise ValueError(f"$ref: more than {MAX_REFERENCES} lead from one to the next")
        _count(_target(reference, root), root, (*inside, reference), left)
    for key in (*_ONE, *_SEVERAL, "items"):
        if key in schema:
            _count(schema[key], root, inside, left)
    for key in _NAMED:
        for each in schema.get(key, {}).values():
            _count(each, root, inside, left)


Check = Callable[[Any], str]  # returns the first fault of a record, or nothing


@lru_cache(maxsize=1_000)
def compiled(text: str) -> tuple[Check, tuple[Check, ...]]:
    """Return the check of a schema as a whole, and one for each property and for the rest.

    A check ends at the first fault. If there is one, the parts tell the others.
    """
    schema = msgspec.json.decode(text)
    shared = {key: schema[key] for key in _DEFINITIONS if key in schema}
    parts = [
        shared | {"properties": {name: each}} for name, each in schema.get("properties", {}).items()
    ]
    names = dict.fromkeys(schema.get("properties", {}), True)
    rest = schema | ({"properties": names} if names else {})
    return _compile(schema), tuple(_compile(part) for part in (rest, *parts))


def _compile(schema: dict[str, Any]) -> Check:
    import fastjsonschema  # few sites have a schema

    expressions: list[str] = []
    made = _with_formats(schema, expressions)
    formats = {_format(at): _searching(each) for at, each in enumerate(expressions)}
    draft = {"$schema": "http://json-schema.org/draft-07/schema#"}  # a name; nothing is fetched
    try:
        check = fastjsonschema.compile(made | draft, formats=formats, use_default=False)
    except fastjsonschema.JsonSchemaDefinitionException as error:
        raise ValueError(str(error)) from None

    def fault(record: Any) -> str:
        try:
            check(record)
        except fastjsonschema.JsonSchemaValueException as error:
            reason = str(error.message).replace("data.", "", 1).replace("data", "the record", 1)
            for at, expression in enumerate(expressions):
                reason = reason.replace(f"be {_format(at)}", f"match {expression}")
            return reason
        return ""

    return fault


def _format(at: int) -> str:
    return f"pattern-{at}."


def _searching(expression: str) -> Callable[[str], bool]:
    search = pattern(expression).search
    return lambda text: search(text) is not None


def _with_formats(schema: Any, expressions: list[str]) -> Any:
    """Write each pattern as a format with a check of our own: `re` would search for it."""
    if isinstance(schema, list):
        return [_with_formats(each, expressions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key in (*_ONE, *_SEVERAL, "items"):
        if key in made:
            made[key] = _with_formats(made[key], expressions)
    for key in _NAMED:
        if key in made:
            made[key] = {name: _with_formats(each, expressions) for name, each in made[key].items()}
    if "pattern" in made:
        made["format"] = _format(len(expressions))
        expressions.append(made.pop("pattern"))
    return made


def reasons(record: dict[str, Any], schema: str | None) -> tuple[str, ...]:
    """Return why a record is invalid; nothing for a valid one.

    A schema sees no nulls: a field that the page lacks is not there.
    """
    found = [f"{name} is missing" for name in record.get(MISSING, ())]
    if schema:
        data = {name: value for name, value in record.items() if name != MISSING}
        found += _refused(_without_nulls(data), compiled(schema))
    return tuple(reason[:MAX_REASON] for reason in found[:MAX_REASONS])


def _refused(data: Any, checks: tuple[Check, tuple[Check, ...]]) -> list[str]:
    whole, parts = checks
    first = whole(data)
    if not first:
        return []
    found = dict.fromkeys(fault for part in parts if (fault := part(data)))
    return list(found or [first])


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value
