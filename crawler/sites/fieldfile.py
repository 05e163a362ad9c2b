"""The fields of a site's file: their keys and types, and their checks."""

import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from crawler.sites.yamlfile import (
    Boolean,
    Checks,
    Faults,
    Node,
    Wrong,
    checked,
    checked_text,
    entries_of,
    mapping,
    nearest,
    need,
    text_check,
    text_of,
)

MAX_FIELDS = 500
MAX_ALTERNATIVES, MAX_WORDS, MAX_JOIN = 20, 500, 100
"""Alternatives of a field, its keywords or known texts, and characters between joined texts."""
MISSING = "missing"  # the record's list of required fields without a value
_FIELD_NAME = re.compile(r"\w[\w -]{0,99}")
_ATTRIBUTE = re.compile(r"[^\s\"'<>/=\x00-\x1f]{1,100}")

Type = Literal[
    "text", "number", "integer", "price", "area", "date", "floor", "url", "boolean", "html"
]
Rate = Annotated[float, Meta(gt=0, le=1e9, description="a number above 0")]


class Convert(msgspec.Struct, frozen=True, kw_only=True):
    """A field in another currency, at a fixed rate."""

    field: str
    to: str
    rate: Rate
    currency: str = ""  # the currency that is converted; without it, every other one


class Field(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One value, a list of values, or records: where they are in a page, and what they are."""

    css: str = ""
    attr: tuple[str, ...] = ()  # the attributes that may hold the value, instead of the text
    json: str = ""
    json_ld: str = ""
    meta: str = ""
    microdata: str = ""
    label: str = ""
    url: str = ""
    xpath: str = ""
    regex: str = ""  # what of the text counts: the first group, or the whole match
    first_of: tuple["Field", ...] = ()
    each: str = ""
    fields: dict[str, "Field"] = {}
    divide: tuple[str, ...] = ()
    convert: Convert | None = None
    all: Boolean = False
    type: Type = "text"
    unit: str = ""
    enum: dict[str, str] = {}
    keywords: tuple[str, ...] = ()
    join: str | None = None
    locale: str = ""
    required: Boolean = False  # whether a record without the field names it in `missing`

    @property
    def source(self) -> str:
        """The key that says where the value is; `text` where it is the whole text around."""
        return next((key for key in SOURCES if getattr(self, key)), "text")

    @property
    def is_list(self) -> bool:
        """Whether the value is a list, which is empty where the page has nothing."""
        if self.first_of:
            return any(each.is_list for each in self.first_of)
        return bool(self.each) or (self.all and self.join is None and not self.keywords)

    @property
    def operands(self) -> tuple[str, ...]:
        """The fields that the value is made of."""
        of_alternatives = tuple(name for each in self.first_of for name in each.operands)
        if self.convert:
            return (self.convert.field,)
        return self.divide or of_alternatives


SOURCES = (
    "first_of",
    "each",
    "json",
    "json_ld",
    "meta",
    "microdata",
    "label",
    "url",
    "xpath",
    "divide",
    "convert",
    "css",
)
"""The keys of a field that say where its value is; `json` may have a `css` beside it."""
_SHARED = ("type", "unit", "enum", "keywords", "join", "all", "locale")
"""The keys that alternatives have in common, unless one has its own."""
_OF_RECORDS = ("each", "json", "json_ld", "microdata")


def with_locale(fields: dict[str, Field], locale: str) -> dict[str, Field]:
    """Give a file's locale to the fields that have none of their own."""
    return {name: _with_locale(field, locale) for name, field in fields.items()}


def _with_locale(field: Field, locale: str) -> Field:
    return msgspec.structs.replace(
        field,
        locale=field.locale or locale,
        first_of=tuple(_with_locale(each, locale) for each in field.first_of),
        fields=with_locale(field.fields, locale),
    )


def checked_fields(node: Node, in_record: bool = False) -> dict[str, Field]:
    """Check fields, those of a page or those of the records in it."""
    fields: dict[str, Field] = {}
    faults = Faults()
    for name, (line, value) in mapping("fields", node, MAX_FIELDS).items():
        with faults:
            if not _FIELD_NAME.fullmatch(name):
                allowed = "letters, digits, spaces, - and _ make one"
                raise Wrong(f"fields: {name[:60]!r} is not a name; {allowed}", line)
            if name == MISSING:
                meaning = "the name of the list of required fields that a page lacks"
                raise Wrong(f"fields: {MISSING!r} is {meaning}", line)
            field = _field(name, line, value, in_record)
            for used in field.operands:
                if used not in fields:
                    reason = f"there is no field {used[:60]!r} before it"
                    raise Wrong(f"the field {name}: {reason}", line)
            fields[name] = field
    faults.end()
    return fields


def _field(
    name: str, line: int, node: Node, in_record: bool, shared: dict[str, Any] | None = None
) -> Field:
    """Read a field, or one of its alternatives with the keys that they `share`."""
    if node.kind == "scalar":
        return Field(css=checked_text("css", node, checked_css), **(shared or {}))
    if node.kind == "sequence" and shared is None:
        return _chain(name, node, in_record, {})
    entries = mapping(f"the field {name}", node)
    checks = _CHECKS
    if in_record:
        checks = {**checks, "xpath": partial(_no_xpath, name)}
    given = checked(entries, Field, f" in the field {name}", checks)
    if chain := given.pop("first_of", None):
        own = {key: value for key, value in given.items() if key not in (*_SHARED, "required")}
        if own or shared is not None:
            reason = f"first_of has its keys in its alternatives, but not {' and '.join(own)}"
            if not own:
                reason = "first_of cannot be inside another one"
            raise Wrong(f"the field {name}: {reason}", line)
        required = given.pop("required", False)
        field = _chain(name, chain, in_record, given)
        return msgspec.structs.replace(field, required=required or field.required)
    if "fields" in given:
        given["fields"] = checked_fields(given["fields"], in_record=True)
    field = Field(**((shared or {}) | given))
    if reason := _contradiction(field, given, in_record):
        raise Wrong(f"the field {name}{reason}", entries.get("type", (line,))[0])
    return field


def _chain(name: str, node: Node, in_record: bool, shared: dict[str, Any]) -> Field:
    if node.kind != "sequence" or not node.items:
        raise Wrong(f"the field {name}: first_of must be a list of alternatives", node.line)
    if len(node.items) > MAX_ALTERNATIVES:
        reason = f"more than {MAX_ALTERNATIVES} alternatives"
        raise Wrong(f"the field {name} has {reason}", node.line)
    found = tuple(_field(name, each.line, each, in_record, shared) for each in node.items)
    return Field(first_of=found, required=any(each.required for each in found))


def _contradiction(field: Field, given: dict[str, Any], in_record: bool) -> str:
    """Return what is missing or too much in a field, as the end of a sentence."""
    named = [key for key in SOURCES if key in given and (key, "json" in given) != ("css", True)]
    if len(named) > 1:
        return f" has {' and '.join(named)}; write a list of alternatives, one for each"
    is_text = field.regex or field.keywords or in_record
    if not named and not is_text:
        return f" has no css, the selector that finds it, and none of {', '.join(SOURCES[:-1])}"
    if field.type == "html" and field.attr:
        return ": an attribute has no html; leave out attr or the type"
    if bool(field.fields) != bool(field.each) and not (field.fields and named):
        return ": each needs fields, and fields need each, json, json_ld or microdata"
    if field.fields and named[0] not in _OF_RECORDS:
        return f": {named[0]} gives no records; fields need {', '.join(_OF_RECORDS)}"
    if field.attr and (set(named) - {"css", "json"} or (field.json and not field.css)):
        return f": attr belongs to css, not to {named[0]}"
    if field.fields and (field.keywords or field.enum or field.join is not None):
        return ": records have no enum, keywords or join; their fields may have"
    if named and named[0] in ("divide", "convert") and len(given) > 1 + ("required" in given):
        return f": beside {named[0]} only required has a meaning"
    read_as = [key for key in ("type", "enum", "keywords") if key in given]
    if len(read_as) > 1:
        return f" has {' and '.join(read_as)}; only one of them says what the value is"
    if field.unit:
        return _wrong_unit(field)
    return ""


def _wrong_unit(field: Field) -> str:
    from crawler.sites import measures

    if field.type == "price":
        if field.unit not in measures.currencies().values():
            return f": the unit {field.unit!r} is no currency's code, such as EUR"
    elif field.type == "area":
        try:
            measures.unit_of_area(field.unit)
        except ValueError as error:
            return f": {error}"
    else:
        return ": only a price and an area have a unit"
    return ""


# Checks of single keys. Those of a text raise `ValueError`.


def _listed(key: str, node: Node, check: Callable[[str], str]) -> tuple[str, ...]:
    """Check a text, or a list of texts."""
    nodes = [node]
    if node.kind == "sequence":
        nodes = node.items
    if not nodes or len(nodes) > MAX_WORDS:
        raise Wrong(f"{key} must have 1 to {MAX_WORDS} entries", node.line)
    return tuple(dict.fromkeys(checked_text(key, item, check) for item in nodes))


def _attribute(text: str) -> str:
    text = text.lower()
    if not _ATTRIBUTE.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is not an attribute's name")
    return text


def checked_css(text: str) -> str:
    """Check a CSS selector."""
    from crawler.sites import css

    css.compile(text)
    return text


def _xpath(text: str) -> str:
    from crawler.sites.xpath import check

    check(text)
    return text


def checked_json_path(text: str) -> str:
    """Check a path into JSON."""
    from crawler.sites import jsonpath

    jsonpath.compile(text)
    return text


def checked_regex(text: str) -> str:
    """Check a regular expression."""
    from crawler.sites.selectors import pattern

    pattern(text)
    return text


def checked_locale(text: str) -> str:
    """Check the name of a locale; return it as the tables have it."""
    from crawler.sites import values

    try:
        return values.locale_name(text)
    except KeyError:
        language = text.replace("_", "-").partition("-")[0].lower()
    near = [name for name in values.LOCALES if name.partition("-")[0] == language]
    hint = f"did you mean one of {', '.join(near)}?"
    if not near:
        hint = nearest(language, [name for name in values.LOCALES if "-" not in name])
    raise ValueError(f"{text[:60]!r} is not a known locale; {hint}")


def _divide(node: Node) -> tuple[str, ...]:
    if node.kind != "sequence" or len(node.items) != 2:
        raise Wrong("divide must be a list of two fields, as in [price, area]", node.line)
    return tuple(text_of("divide", item) for item in node.items)


def _convert(node: Node) -> Convert:
    from crawler.sites.measures import currencies

    entries = mapping("convert", node)
    given = checked(entries, Convert, " in convert", {})
    for key in ("field", "to", "rate"):
        need(given, key, "convert", node)
    for key in ("to", "currency"):
        if key in given and given[key] not in currencies().values():
            reason = f"{given[key][:60]!r} is no currency's code, such as EUR"
            raise Wrong(f"convert: {reason}", entries[key][0])
    return Convert(**given)


def _enum(node: Node) -> dict[str, str]:
    entries = mapping("enum", node, MAX_WORDS)
    return {text: text_of("enum", value) for text, (_, value) in entries.items()}


def _join(node: Node) -> str:
    if node.kind != "scalar" or len(node.text) > MAX_JOIN:
        raise Wrong(f"join must be a text of up to {MAX_JOIN} characters", node.line)
    return str(node.text)


def _no_xpath(name: str, node: Node) -> str:
    reason = "xpath cannot be used inside of each; write css"
    raise Wrong(f"the field {name}: {reason}", node.line)


def checked_names(node: Node) -> tuple[str, ...]:
    """Check the fields that are required."""
    return _listed("required", node, str)


def checked_field_names(key: str, node: Node) -> tuple[str, ...]:
    """Check the name of a field, or a list of names."""
    return _listed(key, node, str)


def checked_schema(node: Node) -> str:
    """Check a JSON Schema; return it as JSON."""
    from crawler.sites import validation

    try:
        return validation.checked(_json_value(node))
    except ValueError as error:
        raise Wrong(f"validate: {error}", node.line) from None


def _json_value(node: Node) -> Any:
    """Return what a value of YAML is in JSON; a text in quotes is a text."""
    if node.kind == "sequence":
        return [_json_value(item) for item in node.items]
    if node.kind == "mapping":
        return {key: _json_value(value) for key, (_, value) in entries_of(node).items()}
    if node.is_null:
        return None
    if node.is_quoted:
        return node.text
    try:
        return msgspec.json.decode(node.text)
    except msgspec.DecodeError:
        return node.text


_CHECKS: Checks = {
    "css": text_check("css", checked_css),
    "attr": lambda node: _listed("attr", node, _attribute),
    "each": text_check("each", checked_css),
    "json": text_check("json", checked_json_path),
    "json_ld": text_check("json_ld", checked_json_path),
    "microdata": text_check("microdata", checked_json_path),
    "url": text_check("url", checked_regex),
    "xpath": text_check("xpath", _xpath),
    "regex": text_check("regex", checked_regex),
    "first_of": lambda node: node,  # read later, with the keys that are shared
    "fields": lambda node: node,
    "divide": _divide,
    "convert": _convert,
    "enum": _enum,
    "keywords": lambda node: _listed("keywords", node, str),
    "join": _join,
    "locale": text_check("locale", checked_locale),
}
