"""The keys of a site's file about crawls hold as written, or are refused with file and line."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crawler.errors import InputError
from crawler.sites import Site, faults, load
from crawler.sites.crawlfile import (
    CHECKS,
    Cursor,
    Files,
    Follow,
    Form,
    Login,
    PageKind,
    Pagination,
    Start,
    secret_name,
)
from crawler.sites.fieldfile import Field

ROOT = Path(__file__).parents[2]
HOST = "hosts: a.example\n"

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the file of the site `county`, and returns the config folder."""

    def folder(text: str) -> Path:
        (tmp_path / "sites").mkdir(exist_ok=True)
        (tmp_path / "sites" / "county.yaml").write_text(text)
        return tmp_path

    return folder


def site_of(folder: Path, name: str = "county") -> Site:
    site = load(folder).named(name)
    assert site is not None
    return site


def test_without_the_keys_every_link_is_followed_and_nothing_begins(write: Write) -> None:
    """A file of an earlier version crawls nothing by itself, and limits nothing."""
    site = site_of(write(HOST))

    assert (site.start, site.sitemaps, site.login) == ((), (), None)
    assert (site.follow, site.pagination, site.pages, site.limit) == (None, (), (), None)
    assert site.kind_of("https://a.example/") is None


def test_starts_may_be_urls_and_forms(write: Write) -> None:
    """URLs are kept as a browser writes them; a form has its columns and secrets."""
    text = """\
start:
  - HTTPS://WWW.a.example:443/x#top
  - url: https://a.example/search
    form: {css: "#s", values: {id: "{Parcel_ID} {state}", key: $api_key, all: "", "$": $5}}
"""
    plain, with_form = site_of(write(text)).start

    assert plain == Start(url="https://www.a.example/x")
    form = with_form.form
    assert form is not None
    assert form.values == {"id": "{Parcel_ID} {state}", "key": "$api_key", "all": "", "$": "$5"}
    assert (form.columns, form.secrets) == (["parcel_id", "state"], ["api_key"])


def test_one_value_needs_no_list(write: Write) -> None:
    """A single start, sitemap, rule or role is written without brackets."""
    site = site_of(
        write(
            "start: https://a.example/\nsitemaps: https://a.example/s.xml\n"
            "follow: {css: a, on: start}\npagination: {next: a.next}\npages: {regex: /x}\n"
        )
    )

    assert site.hosts == ("a.example",)
    assert site.start == (Start(url="https://a.example/"),)
    assert site.sitemaps == ("https://a.example/s.xml",)
    assert site.follow == (Follow(css="a", on=("start",)),)
    assert site.pagination == (Pagination(next="a.next"),)
    assert site.pages == (PageKind(regex="/x", structured=True),)


def test_every_way_of_pagination(write: Write) -> None:
    """A link, a parameter, a path, a cursor in JSON or in an element, and a postback."""
    text = f"""{HOST}
pagination:
  - {{next: a.next, stop: .none, on: [listing, start]}}
  - {{parameter: page, first: 0, step: 20, max: 200}}
  - {{path: "/p-{{n}}"}}
  - {{cursor: {{json: meta.next, parameter: after}}}}
  - {{cursor: {{css: "#more", attr: data-next, parameter: after}}}}
  - {{postback: a.next}}
"""
    assert site_of(write(text)).pagination == (
        Pagination(next="a.next", stop=".none", on=("listing", "start")),
        Pagination(parameter="page", first=0, step=20, max=200),
        Pagination(path="/p-{n}"),
        Pagination(cursor=Cursor(json="meta.next", parameter="after")),
        Pagination(cursor=Cursor(css="#more", attr="data-next", parameter="after")),
        Pagination(postback="a.next"),
    )


def test_the_first_entry_of_pages_that_fits_counts(write: Write) -> None:
    """Its fields stand in the place of the file's, with the file's locale."""
    text = f"""{HOST}locale: bg
fields: {{title: h1}}
pages:
  - {{regex: '/parcel/\\d+$', fields: {{owner: td}}, required: [owner]}}
  - {{regex: /parcel/, role: index}}
  - {{regex: '\\.pdf$', role: file}}
"""
    site = site_of(write(text))

    detail = site.kind_of("https://a.example/parcel/12")
    assert detail == PageKind(
        regex="/parcel/\\d+$",
        fields={"owner": Field(css="td", locale="bg")},
        required=("owner",),
        structured=False,
    )
    other = site.kind_of("https://a.example/parcel/list")
    assert other
    assert (other.role, other.fields, other.structured) == ("index", {}, True)
    assert site.kind_of("https://a.example/") is None


@pytest.mark.parametrize("size", [1, 500])
def test_many_and_large_patterns_are_all_searched(write: Write, size: int) -> None:
    """In their order, whether they are searched at once or one by one."""
    entries = [f"- regex: 'a{{{size}}}b?{n}$'" for n in range(20)] + ["- regex: /x"]
    site = site_of(write(HOST + "pages:\n" + "\n".join(entries)))

    for url, place in ((f"{'a' * size}b7", 7), (f"/x/{'a' * size}19", 19), ("/x", 20)):
        assert site.kind_of(f"https://a.example/{url}") is site.pages[place]
    assert site.kind_of("https://a.example/y") is None


def test_what_is_read_from_any_page_is_said_for_the_file_or_the_entry(write: Write) -> None:
    """`structured` of an entry goes before that of the file."""
    text = f"{HOST}structured: true\npages:\n- {{regex: a, fields: {{x: p}}}}\n"
    site = site_of(write(f"{text}- {{regex: b, structured: no}}\n"))

    assert [kind.structured for kind in site.pages] == [True, False]


def test_a_login_names_its_secrets(write: Write) -> None:
    """The file has the names of secrets, and never a password."""
    text = "login: {url: https://a.example/in, form: {values: {user: jane, password: $secret}}}\n"
    login = site_of(write(text)).login

    assert login == Login(
        url="https://a.example/in", form=Form(values={"user": "jane", "password": "$secret"})
    )
    assert login.form.secrets == ["secret"]
    assert [secret_name(text) for text in ("$a1", "$", "a$b", "$5", "")] == ["a1", "", "", "", ""]


@pytest.mark.parametrize(
    "change",
    [
        "start: https://a.example/",
        "sitemaps: https://a.example/s.xml",
        "login: {url: https://a.example/, form: {values: {a: b}}}",
        "follow: []",
        "follow: {css: a}",
        "follow: {css: a, limit: 5}",
        "follow: {css: a, on: listing}",
        "pagination: {next: a}",
        "pagination: {next: a, stop: b}",
        "pages: {regex: a}",
        "pages: {regex: a, fields: {b: c}}",
        "limit: 5",
    ],
)
def test_a_version_covers_every_key(write: Write, change: str) -> None:
    """A result's version tells whether the site was crawled by other rules."""
    before = site_of(write(HOST)).version

    assert site_of(write(f"{HOST}{change}\n")).version != before


def test_names_may_contain_dots(tmp_path: Path) -> None:
    """A site may be called as its host is."""
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "imot.bg.yaml").write_text("hosts: www.imot.example\n")

    assert site_of(tmp_path, "imot.bg").name == "imot.bg"


SECRET = "s3cret-t0ken"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("start: http://b.example/", 2, "the host of start, b.example, is not among hosts"),
        ("sitemaps:\n- http://b.example/", 2, "the host of sitemaps, b.example, is not among"),
        (
            "login: {url: http://b.example/, form: {values: {a: b}}}",
            2,
            "the host of login, b.example, is not among hosts",
        ),
        ("start:\n  - http://a.example/\n  - a.example", 4, "does it lack http://"),
        ("start: ftp://a.example/", 2, "only http and https"),
        ("start: http://u:p@a.example/", 2, "user name or a password"),
        ("start: 'http://a.example/{id}'", 2, "placeholder, which only the values of a form"),
        ("start: {form: {css: form}}", 2, "start has no url"),
        ("start: {url: http://a.example/, from: {}}", 2, "no key 'from' in start; did you mean f"),
        ("start:\n  url: http://a.example/\n  form:\n    cs: x", 5, "no key 'cs' in form; did"),
        ("start: {url: http://a.example/, form: {css: 'a['}}", 2, "css: "),
        ("start: {url: http://a.example/, form: {values: {a: [1]}}}", 2, "must be a single text"),
        ("start: {url: http://a.example/, form: {values: {a: }}}", 2, "is missing; an empty one"),
        ("start: {url: http://a.example/, form: {values: {a: '{b'}}}", 2, "open or empty"),
        ("start: {url: http://a.example/, form: {values: {a: '{ }'}}}", 2, "open or empty"),
        ("start: {url: http://a.example/, form: {values: {a: $b-c}}}", 2, "like a secret's name"),
        ("start: [[http://a.example/]]", 2, "start must be a mapping"),
        ("login: http://a.example/", 2, "login must be a mapping"),
        ("login: {url: http://a.example/}", 2, "login has no form"),
        ("login: {form: {values: {a: b}}}", 2, "login has no url"),
        ("login: {url: http://a.example/, form: {css: form}}", 2, "login has no values"),
        (
            "login:\n  url: http://a.example/\n  form:\n    values: {a: '{id}'}",
            5,
            "a login is the same for all rows",
        ),
        (
            f"login: {{url: http://a.example/, form: {{values: {{User_Password: {SECRET}}}}}}}",
            2,
            "a password has no place in this file",
        ),
        (
            f"login: {{url: http://a.example/, form: {{values: {{pass: {SECRET}}}}}}}",
            2,
            "a password has no place in this file",
        ),
        ("follow: .a", 2, "follow must be a mapping"),
        ("follow:\n  - css: a\n  - role: index", 4, "an entry of follow needs css or regex"),
        ("follow: {css: a, role: start}", 2, "role must be one of index, listing, file, not 'st"),
        ("follow: {css: a, role: lsting}", 2, "did you mean listing?"),
        ("follow: {css: a, limit: 0}", 2, "limit must be a whole number of at least 1, not '0'"),
        ("follow: {css: a, on: [start, file]}", 2, "on must be one of start, index, listing"),
        ("follow: {css: a, on: []}", 2, "on is empty"),
        ("follow: {regex: '(?=a)'}", 2, "look-around"),
        ("follow: {css: 'a >'}", 2, "css: "),
        ("follow: {selector: a}", 2, "there is no key 'selector' in follow"),
        ("follow: [" + "{css: a}, " * 101 + "]", 2, "follow has 101 entries, more than 100"),
        ("pagination: {}", 2, "needs one of next, parameter, path, cursor, postback; here is no"),
        ("pagination: {next: a, path: '/{n}'}", 2, "here is next and path"),
        ("pagination: {next: a, max: 5}", 2, "max goes with parameter or path, not with next"),
        ("pagination: {parameter: p, first: 9, max: 5}", 2, "first is more than max"),
        ("pagination: {parameter: p, step: 0}", 2, "step must be a whole number of at least 1"),
        ("pagination: {parameter: 'a=b'}", 2, "is not the name of a parameter"),
        ("pagination: {path: '/p-2'}", 2, "is not a path with one {n}"),
        ("pagination: {path: '/{n}/{n}'}", 2, "is not a path with one {n}"),
        ("pagination: {path: 'p-{n}'}", 2, "is not a path with one {n}"),
        ("pagination: {path: '/?p={n}'}", 2, "is not a path with one {n}"),
        ("pagination: {cursor: {json: a}}", 2, "cursor has no parameter"),
        ("pagination: {cursor: {parameter: a}}", 2, "cursor needs either json or css"),
        ("pagination: {cursor: {json: a, css: b, parameter: c}}", 2, "either json or css"),
        ("pagination: {cursor: {json: a..b, parameter: c}}", 2, "is no path"),
        ("pagination: {cursor: {json: a, attr: b, parameter: c}}", 2, "attr goes with css"),
        ("pagination: {postback: 'a['}", 2, "postback: "),
        ("pagination: {next: a, stop: 'a['}", 2, "stop: "),
        ("pages: {role: listing}", 2, "an entry of pages has no regex"),
        ("pages: {regex: '('}", 2, "not a regular expression"),
        ("pages: {regex: a, role: page}", 2, "role must be one of index, listing, file"),
        ("pages:\n- regex: a\n  fields:\n    b: {cs: x}", 5, "there is no key 'cs'"),
        (
            "pages:\n- regex: a\n  fields: {b: p}\n  required: [c]",
            5,
            "there is no field 'c' in this entry of pages; known are b",
        ),
        ("limit: 0", 2, "limit must be a whole number of at least 1, not '0'"),
        ("files: {fields: [photo]}", 2, "files: there is no field 'photo'"),
        ("files: [photos]", 2, "files must be a mapping"),
        ("files: {max_count: 5}", 2, "files has no fields"),
        ("files:\n  fields: []", 3, "fields is empty"),
        ("files: {fields: [a..b]}", 2, "'a..b' is not a field, such as photos or cards.photo"),
        ("files: {field: [photos]}", 2, "no key 'field' in files; did you mean fields?"),
        (
            "files: {fields: p, max_bytes: 1 GB}",
            2,
            "a whole number from 1 to 100000000, not '1 GB'",
        ),
        ("files: {fields: p, max_bytes: 900000000}", 2, "a whole number from 1 to 100000000"),
        ("files: {fields: p, max_count: 0}", 2, "max_count must be a whole number from 1 to 1000"),
        ("files: {fields: p, max_pixels: none}", 2, "max_pixels must be a whole number of at lea"),
        ("files: {fields: p, hosts: 'http://cdn.example/'}", 2, "without https:// and without a"),
        (
            "fields: {photo: img}\nfiles: {fields: [photos]}",
            3,
            "files: there is no field 'photos'; did you mean photo?",
        ),
        ("limit: all", 2, "limit must be a whole number of at least 1, not 'all'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(
    write: Write, text: str, line: int, reason: str
) -> None:
    """The message is all that is needed to put it right, and shows no value of a form."""
    folder = write(HOST + text)

    with pytest.raises(InputError) as caught:
        load(folder)

    assert Path(caught.value.path).name == "county.yaml"
    assert (caught.value.line, reason in caught.value.reason) == (line, True), caught.value
    assert SECRET not in str(caught.value)


def test_files_have_limits_and_hosts(write: Write) -> None:
    """A single name needs no list; fields of `pages` count, and so do those that any page has."""
    pages = "pages: [{regex: /home/, fields: {cards: {each: li, fields: {photo: img}}}}]\n"
    rules = site_of(
        write(f"{HOST}{pages}files: {{fields: cards.photo, hosts: '*.cdn.example'}}")
    ).files
    assert rules == Files(fields=("cards.photo",), hosts=("*.cdn.example",))
    assert (rules.max_bytes, rules.max_count, rules.max_pixels) == (20_000_000, 50, 50_000_000)

    rules = site_of(
        write(f"{HOST}files: {{fields: [opengraph.image, opengraph.image], max_count: 2}}")
    ).files
    assert rules == Files(fields=("opengraph.image",), max_count=2)


def test_files_change_no_record(write: Write) -> None:
    """With other files the version of the site is the same: no page is fetched again for that."""
    before = site_of(write(f"{HOST}fields: {{photos: img}}")).version

    assert (
        site_of(write(f"{HOST}fields: {{photos: img}}\nfiles: {{fields: photos}}")).version
        == before
    )


@pytest.mark.parametrize(
    "key", ["start", "sitemaps", "login", "follow", "pagination", "pages", "files"]
)
def test_what_belongs_to_one_site_is_no_default(tmp_path: Path, key: str) -> None:
    """Only `limit` may be said for all sites."""
    (tmp_path / "scraping_defaults.yaml").write_text(f"limit: 7\n{key}: x\n")

    with pytest.raises(InputError, match=f"line 2: {key} belongs into the file of a site"):
        load(tmp_path)

    (tmp_path / "scraping_defaults.yaml").write_text("limit: 7\n")
    assert load(tmp_path).default.limit == 7


def test_the_tables_of_the_docs_name_every_key() -> None:
    """docs/SITES.md has every key of a form, a rule, a pagination and a kind of page."""
    page = (ROOT / "docs" / "SITES.md").read_text()
    tables = dict(re.findall(r"^\| key of `(\w+)` \|.*?\n(.*?)\n\n", page, re.M | re.S))

    structs: dict[str, type[msgspec.Struct]] = {
        "form": Form,
        "follow": Follow,
        "pagination": Pagination,
        "pages": PageKind,
    }
    for title, struct in structs.items():
        names = set(re.findall(r"^\| `(\w+)` \|", tables[title], re.M))
        assert names == {field.name for field in msgspec.structs.fields(struct)}, title


NAMES = """url form css values submit regex role limit on next parameter path cursor postback first
    step max stop json attr fields required urls config delay timeout structured validate"""
KEYS = st.sampled_from(NAMES.split())
WORDS = st.sampled_from(
    ["a", "", "$a", "{a}", "http://a.example/", "http://b.example/", "start", "listing", "/{n}"]
) | st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from([*CHECKS, "limit"]), VALUES)
def test_any_value_is_taken_or_refused_with_its_line(write: Write, key: str, value: object) -> None:
    """No file of any shape ends a command with anything but a reason."""
    folder = write(HOST + json.dumps({key: value})[1:-1] + "\n")
    (folder / "start_urls.yaml").write_text(json.dumps({"county": value}))
    for fault in faults(folder):
        assert fault.line or "cannot be" in fault.reason, fault


# start_urls.yaml


def test_start_urls_go_before_the_sites_file(write: Write) -> None:
    """Where a crawl begins, its limit and its times may stand in one file for all sites."""
    folder = write(f"{HOST}start: http://a.example/old\nlimit: 9\ndelay_s: 4\ntimeout_s: 5\n")
    before = site_of(folder)
    (folder / "start_urls.yaml").write_text(
        "county:\n  urls:\n    - http://a.example/new\n"
        "    - {url: http://a.example/s, form: {values: {id: '{id}'}}}\n"
        "  config: {limit: 7, delay: 2, timeout: 3.5}\n"
    )

    site = site_of(folder)

    assert [start.url for start in site.start] == ["http://a.example/new", "http://a.example/s"]
    assert (site.limit, site.delay_s, site.timeout_s, site.rule.interval_s) == (7, 2, 3.5, 2)
    assert site.version != before.version


def test_a_site_of_start_urls_needs_no_file(tmp_path: Path) -> None:
    """It has the hosts of its URLs; a bare list or a single URL is enough."""
    (tmp_path / "start_urls.yaml").write_text(
        "imot.bg:\n  - http://www.imot.example/a\n  - http://imot.example/\n"
        "other: http://other.example/\nnone:\n"
    )

    sites = load(tmp_path)

    assert sites.names == ["imot.bg", "other"]
    assert site_of(tmp_path, "imot.bg").hosts == ("www.imot.example", "imot.example")
    assert sites.of("http://imot.example/x").name == "imot.bg"


def test_config_alone_changes_a_site_with_a_file(write: Write) -> None:
    """Its starts stay those of the file."""
    folder = write("start: http://a.example/\n")
    (folder / "start_urls.yaml").write_text("county: {config: {limit: 3}}\n")

    assert (site_of(folder).limit, site_of(folder).start[0].url) == (3, "http://a.example/")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("county:\n  - http://b.example/", 1, "the host of start, b.example, is not among hosts"),
        ("county:\n  urls:\n    - http://b.example/", 2, "b.example, is not among hosts"),
        ("city:\n  - http://b.example/\n  - b.example", 3, "city: not a URL"),
        ("city:\n  - http://a.example/", None, "the host a.example belongs to"),
        ("City: http://b.example/", 1, "the name of a site consists of"),
        ("default: http://b.example/", 1, "what holds for all sites is in scraping_defaults"),
        ("city:\n  config: {limit: 3}", 2, "city has no file of its own, and no urls here"),
        ("city:\n  url: http://b.example/", 2, "no key 'url' in city; did you mean urls?"),
        ("county:\n  config:\n    delay_s: 3", 3, "no key 'delay_s' in config; did you mean del"),
        ("county:\n  config:\n    limit: none", 3, "limit must be a whole number of at least 1"),
        ("county:\n  config:\n    delay: -1", 3, "delay must be a number from 0 to 86400"),
        ("county: http://a.example/\ncounty: http://a.example/", 2, "'county' is here again"),
        ("- http://a.example/", 1, "must consist of lines such as"),
        ("county: [", 1, "not YAML"),
    ],
)
def test_what_start_urls_cannot_mean_is_refused_with_its_place(
    write: Write, text: str, line: int | None, reason: str
) -> None:
    """The file is named, not that of the site that it changes."""
    folder = write(HOST)
    (folder / "start_urls.yaml").write_text(text)

    with pytest.raises(InputError) as caught:
        load(folder)

    assert Path(caught.value.path).name == "start_urls.yaml"
    assert (caught.value.line, reason in caught.value.reason) == (line, True), caught.value


def test_all_faults_of_all_files_are_found_at_once(write: Write) -> None:
    """One look is enough to put everything right, with the line of each; and then comes what is
    wrong between files."""
    folder = write(
        "hosts: a b\nrat: 1/s\nfields:\n  x: {typ: date}\n  y: {css: 'a['}\nfollow:\n"
        "  - {css: a, limit: 0, role: x}\n  - {}\npages: [{regex: '('}, {role: index}]\n"
        "use_llm: true\n"
    )
    (folder / "scraping_defaults.yaml").write_text("hosts: a.example\nlimit: 0\n")
    (folder / "start_urls.yaml").write_text("a:\n- x\n- y\nb: {urls: z, config: {x: 1}}\n")
    for name in ("one", "two"):
        (folder / "sites" / f"{name}.yaml").write_text("hosts: same.example\n")

    found = [(Path(fault.path).name, fault.line) for fault in faults(folder)]

    assert [line for name, line in found if name == "scraping_defaults.yaml"] == [1, 2]
    assert [line for name, line in found if name == "start_urls.yaml"] == [2, 3, 4, 4]
    lines = [line for name, line in found if name == "county.yaml"]
    assert lines == [1, 2, 4, 5, 7, 7, 8, 9, 9, 10]
    assert found[-1] == ("two.yaml", 1)


def test_a_folder_without_faults_has_none(write: Write) -> None:
    """What can be loaded has no fault."""
    assert faults(write(HOST)) == []


def test_the_start_urls_of_the_docs_can_be_loaded(write: Write) -> None:
    """The example of docs/SITES.md says what its text says."""
    page = (ROOT / "docs" / "SITES.md").read_text()
    [example] = re.findall(r"<!-- start_urls.yaml -->\n```yaml\n(.*?)^```", page, re.M | re.S)
    folder = write("hosts: www.county.example\n")
    (folder / "start_urls.yaml").write_text(example)

    assert (site_of(folder).limit, site_of(folder).delay_s, site_of(folder).timeout_s) == (
        500,
        2,
        30,
    )
    assert site_of(folder, "imot.bg").hosts == ("www.imot.example",)
