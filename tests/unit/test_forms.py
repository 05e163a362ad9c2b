"""Forms: what is sent is what a browser would send, and no page takes long."""

import time
from collections.abc import Callable
from urllib.parse import parse_qsl, unquote_to_bytes

import pytest

from crawler.errors import FetchError
from crawler.fetch.budget import Budget
from crawler.sites.forms import MAX_CONTROLS, Form, Forms, Submission
from crawler.sites.parser import parse

PAGE = "https://a.example/find/page?x=1"


def forms(html: str, charset: str = "utf-8", url: str = PAGE) -> Forms:
    """The forms of a page."""
    budget = Budget()
    return Forms(parse(html, budget), url, charset, budget)


def form(html: str, charset: str = "utf-8", css: str = "") -> Form:
    """A form of a page, the first one if no selector is given."""
    return forms(html, charset).choose(css)


def pairs(sent: Submission, charset: str = "utf-8") -> list[tuple[str, str]]:
    """Names and values of a submission."""
    query = sent.body.decode() if sent.body is not None else sent.url.partition("?")[2]
    return parse_qsl(query, keep_blank_values=True, encoding=charset)


ENTRIES = {
    "texts": ("<input name=a value='1&amp;2'><input name=b><input value=no-name>", "a=1%262&b="),
    "hidden": ("<input type=hidden name=t value=x>", "t=x"),
    "an unknown type is a text": ("<input type=wat name=a value=1>", "a=1"),
    "line ends in a text": ("<input name=a value='1\n2'>", "a=12"),
    "a textarea": ("<textarea name=a>\n1\n2</textarea>", "a=1%0D%0A2"),
    "a select": ("<select name=a><option>1<option value=2>b</select>", "a=1"),
    "a selected option": ("<select name=a><option>1<option value=2 selected>b</select>", "a=2"),
    "the last selected option": (
        "<select name=a><option selected>1<option selected>2</select>",
        "a=2",
    ),
    "the text of an option": ("<select name=a><option>  x\n y </select>", "a=x+y"),
    "no first option that is disabled": (
        "<select name=a><option disabled>1<optgroup disabled><option>2</optgroup><option>3",
        "a=3",
    ),
    "a list": ("<select name=a size=4><option>1</select>", ""),
    "a multiple select": (
        "<select multiple name=a><option selected>1<option>2<option selected>3</select>",
        "a=1&a=3",
    ),
    "check boxes": (
        "<input type=checkbox name=a checked><input type=checkbox name=b>"
        "<input type=CHECKBOX name=c value='' checked>",
        "a=on&c=",
    ),
    "radio buttons": (
        "<input type=radio name=a value=1 checked><input type=radio name=a value=2 checked>",
        "a=2",
    ),
    "disabled": ("<input name=a disabled><input name=b>", "b="),
    "a disabled fieldset": (
        "<fieldset disabled><legend><input name=a></legend><legend><input name=b></legend>"
        "<p><input name=c></fieldset><input name=d>",
        "a=&d=",
    ),
    "a datalist": ("<datalist><input name=a></datalist><input name=b>", "b="),
    "the first button": (
        "<input name=a><button name=b value=1>x</button><button name=c>",
        "a=&b=1",
    ),
    "an enabled button": ("<button name=b disabled></button><input type=submit name=c>", "c="),
    "no plain button": (
        "<button type=button name=a value=1></button><input type=reset name=b>",
        "",
    ),
    "an image": ("<input type=image name=go src=x><input name=a>", "go.x=0&go.y=0&a="),
    "an image without a name": ("<input type=image>", "x=0&y=0"),
    "no file": ("<input type=file name=a value=/etc/passwd>", "a="),
    "the charset": ("<input type=hidden name=_charset_ value=wrong>", "_charset_=utf-8"),
    "signs": ("<input name='a b' value='*-._~ (é'>", "a+b=*-._%7E+%28%C3%A9"),
    "an associated control": ("</form><input name=a form=f><input name=b form=g><form>", "a="),
    "a control of another form": ("<input name=a form=g><input name=b form><input name=c>", "c="),
    "a template": ("<template><input name=a></template><input name=b>", "b="),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_entries(case: str) -> None:
    """Each control is sent as the HTML standard says, in the page's order."""
    inner, expected = ENTRIES[case]
    sent = form(f"<form id=f method=post>{inner}</form><form id=g></form>").submission()

    assert (sent.body or b"").decode() == expected
    assert (sent.method, sent.content_type) == ("POST", "application/x-www-form-urlencoded")


def test_a_form_between_the_rows_of_a_table_has_the_controls_behind_it() -> None:
    """The parser leaves such a form empty, but browsers send its controls."""
    html = (
        "<table><form id=f action=/go><tr><td><input name=a value=1></td></tr>"
        "<tr><td><table><tr><td><input name=b></table></td></tr></form></table><input name=c>"
    )
    assert form(html).submission().url == "https://a.example/go?a=1&b="


def test_nested_forms_keep_their_own_controls() -> None:
    """A form whose end tag is misplaced does not take the controls of the next."""
    html = "<form id=f><div></form><form id=g><input name=a></form><input name=b></div>"
    assert form(html, css="#g").names == ["a"]
    assert form(html, css="#f").names == ["b"]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("", "https://a.example/find/page?q=1"),
        ("action=''", "https://a.example/find/page?q=1"),
        ("action=do?y=2#z", "https://a.example/base/do?q=1"),
        ("action=//b.example/x", "https://b.example/x?q=1"),
        ("action=http://b.example method=GET", "http://b.example/?q=1"),
        ("action=?y method=post", "https://a.example/base/?y"),
    ],
)
def test_where_a_form_leads(attributes: str, expected: str) -> None:
    """An action is relative to <base>, an empty one is the page, and GET replaces the query."""
    html = f"<base href=/base/><base href=/other/><form {attributes}><input name=q value=1></form>"
    assert form(html).submission().url == expected


def test_a_button_may_change_action_method_and_type() -> None:
    """The attributes of the pressed button precede those of the form."""
    html = (
        "<form action=/a method=post><button name=x value=1>Find</button>"
        "<button name=y value=2 id=i formaction=/b formmethod=get>Go  there</button></form>"
    )
    assert form(html).submission("x") == Submission(
        method="POST",
        url="https://a.example/a",
        body=b"x=1",
        content_type="application/x-www-form-urlencoded",
    )
    for submit in ("y", "i", "Go there"):
        assert form(html).submission(submit).url == "https://a.example/b?y=2"
    with pytest.raises(FetchError, match=r"no button 'Fnd'; did you mean 'Find'\?"):
        form(html).submission("Fnd")


@pytest.mark.parametrize(
    ("charset", "accepted", "expected"),
    [
        ("windows-1251", "", b"q=%E8%EC%EE%F2+&%2320013%3B"),
        ("utf-8", "windows-1251", b"q=%E8%EC%EE%F2+&%2320013%3B"),
        ("windows-1251", "nonsense UTF-8", "q=имот+中".encode()),
        ("windows-1251", "nonsense", "q=имот+中".encode()),
        ("utf-16le", "", "q=имот+中".encode()),
    ],
)
def test_the_charset_of_a_submission(charset: str, accepted: str, expected: bytes) -> None:
    """It is the page's, or the form's own; what it lacks becomes a reference."""
    given = form(f"<form method=post accept-charset='{accepted}'><input name=q></form>", charset)
    given.fill({"q": "имот 中"})

    body = given.submission().body or b""

    assert unquote_to_bytes(body.replace(b"%26", b"&")) == unquote_to_bytes(expected)


def test_multipart_and_text() -> None:
    """Both other types are written as browsers write them."""
    inner = "<input name='a\"b' value=1><input type=file name=f><textarea name=t>x\ny</textarea>"
    sent = form(f"<form method=post enctype=multipart/form-data>{inner}</form>").submission()
    boundary = sent.content_type.partition("boundary=")[2]
    head = f"--{boundary}\r\nContent-Disposition: form-data; name="
    assert (
        sent.body
        == (
            f'{head}"a%22b"\r\n\r\n1\r\n{head}"f"; filename=""\r\n'
            "Content-Type: application/octet-stream\r\n\r\n\r\n"
            f'{head}"t"\r\n\r\nx\r\ny\r\n--{boundary}--\r\n'
        ).encode()
    )

    sent = form("<form method=post enctype=text/plain><input name=a value=1></form>").submission()
    assert (sent.body, sent.content_type) == (b"a=1\r\n", "text/plain")


FILLED: dict[str, tuple[str, dict[str, str], str]] = {
    "a text": ("<input name=a value=1>", {"a": "2"}, "a=2"),
    "a disabled text": ("<input name=a disabled>", {"a": "2"}, "a=2"),
    "a hidden control": ("<input type=hidden name=a value=1>", {"a": "2"}, "a=2"),
    "a select by value": (
        "<select name=a><option value=1>x<option value=2>y</select>",
        {"a": "2"},
        "a=2",
    ),
    "a select by text": (
        "<select name=a><option value=1>x<option value=2> y  z</select>",
        {"a": "y z"},
        "a=2",
    ),
    "a box by value": (
        "<input type=checkbox name=a value=7><input type=checkbox name=a checked>",
        {"a": "7"},
        "a=7",
    ),
    "a box by yes": ("<input type=checkbox name=a value=7>", {"a": "yes"}, "a=7"),
    "a box by no": ("<input type=checkbox name=a checked>", {"a": "no"}, ""),
    "a box with a hidden twin": (
        "<input type=checkbox name=a value=true><input type=hidden name=a value=false>",
        {"a": "true"},
        "a=true&a=false",
    ),
    "a radio button": (
        "<input type=radio name=a value=1 checked><input type=radio name=a value=2>",
        {"a": "2"},
        "a=2",
    ),
}


@pytest.mark.parametrize("case", FILLED)
def test_filling_in(case: str) -> None:
    """A value sets a text, selects an option, or checks a box or button."""
    inner, values, expected = FILLED[case]
    given = form(f"<form method=post>{inner}</form>")
    given.fill(values)
    assert (given.submission().body or b"").decode() == expected


WRONG = {
    "a name": (
        "<input name=parcel_id>",
        {"parcelid": "1"},
        "no control named 'parcelid'; did you mean 'parcel_id'?",
    ),
    "no names": ("<input>", {"a": "1"}, "no control named 'a'; it has no named control"),
    "an option": (
        "<select name=a><option>Alpha</select>",
        {"a": "Alpa"},
        "'a' does not offer 'Alpa'; did you mean 'Alpha'?",
    ),
    "a radio button": (
        "<input type=radio name=a value=1>",
        {"a": "on"},
        "'a' does not offer 'on'; it has '1'",
    ),
    "a file": (
        "<input type=file name=a>",
        {"a": "/etc/passwd"},
        "'a' takes a file, and no files are sent",
    ),
    "a button": ("<input type=submit name=a>", {"a": "1"}, "no control named 'a'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_value_that_does_not_fit(case: str) -> None:
    """The error names the control and the nearest name or option."""
    inner, values, expected = WRONG[case]
    with pytest.raises(FetchError) as caught:
        form(f"<form>{inner}</form>").fill(values)
    assert (caught.value.reason, expected in str(caught.value)) == ("bad_form", True), caught.value


def test_a_secret_is_in_no_error() -> None:
    """Neither is what is nearest to it."""
    given = form("<form><select name=a><option>swordfish1</select></form>")
    with pytest.raises(FetchError, match="does not offer the secret") as caught:
        given.fill({"a": "swordfish"}, secret={"a"})
    assert "swordfish" not in str(caught.value)
    given.fill({"a": "swordfish1"}, secret={"a"})
    assert "swordfish" not in repr(given.submission())


def test_which_form_is_chosen() -> None:
    """The selected one, or the first with all the controls, or the first."""
    page = forms("<p id=p></p><form id=x><input name=q></form><form id=y><input name=a></form>")
    assert page.choose("form#y").id == page.choose("#p, form#y").id == "y"
    assert page.choose("", ["a"]).id == "y"
    assert page.choose("", ["b"]).id == page.choose("").id == "x"
    for css, message in (("#z", "selects nothing"), ("#p", "selects a <p>, and no form")):
        with pytest.raises(FetchError, match=message):
            page.choose(css)
    with pytest.raises(FetchError, match="has no form"):
        forms("<p>").choose("")
    for attribute in ("action=javascript:x()", "action=mailto:a@b", "method=dialog"):
        with pytest.raises(FetchError, match="the form"):
            form(f"<form {attribute}></form>").submission()


STATE = "<input type=hidden name=__VIEWSTATE value=s><input type=submit name=find value=Find>"
EVENT = "<input type=hidden name=__EVENTTARGET><input type=hidden name=__EVENTARGUMENT>"
OPTIONS = (
    'WebForm_DoPostBackWithOptions(new WebForm_PostBackOptions("l$n", "7", true, "g", "/b", '
    "false, {}))"
)
POSTBACKS = {
    "a link": (
        "<a href=\"javascript:__doPostBack('g$l','Page$2')\">",
        "g$l",
        "Page$2",
        "/find/page",
    ),
    "an escaped link": (
        "<a href='javascript:__doPostBack(%27g%24l%27,&#39;Page$2&#39;)'>",
        "g$l",
        "Page$2",
        "/find/page",
    ),
    "escapes of a script": (
        "<a href=# onclick=\"return __doPostBack('a\\x27b\\u0041\\\\', '')\">",
        "a'bA\\",
        "",
        "/find/page",
    ),
    "with options": (f"<a href='javascript:{OPTIONS.format('true')}'>", "l$n", "7", "/b"),
}


@pytest.mark.parametrize("case", POSTBACKS)
@pytest.mark.parametrize("fields", [EVENT, ""])
def test_a_postback_by_script(case: str, fields: str) -> None:
    """A link that calls __doPostBack sends the page's state and the event, and no button."""
    link, target, argument, path = POSTBACKS[case]
    html = f"<form><input name=s></form><form method=post>{fields}{STATE}{link}</a></form>"
    sent = forms(html).postback("a")
    assert sent is not None
    event = {"__EVENTTARGET": target, "__EVENTARGUMENT": argument}
    assert dict(pairs(sent)) == event | {"__VIEWSTATE": "s"}
    assert sent.url.partition("?")[0] == f"https://a.example{path}"


def test_a_postback_by_a_button() -> None:
    """A button that submits is pressed, also if its script leaves that to the browser."""
    button = f"<input type=submit class=n name=next onclick='{OPTIONS.format('false')}'>"
    sent = forms(f"<form method=post>{STATE}{button}</form>").postback(".n")
    assert sent is not None
    assert pairs(sent) == [("__VIEWSTATE", "s"), ("next", "")]


@pytest.mark.parametrize(
    "link", ["", "<a class=n>", "<a class=n href=/next>", "<input type=submit class=n disabled>"]
)
def test_no_postback(link: str) -> None:
    """On the last page, the link is missing or does nothing."""
    assert forms(f"<form method=post>{STATE}{link}</form>").postback(".n") is None


HOSTILE: dict[str, Callable[[int], str]] = {
    "controls": lambda n: "<form>" + "<input name=a>" * n,
    "forms": lambda n: "<form></form>" * n,
    "forms in tables": lambda n: "<table><form><tr><td><input name=a></form></table>" * n,
    "options": lambda n: "<form><select name=a>" + "<option>a" * n,
    "fieldsets": lambda n: "<form>" + "<fieldset disabled><legend>" * min(n, 1000) + "<input>" * n,
    "associated": lambda n: "<form id=f></form>" + "<input name=a form=f>" * n,
    "postbacks": lambda n: f"<form method=post>{STATE}" + "<a href='javascript:__doPostBack('>" * n,
    "names": lambda n: "<form>" + "".join([f"<input name=n{i}>" for i in range(n)]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_time_grows_with_the_page(case: str) -> None:
    """No page is read in quadratic time."""

    def read(n: int) -> float:
        html = HOSTILE[case](n)
        budget = Budget()
        tree = parse(html, budget)
        began = time.thread_time()
        page = Forms(tree, PAGE, "utf-8", budget)
        page.postback("a")
        page.choose("", ["b"]).submission()
        with pytest.raises(FetchError):
            page.choose("").fill({"none": "x" * 10_000})
        return time.thread_time() - began

    read(100)
    small = min(read(1_000) for _ in range(3))
    assert read(16_000) < 100 * small + 0.1


def test_limits() -> None:
    """Too many controls, or too large a body, is an error that says so."""
    with pytest.raises(FetchError, match="more than 20,000 controls"):
        form("<form>" + "<input>" * (MAX_CONTROLS + 1))
    given = form("<form method=post><input name=a></form>")
    given.fill({"a": "x" * 5_000_000})
    with pytest.raises(FetchError, match=r"would send 5,000,002 bytes, more than 4,000,000"):
        given.submission()
