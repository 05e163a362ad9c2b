"""The forms of a page: their controls, values to fill in, and what a browser would send.

Follows "constructing the entry list" of the HTML standard. Nothing here does I/O.
"""

import difflib
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote_from_bytes, unquote, urlsplit

import ada_url
import msgspec
from msgspec.structs import replace
from selectolax.lexbor import LexborHTMLParser, LexborNode

from crawler.errors import FetchError
from crawler.fetch import charset
from crawler.fetch.budget import Budget
from crawler.sites import crawlfile, css
from crawler.sites.sitefile import PLACEHOLDER

MAX_ELEMENTS = 200_000
"""Elements inside forms, some 100 bytes each."""
MAX_CONTROLS, MAX_BODY = 20_000, 4_000_000
"""Controls of all forms of a page, and bytes of a submission."""
MAX_STATE = 32_000
"""Characters of a page's state in a task; a list with more is read again from its first page."""
MAX_LOOKS = 5_000_000
"""Elements that the search for a form or a link looks at."""
SHOWN, MAX_COMPARED = 60, 300
"""Characters of a page's texts in an error, and texts among which the nearest is looked for."""
URLENCODED, MULTIPART, TEXT = (
    "application/x-www-form-urlencoded",
    "multipart/form-data",
    "text/plain",
)
_UNSENT = frozenset({"button", "reset"})
_SUBMITS = frozenset({"submit", "image"})
_TICKED = frozenset({"checkbox", "radio"})
_YES, _NO = frozenset({"on", "true", "yes"}), frozenset({"", "off", "false", "no"})
_TABLE = frozenset({"table", "tbody", "thead", "tfoot", "tr"})
_SPACES = re.compile("[ \t\n\r\f]+")
_LINE_END = re.compile("\r\n?|\n")
_STRING = r"""(?:'((?:[^'\\]|\\.)*+)'|"((?:[^"\\]|\\.)*+)")"""
_POSTBACK = re.compile(rf"\b__doPostBack\s*\(\s*{_STRING}\s*(?:,\s*{_STRING})?", re.S)
_WITH_OPTIONS = re.compile(
    rf"\bWebForm_PostBackOptions\s*\(\s*{_STRING}\s*,\s*{_STRING}\s*,\s*\w+\s*,\s*{_STRING}"
    rf"\s*,\s*{_STRING}\s*,\s*\w+\s*,\s*(\w+)",
    re.S,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))", re.S)
_CONTROL_SIGNS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v"}
MAX_SCRIPT, MAX_TRIED = 10_000, 10
"""Characters of a link or handler that are searched for a postback, and links that are tried."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """The request that a form makes."""

    method: str
    url: str
    body: bytes | None = None
    content_type: str = ""

    def __repr__(self) -> str:
        """Hide the values, which may be secrets."""
        return f"Submission({self.method})"


class Entry(NamedTuple):
    """A name and a value to send; `is_file` where no file was chosen."""

    name: str
    value: str
    is_file: bool = False


class _Option(msgspec.Struct):
    value: str
    text: str
    selected: bool
    disabled: bool


class _Control(msgspec.Struct):
    """A control, in the state in which it is sent."""

    node: LexborNode
    kind: str
    """The `type` of an input or a button; else the tag."""
    name: str
    value: str
    disabled: bool
    checked: bool = False
    options: list[_Option] = []

    @property
    def is_submit(self) -> bool:
        return self.kind in _SUBMITS

    def attribute(self, name: str) -> str:
        return self.node.attributes.get(name) or ""


class _Context(NamedTuple):
    """What an element's ancestors mean for the controls in it."""

    form: "Form | None" = None
    disabled: bool = False


_NOTHING = _Context()


class Form:
    """A form, with its controls in the page's order."""

    def __init__(self, page: "Forms", node: LexborNode) -> None:
        self._page, self._node = page, node
        self.controls: list[_Control] = []

    @property
    def id(self) -> str:
        """Its `id`, by which controls elsewhere in the page name it."""
        return self._node.attributes.get("id") or ""

    @property
    def names(self) -> list[str]:
        """The names of the controls that can be filled in."""
        fillable = (control.name for control in self.controls if control.kind not in _SUBMITS)
        return list(dict.fromkeys(filter(None, fillable)))

    def fill(self, values: Mapping[str, str], secret: Collection[str] = ()) -> None:
        """Fill in values by the names of controls; those named in `secret` are in no error.

        A disabled control that gets a value is sent: in a browser, the page's script enables it.
        """
        by_name: dict[str, list[_Control]] = {}
        for control in self.controls:
            if control.kind not in _SUBMITS | _UNSENT:
                by_name.setdefault(control.name, []).append(control)
        for name, value in values.items():
            if not name or name not in by_name:
                raise _bad(f"the form has no control named {name!r}{_nearest(name, by_name)}")
            _fill(by_name[name], value, name in secret)

    def submission(self, submit: str = "") -> Submission:
        """Return what pressing a button sends: the one of that name, id or text, or the first."""
        buttons = [control for control in self.controls if control.is_submit]
        button = next((each for each in buttons if not each.disabled), None)
        if submit:
            button = _named_button(buttons, submit)
        return self._sent(button)

    def pressed(self, node: LexborNode) -> Submission | None:
        """Return what pressing this element sends, if it is a button of the form that submits."""
        for control in self.controls:
            if control.node.mem_id == node.mem_id:
                return self._sent(control) if control.is_submit and not control.disabled else None
        return None

    def event(self, target: str, argument: str, action: str = "") -> Submission:
        """Return what `__doPostBack(target, argument)` sends."""
        event = {"__EVENTTARGET": target, "__EVENTARGUMENT": argument}
        for control in self.controls:
            if control.name in event and control.kind == "hidden":
                control.value, control.disabled = event.pop(control.name), False
        return self._sent(None, [Entry(*each) for each in event.items()], action)

    def _sent(
        self, button: _Control | None, more: Iterable[Entry] = (), action: str = ""
    ) -> Submission:
        """Return the request of the form; a button's own attributes precede the form's."""
        told = {
            name: self._node.attributes.get(name) or ""
            for name in ("action", "method", "enctype", "accept-charset")
        }
        if button:
            for name in ("action", "method", "enctype"):
                told[name] = button.attribute(f"form{name}") or told[name]
        method = told["method"].strip().lower()
        if method == "dialog":
            raise _bad("the form sends nothing: its method is dialog")
        name = self._charset(told["accept-charset"])
        entries = [*self._entries(button, name), *more]
        codec = charset.codec(name)
        url = self._page.action(action or told["action"])
        if method != "post":
            query = _urlencoded(entries, codec).decode()
            before = url.partition("#")[0].partition("?")[0]
            return Submission(method="GET", url=f"{before}?{query}")
        kind = told["enctype"].strip().lower()
        if kind == MULTIPART:
            body, kind = _multipart(entries, codec)
        elif kind == TEXT:
            body = b"".join([b"%b=%b\r\n" % each for each in _coded(entries, codec)])
        else:
            body, kind = _urlencoded(entries, codec), URLENCODED
        if len(body) > MAX_BODY:
            raise _bad(f"the form would send {len(body):,} bytes, more than {MAX_BODY:,}")
        return Submission(method="POST", url=url, body=body, content_type=kind)

    def _charset(self, accepted: str) -> str:
        """Return the charset of the submission: the first known one of `accept-charset`, or the
        page's own. UTF-16 is never sent."""
        name = self._page.charset
        if labels := accepted.replace(",", " ").split():
            known = map(charset.resolve_label, labels[:20])
            name = next(filter(None, known), "utf-8")
        return "utf-8" if name.startswith("utf-16") else name

    def _entries(self, button: _Control | None, charset_name: str) -> list[Entry]:
        entries: list[Entry] = []
        for control in self.controls:
            if control.is_submit and control is not button:
                continue
            if control.disabled or control.kind in _UNSENT:
                continue
            name, value = control.name, control.value
            if control.kind == "image":
                prefix = f"{name}." if name else ""
                entries += [Entry(f"{prefix}x", "0"), Entry(f"{prefix}y", "0")]
            elif not name or (control.kind in _TICKED and not control.checked):
                continue
            elif control.kind == "select":
                chosen = (each for each in control.options if each.selected and not each.disabled)
                entries += [Entry(name, each.value) for each in chosen]
            elif control.kind == "hidden" and name.lower() == "_charset_":
                entries.append(Entry(name, charset_name))
            else:
                entries.append(Entry(name, value, control.kind == "file"))
        return entries


class Forms:
    """All forms of a parsed page, found in one pass."""

    def __init__(self, tree: LexborHTMLParser, url: str, charset_name: str, budget: Budget) -> None:
        self._tree, self.url, self._budget = tree, url, budget
        self.charset = charset_name
        self._base = url
        self.forms: list[Form] = []
        self._by_node: dict[int, Form] = {}
        self._inside: dict[int, _Context] = {}
        """The context of every element inside a form or a disabled fieldset."""
        self._legends: dict[int, _Context] = {}
        """Contexts around disabled fieldsets: their first legend is not disabled."""
        self._read()

    def choose(self, selector: str, names: Collection[str] = ()) -> Form:
        """Return the form that a selector finds, else the first that has all the named controls,
        else the first."""
        if selector:
            found = self.find(selector)
            for node in found:
                if form := self._by_node.get(node.mem_id):
                    return form
            what = "nothing"
            if found:
                what = f"a <{found[0].tag}>, and no form"
            raise _bad(f"{selector!r} selects {what} in the page")
        if not self.forms:
            raise _bad("the page has no form")
        wanted = set(names)
        fitting = (form for form in self.forms if wanted <= set(form.names))
        return next(fitting, self.forms[0])

    def postback(self, selector: str) -> Submission | None:
        """Return what the link or button does that a selector finds; None if there is none, or it
        does nothing."""
        form = self._form_of_page()
        for node in self.find(selector)[:MAX_TRIED]:
            attributes = node.attributes
            if "disabled" in attributes or not form:
                continue
            called = _called(unquote((attributes.get("href") or "")[:MAX_SCRIPT]))
            called = called or _called((attributes.get("onclick") or "")[:MAX_SCRIPT])
            if called is not None:
                return form.event(*called)
            for each in self.forms:
                if pressed := each.pressed(node):
                    return pressed
        return None

    def find(self, selector: str) -> list[LexborNode]:
        """Return the elements that a selector finds."""
        search = css.Search(self._tree, css.SearchBudget(MAX_LOOKS, self._budget))
        try:
            return search.find(css.compile(selector))
        except css.TooMuch:
            raise FetchError("too_costly", f"the search for {selector!r} takes too long") from None

    def action(self, text: str) -> str:
        """Return the absolute URL of a form's action."""
        text = text.strip(" \t\n\r\f")
        if not text:
            return self.url
        url = _join(self._base, text)
        if not url.startswith(("http://", "https://")):
            raise _bad(f"the form leads to what is no web page: {text[:SHOWN]!r}")
        return url

    def _form_of_page(self) -> Form | None:
        """Return the form that `__doPostBack` submits: the one with the page's state."""
        state = ("__VIEWSTATE", "__EVENTTARGET")
        for form in self.forms:
            if any(control.name in state for control in form.controls):
                return form
        return next(iter(self.forms), None)

    def _read(self) -> None:
        if not self._tree.root:
            return
        owners: list[tuple[_Control, Form | None]] = []
        has_base = False
        for node in self._tree.root.traverse():
            self._budget.check()
            tag = node.tag
            context = self._context(node, tag or "")
            if tag in ("input", "select", "textarea", "button"):
                owners.append((self._control(node, context.disabled), context.form))
                if len(owners) > MAX_CONTROLS:
                    raise _bad(f"the page has more than {MAX_CONTROLS:,} controls")
            elif tag == "base" and not has_base and (href := node.attributes.get("href")):
                has_base, base = True, _join(self.url, href)
                if base.startswith(("http://", "https://")):
                    self._base = base
        self._inside.clear()
        by_id: dict[str, Form] = {}
        for form in self.forms:
            if form.id:
                by_id.setdefault(form.id, form)
        for control, owner in owners:
            form_of_control = owner
            if "form" in control.node.attributes:
                form_of_control = by_id.get(control.attribute("form"))
            if form_of_control:
                form_of_control.controls.append(control)
        for form in self.forms:
            _keep_last_radio(form.controls)

    def _context(self, node: LexborNode, tag: str) -> _Context:
        """Note and return what an element means for the controls in it."""
        parent = node.parent
        outer = self._inside.get(parent.mem_id, _NOTHING) if parent else _NOTHING
        context = outer
        if tag == "form":
            form = Form(self, node)
            self.forms.append(form)
            self._by_node[node.mem_id] = form
            context = outer._replace(form=form)
            self._note_loose(form, parent, outer)
        elif tag == "datalist":
            context = outer._replace(disabled=True)
        elif tag == "fieldset" and "disabled" in node.attributes:
            context = outer._replace(disabled=True)
            self._legends[node.mem_id] = outer
        elif tag == "legend" and parent:
            context = self._legends.pop(parent.mem_id, outer)
        if context is not _NOTHING:
            self._inside[node.mem_id] = context
            if len(self._inside) > MAX_ELEMENTS:
                raise _bad(f"more than {MAX_ELEMENTS:,} elements are inside forms")
        return context

    def _note_loose(self, form: Form, parent: LexborNode | None, outer: _Context) -> None:
        """Give a form that begins between the rows of a table all that follows in the table.

        The parser leaves such a form empty, but browsers still count the next controls as its own;
        old pages are full of them.
        """
        while parent and parent.tag in _TABLE and not outer.form:
            self._inside[parent.mem_id] = outer._replace(form=form)
            if parent.tag == "table":
                return
            parent = parent.parent

    def _control(self, node: LexborNode, disabled: bool) -> _Control:
        attributes = node.attributes
        name, value = attributes.get("name") or "", attributes.get("value")
        tag, kind = node.tag or "", (attributes.get("type") or "").strip().lower()
        options: list[_Option] = []
        if tag == "button":
            if kind not in _UNSENT:
                kind = "submit"
        elif tag == "select":
            kind, options = tag, self._options(node)
        elif tag == "textarea":
            kind, value = tag, node.text()
        elif kind in _TICKED:
            if "value" not in attributes:
                value = "on"
        elif kind not in ("hidden", "file", *_SUBMITS, *_UNSENT):
            kind, value = "text", _LINE_END.sub("", value or "")
        if kind == "file":
            value = ""
        return _Control(
            node=node,
            kind=kind,
            name=name,
            value=value or "",
            disabled=disabled or "disabled" in attributes,
            checked="checked" in attributes,
            options=options,
        )

    def _options(self, select: LexborNode) -> list[_Option]:
        options: list[_Option] = []
        for node in select.traverse():
            self._budget.check()
            if node.tag != "option":
                continue
            attributes, parent = node.attributes, node.parent
            text = _collapsed(node.text())
            value = attributes.get("value")
            if "value" not in attributes:
                value = text
            grouped = parent is not None and parent.tag == "optgroup"
            disabled = "disabled" in attributes or (
                grouped and parent is not None and "disabled" in parent.attributes
            )
            options.append(_Option(value or "", text, "selected" in attributes, disabled))
        if "multiple" not in select.attributes:
            chosen = [option for option in options if option.selected]
            for option in chosen[:-1]:
                option.selected = False
            size = (select.attributes.get("size") or "").strip()
            if not chosen and (not size.isdecimal() or int(size[:9]) <= 1):
                for option in options:
                    if not option.disabled:
                        option.selected = True
                        break
        return options


def _bad(message: str) -> FetchError:
    return FetchError("bad_form", message)


def _join(base: str, text: str) -> str:
    try:
        return ada_url.join_url(base, text)
    except ValueError:
        return ""


def _collapsed(text: str) -> str:
    return _SPACES.sub(" ", text).strip(" ")


def _nearest(wanted: str, names: Iterable[str]) -> str:
    known = [name[:SHOWN] for name in names if name][:MAX_COMPARED]
    lower = {name.lower(): name for name in known}
    if found := difflib.get_close_matches(wanted[:SHOWN].lower(), lower, 1, 0.6):
        return f"; did you mean {lower[found[0]]!r}?"
    if not known:
        return "; it has no named control"
    shown = ", ".join([repr(name) for name in known[:10]])
    return f"; it has {shown}" + (" …" if len(known) > 10 else "")


def _keep_last_radio(controls: list[_Control]) -> None:
    """Of radio buttons with the same name, only the last checked one is checked."""
    last: dict[str, _Control] = {}
    for control in controls:
        if control.kind == "radio" and control.checked:
            if before := last.get(control.name):
                before.checked = False
            last[control.name] = control


# Filling in.


def _fill(controls: list[_Control], value: str, secret: bool) -> None:
    """Give the controls of one name a value."""
    ticked = [control for control in controls if control.kind in _TICKED]
    visible = [control for control in controls if control.kind != "hidden"]
    first = [*visible, *controls][0]
    if ticked:
        _tick(ticked, value, secret)
    elif first.kind == "select":
        _select(first, value, secret)
    elif first.kind == "file":
        raise _bad(f"the control {first.name!r} takes a file, and no files are sent")
    else:
        first.value, first.disabled = value, False


def _tick(controls: list[_Control], value: str, secret: bool) -> None:
    """Check the box or radio button with a value; yes and no are for a single check box."""
    chosen = [control for control in controls if control.value == value]
    single = len(controls) == 1 and controls[0].kind == "checkbox"
    if not chosen and single and value.lower() in _YES:
        chosen = controls
    elif not chosen and not (single and value.lower() in _NO):
        offered = [control.value for control in controls]
        raise _not_offered(controls[0], value, secret, offered)
    for control in controls:
        control.checked = control in chosen[:1]
        control.disabled = control.disabled and not control.checked


def _select(control: _Control, value: str, secret: bool) -> None:
    """Select the option with a value, or else with that visible text."""
    text = _collapsed(value)
    options = control.options
    chosen = next((each for each in options if each.value == value), None)
    chosen = chosen or next((each for each in options if each.text == text), None)
    if chosen is None:
        offered = [each for option in options for each in (option.value, option.text)]
        raise _not_offered(control, value, secret, offered)
    for option in options:
        option.selected = option is chosen
    chosen.disabled = control.disabled = False


def _not_offered(control: _Control, value: str, secret: bool, offered: Iterable[str]) -> FetchError:
    if secret:
        return _bad(f"the control {control.name!r} does not offer the secret given for it")
    hint = _nearest(value, offered)
    return _bad(f"the control {control.name!r} does not offer {value[:SHOWN]!r}{hint}")


def _named_button(buttons: list[_Control], submit: str) -> _Control:
    def texts(button: _Control) -> tuple[str, ...]:
        visible = button.value
        if button.node.tag == "button":
            visible = _collapsed(button.node.text())
        return button.name, button.attribute("id"), visible

    for place in range(3):
        for button in buttons:
            if texts(button)[place] == submit:
                button.disabled = False
                return button
    known = [text for button in buttons for text in texts(button)]
    raise _bad(f"the form has no button {submit!r}{_nearest(submit, known)}")


# Encoding.


def _coded(entries: Iterable[Entry], codec: str) -> list[tuple[bytes, bytes]]:
    """Encode names and values; what the charset lacks becomes a reference such as `&#1103;`."""

    def coded(text: str) -> bytes:
        text = _LINE_END.sub("\r\n", text)
        text = text.encode("utf-8", "replace").decode()  # without halves of characters
        return text.encode(codec, "xmlcharrefreplace")

    return [(coded(entry.name), coded(entry.value)) for entry in entries]


def _urlencoded(entries: Iterable[Entry], codec: str) -> bytes:
    def quoted(data: bytes) -> str:
        # The standard keeps * and not ~; Python the other way round.
        return quote_from_bytes(data, safe=" *").replace("~", "%7E").replace(" ", "+")

    pairs = [f"{quoted(name)}={quoted(value)}" for name, value in _coded(entries, codec)]
    return "&".join(pairs).encode()


def _multipart(entries: list[Entry], codec: str) -> tuple[bytes, str]:
    """Return the body and its type. The boundary is made of the content: no value can hold it."""
    pairs = _coded(entries, codec)
    digest = sha256(b"\0".join([part for pair in pairs for part in pair])).hexdigest()
    boundary = f"----crawler{digest[:32]}"
    parts: list[bytes] = []
    for entry, (name, value) in zip(entries, pairs, strict=True):
        escaped = name.replace(b'"', b"%22").replace(b"\r", b"%0D").replace(b"\n", b"%0A")
        about = b'form-data; name="%b"' % escaped
        if entry.is_file:
            about += b'; filename=""\r\nContent-Type: application/octet-stream'
        part = b"--%b\r\nContent-Disposition: %b\r\n\r\n%b\r\n"
        parts.append(part % (boundary.encode(), about, value))
    parts.append(b"--%b--\r\n" % boundary.encode())
    return b"".join(parts), f"{MULTIPART}; boundary={boundary}"


# Postbacks.


def _called(script: str) -> tuple[str, str, str] | None:
    """Return target, argument and action of the postback that a script makes, if it makes one."""
    if found := _WITH_OPTIONS.search(script):
        target, argument, _, action = (_literal(found, at) for at in (1, 3, 5, 7))
        if found[9] == "true":
            return target, argument, action
        return None  # the browser submits the button itself
    if found := _POSTBACK.search(script):
        return _literal(found, 1), _literal(found, 3), ""
    return None


def _literal(found: re.Match[str], group: int) -> str:
    """Return the text of a string in a script."""

    def sign(escape: re.Match[str]) -> str:
        if code := escape[1] or escape[2]:
            return chr(int(code, 16))
        return _CONTROL_SIGNS.get(escape[3], escape[3])

    return _ESCAPE.sub(sign, found[group] or found[group + 1] or "")


# Tasks.


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """The submission that leads to a page of a list, as the page before it was read."""

    submission: Submission
    path: str
    """The path at which the page before it was. Another one shows that the server forgot it."""
    session: str = ""
    """The cookies that it needs, by a name that only the process knows that has them."""


class FormTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a task of method FORM: which form of its URL is submitted, and how."""

    form: bool = True
    """False for a list without a form: its first page is the task's URL."""
    css: str = ""
    submit: str = ""
    values: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """The name of the secret by control. A row's column can name none."""
    postback: str = ""
    """CSS of the link or button that leads to the next page."""
    page: int = 1
    state: str = ""
    """A packed `State`; without it, all pages before this one are fetched again."""

    def packed(self) -> str:
        """Return the text that a task keeps; equal ones are equal texts."""
        return msgspec.json.encode(self, order="deterministic").decode()


def start_task(form: crawlfile.Form, column: Callable[[str], object]) -> FormTask:
    """Return the task of a start with a form, with values from a row's columns; raises `ValueError`
    where a column is missing, or all are empty: that would be a search for everything."""
    columns = form.columns
    if columns and not any(str(column(name) or "").strip() for name in columns):
        raise ValueError(f"the columns that the form needs are empty: {', '.join(columns)}")

    def value(match: re.Match[str]) -> str:
        name = match[1].strip().lower()
        found = column(name)
        if found is None:
            raise ValueError(f"the column {name[:SHOWN]!r} is missing, and the form needs it")
        return str(found).strip()

    values: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for control, text in form.values.items():
        if secret := crawlfile.secret_name(text):
            secrets[control] = secret
        else:
            values[control] = PLACEHOLDER.sub(value, text)
    return FormTask(css=form.css, submit=form.submit, values=values, secrets=secrets)


def read_task(body: str) -> FormTask:
    """Read the body of a task."""
    try:
        return msgspec.json.decode(body, type=FormTask)
    except msgspec.DecodeError as error:
        raise _bad(f"the task's body cannot be read ({error})") from None


def next_task(body: str, page: Forms, selector: str, session: str = "") -> FormTask | None:
    """Return the task of the next page of a list, if a link or button leads to one.

    `body` is that of the task of this page, or empty if its method is GET. `session` is the one
    that this page was fetched with.
    """
    submission = page.postback(selector)
    if submission is None:
        return None
    given = FormTask(form=False)
    if body:
        given = read_task(body)
    state = ""
    # With secrets in the form, the page may have them in its fields; they must not be kept.
    if not given.secrets:
        state = _pack(State(submission, urlsplit(page.url).path, session))
    return replace(given, postback=selector, page=given.page + 1, state=state)


def _pack(state: State) -> str:
    packed = b64encode(zlib.compress(msgspec.json.encode(state), 9)).decode()
    return packed if len(packed) <= MAX_STATE else ""


def unpack(state: str) -> State:
    """Return a state that `next_task` has packed."""
    try:
        inner = zlib.decompressobj()
        data = inner.decompress(b64decode(state), 2 * MAX_BODY)
        return msgspec.json.decode(data, type=State)
    except (ValueError, zlib.error) as error:
        raise _bad(f"the task's state cannot be read ({error})") from None
