"""What config/ says holds for its hosts; what cannot be meant is refused with file, line, key and
the nearest name."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import get_args

import msgspec
import pytest

from crawler.bulk import rows
from crawler.errors import InputError, UsageError
from crawler.models import RateRule
from crawler.sites import _CACHED_HOSTS, BUILT_IN, DEFAULTS, Site, Sites, fieldfile, load, yamlfile
from crawler.sites.fieldfile import Field

ROOT = Path(__file__).parents[2]
SECRET = "s3cret-t0ken"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Puts files into a config folder: `defaults` as scraping_defaults.yaml, any other name into
    sites/."""

    def folder(**files: str) -> Path:
        (tmp_path / "sites").mkdir(exist_ok=True)
        for name, text in files.items():
            path = (
                tmp_path / "scraping_defaults.yaml"
                if name == "defaults"
                else tmp_path / "sites" / f"{name}.yaml"
            )
            path.write_text(dedent(text))
        return tmp_path

    return folder


def refusal(folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        load(folder)
    return caught.value


def named(sites: Sites, name: str) -> Site:
    site = sites.named(name)
    assert site is not None
    return site


# What holds.


def test_without_files_the_built_in_defaults_hold(tmp_path: Path) -> None:
    """2 requests/s, 2 at a time, robots obeyed, 60 s a page, 10 s a connection, 3 attempts."""
    sites = load(tmp_path / "nowhere")

    site = sites.of("http://a.example/")
    assert (site.name, site.rule) == ("default", RateRule(interval_s=0.5, at_a_time=2))
    assert (site.timeout_s, site.connect_timeout_s, site.retry.attempts, site.respect_robots) == (
        60,
        10,
        3,
        True,
    )
    assert sites.rule("a.example") == site.rule


def test_shipped_defaults_are_the_built_in_ones() -> None:
    """The file in the repository shows every key, and changes nothing."""
    shipped = load(ROOT / "config")
    text = (ROOT / "config" / DEFAULTS).read_text()

    assert shipped.default == load(ROOT / "nowhere").default
    for key in BUILT_IN:
        assert re.search(rf"^(#   )?{key}:", text, re.M), key


def test_shipped_example_is_for_a_host_that_cannot_exist() -> None:
    """config/sites/county.yaml can be loaded and copied, and never meets a real page."""
    site = named(load(ROOT / "config"), "county")

    assert {host.removeprefix("*.") for host in site.hosts} == {"county.example"}
    assert {"owner", "assessed_value", "parcel", "photos"} <= set(site.fields)


def test_a_site_says_only_what_is_other(write: Write) -> None:
    """Of retry and headers each key is overlaid by itself, headers whatever their case; an empty
    one takes away."""
    folder = write(
        defaults=(
            "timeout_s: 20\nretry: {attempts: 5, base_s: 2}\nheaders: {X-One: a, X-Two: b, "
            "X-Three: c}\n"
        ),
        one="hosts: one.example\nretry: {base_s: 4}\nheaders: {x-two: z, X-Three: }\nfields:\n",
    )

    site = named(load(folder), "one")

    assert (site.timeout_s, site.retry.attempts, site.retry.base_s, site.retry.cap_s) == (
        20,
        5,
        4,
        600,
    )
    assert site.headers == (("X-One", "a"), ("x-two", "z"))


def test_values_are_read_as_their_keys_expect(write: Write) -> None:
    """`no` is an answer for robots and a word in a header; digits are text where text is meant."""
    site = named(
        load(
            write(
                one="""\
                hosts: [one.example]
                respect_robots: no
                headers: {X-Answer: no, X-Number: 1.10, X-Nothing: "", X-Date: 2026-01-01}
                fields: {"5": {css: b, all: on}}
                concurrency: none
                """
            )
        ),
        "one",
    )

    assert site.respect_robots is False
    assert dict(site.headers) == {
        "X-Answer": "no",
        "X-Number": "1.10",
        "X-Nothing": "",
        "X-Date": "2026-01-01",
    }
    assert site.fields == {"5": Field(css="b", all=True)}
    assert site.rule == RateRule(interval_s=0.5, at_a_time=0)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://one.example/", "one"),
        ("https://one.example:8443/x?y", "one"),
        ("http://one.example./", "one"),
        ("http://www.one.example/", "default"),
        ("http://a.two.example/", "two"),
        ("http://b.a.two.example/", "two"),
        ("http://two.example/", "default"),
        ("http://c.two.example/", "three"),
        ("http://d.c.two.example/", "two"),
        ("http://xn--bcher-kva.example/", "four"),
        ("http://127.0.0.1:8000/", "four"),
        ("http://[::1]:8000/", "four"),
        ("http://localhost/", "four"),
        ("http://nottwo.example/", "default"),
    ],
)
def test_the_site_of_a_url_is_that_of_its_host(write: Write, url: str, name: str) -> None:
    """`*.two.example` means what is below two.example, an exact host goes before it, ports and
    final dots count not."""
    sites = load(
        write(
            one="hosts: one.example",
            two='hosts: ["*.two.example"]',
            three="hosts: [c.two.example]",
            four='hosts: [bücher.example, 127.0.0.1, "[::1]", LOCALHOST]',
        )
    )

    assert sites.of(url).name == name


def test_the_cache_of_hosts_is_bounded(tmp_path: Path) -> None:
    """A crawl over many hosts does not fill the memory with them."""
    sites = load(tmp_path)
    for number in range(_CACHED_HOSTS + 10):
        sites.of(f"http://h{number}.example/")

    assert len(sites._cache) <= _CACHED_HOSTS


# Versions.


@pytest.mark.parametrize(
    ("defaults", "own", "structured"),
    [
        ("", "", True),
        ("", "fields: {a: b}", False),
        ("fields: {a: b}", "", False),
        ("", "structured: yes\nfields: {a: b}", True),
        ("", "structured: false", False),
        ("structured: true", "fields: {a: b}", True),
        ("structured: true", "fields: {a: b}\nstructured: false", False),
        ("structured:", "fields: {a: b}\nstructured:", False),
    ],
)
def test_fields_take_the_place_of_the_general_reading(
    write: Write, defaults: str, own: str, structured: bool
) -> None:
    """A site with fields has no other, unless a file says so; saying what holds anyway changes no
    version."""
    site = named(load(write(one=f"hosts: one.example\n{own}\n", defaults=defaults)), "one")
    said = (
        f"hosts: one.example\n{own.partition('structured')[0]}\nstructured: "
        f"{str(structured).lower()}\n"
    )

    assert site.structured is structured
    if "structured" not in own:
        assert named(load(write(one=said, defaults=defaults)), "one").version == site.version


def test_the_version_changes_with_what_is_in_effect(write: Write) -> None:
    """A key, a default or a selector changes it; a comment, the order or a spelling of the same
    does not."""
    text = "hosts: [one.example]\nrate: 1/s\nfields: {a: b, c: {css: d}}\n"

    def version(site: str = text, defaults: str = "") -> str:
        return named(load(write(one=site, defaults=defaults)), "one").version

    first = version()
    assert re.fullmatch(r"[0-9a-f]{12}", first)
    assert (
        version(
            "# a word\nfields: {c: d, a: {css: b, required: false}}\nrate: '1/s'\nhosts: "
            "one.example\n"
        )
        == first
    )
    others = [
        version(text.replace("1/s", "2/s")),
        version(text.replace("css: d", "css: e")),
        version(text.replace("css: d", "css: d, required: true")),
        version(text + "headers: {X-A: b}\n"),
        version(defaults="timeout_s: 5"),
        version(text + "structured: true\n"),
    ]
    assert len({first, *others}) == 7


# Limits.


@pytest.mark.parametrize(
    ("own", "settings_rate", "job_rate", "rule"),
    [
        ("", None, None, (0.5, 2)),
        ("rate: 10/s", None, None, (0.1, 2)),
        ("delay_s: 3", None, None, (3.0, 2)),
        ("rate: 10/s\ndelay_s: 3", None, None, (3.0, 2)),
        ("rate: none", None, None, (0.0, 2)),
        ("rate: none\nconcurrency: none", None, None, (0.0, 0)),
        ("", "50/s", None, (0.02, 50)),
        ("", "30/m", None, (2.0, 2)),
        ("", "none", None, (0.0, 0)),
        ("rate: 10/s", "50/s", None, (0.1, 2)),
        ("delay_s: 3", "50/s", None, (3.0, 50)),
        ("concurrency: 7", "50/s", None, (0.02, 7)),
        ("concurrency: 7", "none", None, (0.0, 7)),
        ("", "5/s", "100/s", (0.01, 100)),
        ("rate: 10/s", None, "100/s", (0.01, 100)),
        ("rate: 10/s\ndelay_s: 3\nconcurrency: 4", "5/s", "100/s", (0.01, 4)),
        ("rate: 10/s", None, "none", (0.0, 0)),
    ],
)
def test_a_rate_by_hand_goes_before_the_defaults(
    write: Write, own: str, settings_rate: str | None, job_rate: str | None, rule: tuple[float, int]
) -> None:
    """CRAWLER_RATE replaces the defaults', a job's rate also a site's; then a second's worth goes
    at a time."""
    sites = load(write(one=f"hosts: www.one.example\n{own}\n"), settings_rate)

    assert sites.rule("one.example", job_rate) == RateRule(interval_s=rule[0], at_a_time=rule[1])


def test_a_rate_by_hand_replaces_that_of_the_defaults_file(write: Write) -> None:
    """What scraping_defaults.yaml says is a default like the built-in ones."""
    folder = write(defaults="rate: 1/s\ndelay_s: 9\nconcurrency: 1\n")

    assert load(folder).rule("a.example") == RateRule(interval_s=9.0, at_a_time=1)
    assert load(folder, "20/s").rule("a.example") == RateRule(interval_s=0.05, at_a_time=20)


def test_limits_are_for_the_whole_domain(write: Write) -> None:
    """The rule of a site on one host is that of its domain; one on a public suffix is that of each
    domain below."""
    sites = load(write(one="hosts: a.one.co.uk\nrate: 1/s", two='hosts: ["*.example"]\nrate: 4/s'))

    assert sites.rule("one.co.uk").interval_s == 1.0
    assert sites.rule("b.example").interval_s == 0.25
    assert sites.rule("co.uk").interval_s == 0.5


def test_two_sites_on_one_domain_share_its_limits(write: Write) -> None:
    """Different limits for hosts of one domain are refused with both files; the same are fine."""
    folder = write(
        one="hosts: a.shared.example\nrate: 1/s", two="hosts: b.shared.example\n\nrate: 2/s\n"
    )
    error = refusal(folder)
    folder = write(two="hosts: b.shared.example\nrate: 1/s\ntimeout_s: 5\n")

    assert (Path(error.path).name, error.line) == ("two.yaml", 3)
    assert "limits are for all of shared.example" in error.reason
    assert "one.yaml" in error.reason
    assert load(folder).rule("shared.example").interval_s == 1.0


# Refusals.


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (
            "hosts: a.example\n\n\nconcurency: 2",
            4,
            "there is no key 'concurency'; did you mean concurrency?",
        ),
        ("hosts: a.example\nRate: 2/s", 2, "there is no key 'Rate'; did you mean rate?"),
        ("hosts: a.example\nzzzzzz: 2/s", 2, "there is no key 'zzzzzz'; known are hosts, rate"),
        (
            "hosts: a.example\nuse_llm: true",
            2,
            "use_llm is not in force yet: this version has no reading of pages",
        ),
        (
            "hosts: a.example\nstart_urls: [a]",
            2,
            "there is no key 'start_urls'; did you mean start?",
        ),
        (
            "hosts: a.example\nrate: 2",
            2,
            "rate must be none, or a rate such as 50/s, 30/m or 500/h, not '2'",
        ),
        ("hosts: a.example\nstructured: maybe", 2, "structured must be true or false, not 'maybe'"),
        (
            "hosts: a.example\nstructred: yes",
            2,
            "there is no key 'structred'; did you mean structured?",
        ),
        ("hosts: a.example\nrate: [2/s]", 2, "rate must be a single value, not a list"),
        ("hosts: a.example\nrate: ' '", 2, "rate is empty"),
        ("hosts: a.example\nconcurrency: 0", 2, "a whole number from 1 to 1000, or none, not '0'"),
        (
            "hosts: a.example\nconcurrency: 2.5",
            2,
            "a whole number from 1 to 1000, or none, not '2.5'",
        ),
        ("hosts: a.example\nconcurrency: ٣", 2, "a whole number"),
        (
            "hosts: a.example\ndelay_s: -1",
            2,
            "delay_s must be a number from 0 to 86400 seconds, not '-1'",
        ),
        ("hosts: a.example\ndelay_s: nan", 2, "delay_s must be a number"),
        (
            "hosts: a.example\ntimeout_s: 1e9",
            2,
            "timeout_s must be a number from 0.1 to 3600 seconds, not '1e9'",
        ),
        ("hosts: a.example\nconnect_timeout_s: ten", 2, "connect_timeout_s must be a number"),
        (
            "hosts: a.example\nlimit_per: domian",
            2,
            "one of domain, ip, not 'domian'; did you mean domain?",
        ),
        (
            "hosts: a.example\nfetcher: curl",
            2,
            "fetcher must be one of http, browser, auto, not 'curl'",
        ),
        (
            "hosts: a.example\nrespect_robots: maybe",
            2,
            "respect_robots must be true or false, not 'maybe'",
        ),
        ("hosts: a.example\nretry: 5", 2, "retry must be a mapping"),
        (
            "hosts: a.example\nretry:\n  atempts: 5",
            3,
            "there is no key 'atempts' in retry; did you mean attempts?",
        ),
        (
            "hosts: a.example\nretry:\n  attempts: 0",
            3,
            "attempts must be a whole number from 1 to 20, not '0'",
        ),
        ("hosts: a.example\nretry: {base_s: 9, cap_s: 3}", 2, "base_s is more than cap_s"),
        ("rate: 2/s", None, "hosts is missing"),
        ("hosts: []", None, "hosts is missing"),
        ("", None, "hosts is missing"),
        (
            "hosts:\n - a.example\n - https://b.example/x",
            3,
            "'https://b.example/x' is not a host name",
        ),
        ("hosts:\n - a.example:80", 2, "without a port"),
        ("hosts: a.*.example", 1, "is not a host name"),
        ('hosts: "*"', 1, "is not a host name"),
        ('hosts: "*.com:80"', 1, "is not a host name"),
        ("hosts: a b", 1, "is not a host name"),
        ('hosts: "*.127.0.0.1"', 1, "is not a host name"),
        ("hosts: user@a.example", 1, "is not a host name"),
        ("hosts:\n - a.example\n - A.example", 3, "hosts names a.example twice"),
        ("hosts: {a: b}", 1, "hosts must be a single value"),
        ("hosts: a.example\nheaders: [a]", 2, "headers must be a mapping"),
        ("hosts: a.example\nheaders:\n  A b: c", 3, "'A b' is not a header's name"),
        ("hosts: a.example\nheaders:\n  Host: c", 3, "Host is set by the program itself"),
        ("hosts: a.example\nheaders:\n  transfer-ENCODING: c", 3, "is set by the program itself"),
        ("hosts: a.example\nheaders:\n  Referer: c", 3, "is set by the program itself"),
        (
            "hosts: a.example\nheaders:\n  X-A: b\n  x-a: c",
            4,
            "x-a is here again; it was in line 3",
        ),
        (
            "hosts: a.example\nheaders:\n  X-A: [b]",
            3,
            "the value of X-A must be a single text, not a list",
        ),
        ("hosts: a.example\nfields: h1", 2, "fields must be a mapping"),
        ("hosts: a.example\nfields:\n  a: 'p >'", 3, "css: 'p >' is not a CSS selector"),
        (
            "hosts: a.example\nfields:\n  a: p:hover",
            3,
            "css: the pseudo-class :hover cannot be asked of a stored page",
        ),
        (
            "hosts: a.example\nfields:\n  a: {ccs: p}",
            3,
            "there is no key 'ccs' in the field a; did you mean css?",
        ),
        ("hosts: a.example\nfields:\n  a:\n    css: p\n    type: numbr", 5, "did you mean number?"),
        (
            "hosts: a.example\n\nlocale: xx",
            3,
            "locale: 'xx' is not a known locale; known are bg, de, en, es, fr",
        ),
        (
            "hosts: a.example\nlocale: dee",
            2,
            "locale: 'dee' is not a known locale; did you mean de?",
        ),
        (
            "hosts: a.example\nlocale: bg_BG.UTF-8",
            2,
            "'bg_BG.UTF-8' is not a known locale; did you mean one of bg, bg-BG?",
        ),
        (
            "hosts: a.example\nlocale: en-UK",
            2,
            "'en-UK' is not a known locale; did you mean one of en, en-US, en-AU, en-GB",
        ),
        ("hosts: a.example\nlocale: [de]", 2, "locale must be a single value, not a list"),
        ("hosts: a.example\nlocal: de", 2, "there is no key 'local'; did you mean locale?"),
        (
            "hosts: a.example\nfields:\n  a:\n    css: p\n    locale: deutsch",
            5,
            "locale: 'deutsch' is not a known locale",
        ),
        (
            "hosts: a.example\nencoding: windows-1215",
            2,
            "encoding: 'windows-1215' is not a charset; did you mean windows-12",
        ),
        ("hosts: a.example\nencoding: base64", 2, "encoding: 'base64' is not a charset"),
        (
            "hosts: a.example\nencoding: klingon",
            2,
            "encoding: 'klingon' is not a charset; known are utf-8, utf-16le",
        ),
        ("hosts: a.example\nfields:\n  a:\n    attr: href", 3, "the field a has no css"),
        (
            "hosts: a.example\nfields:\n  a:\n    css: p\n    attr: a b",
            5,
            "'a b' is not an attribute's name",
        ),
        (
            "hosts: a.example\nfields:\n  a:\n    css: p\n    regex: (",
            5,
            "regex: not a regular expression: missing )",
        ),
        ("hosts: a.example\nfields:\n  a:\n    css: p\n    regex: (?=x)", 5, "not known to RE2"),
        (
            "hosts: a.example\nfields:\n  a:\n    css: p\n    regex: '(x)\\1'",
            5,
            "not a regular expression",
        ),
        (
            "hosts: a.example\nfields:\n  a:\n    css: p\n    attr: x\n    type: html",
            6,
            "an attribute has no html",
        ),
        ("hosts: a.example\nfields:\n  missing: p", 3, "'missing' is the name of the list"),
        ("hosts: a.example\nfields:\n  'a.b': p", 3, "'a.b' is not a name"),
        ("url_template: https://a.example/x", 1, "has no placeholder"),
        ("url_template: https://a.example/{x", 1, "a brace is open or empty"),
        ("url_template: https://a.example/{}", 1, "a brace is open or empty"),
        (
            "url_template: https://{county}.example/{id}",
            1,
            "the host must be the same for all rows",
        ),
        ("url_template: '{scheme}://a.example/{id}'", 1, "the host must be the same for all rows"),
        ("url_template: ftp://a.example/{id}", 1, "only http and https"),
        ("url_template: a.example/{id}", 1, "does it lack http://"),
        ("url_template: https://u:p@a.example/{id}", 1, "user name or a password"),
        (
            "hosts: b.example\nurl_template: https://a.example/{id}",
            2,
            "a.example, is not among hosts",
        ),
        (
            "hosts: a.example\nhosts: b.example",
            2,
            "the key 'hosts' is here again; it was in line 1",
        ),
        ("hosts: a.example\n\theaders: x", 2, "not YAML"),
        ("hosts: a: b", 1, "not YAML"),
        ("hosts: [a.example", 1, "not YAML"),
        ("- hosts", 1, "must consist of lines such as"),
        ("hosts: a.example\n---\nhosts: b.example", 2, "a second document begins here"),
        (
            "hosts: !!python/object/apply:os.system [true]",
            1,
            "tags such as tag:yaml.org,2002:python/object/apply",
        ),
        ("hosts: !x a.example", 1, "tags such as !x are not allowed"),
        ("hosts: a.example\nheaders: *nothing", 2, "*nothing stands for nothing"),
        ("hosts: &a [*a]", 1, "*a stands for nothing"),
        ("? [a, b]\n: c", 1, "a key must be a single word"),
        ("<<: {rate: 1/s}\nhosts: a.example", 1, "there is no key '<<'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(
    write: Write, text: str, line: int | None, reason: str
) -> None:
    """File, line, key and the nearest valid name: the message is all that is needed to put it
    right."""
    folder = write()
    (folder / "sites" / "county.yaml").write_text(text)

    error = refusal(folder)

    assert Path(error.path) == folder / "sites" / "county.yaml"
    assert (error.line, reason in error.reason) == (line, True), error


def test_the_message_as_it_is_printed(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole line that a command ends with."""
    monkeypatch.chdir(write(county="hosts:\n  - a.example\n\nconcurency: 3\n").parent)
    (Path.cwd() / "config").symlink_to(write())

    error = refusal(Path("config"))

    assert str(error) == (
        "config/sites/county.yaml, line 4: there is no key 'concurency'; did you mean concurrency?"
    )


@pytest.mark.parametrize(
    ("written", "name"), [("de", "de"), ("DE", "de"), ("en_us", "en-US"), ("zh-hk", "zh-HK")]
)
def test_a_locale_may_be_written_in_any_case(write: Write, written: str, name: str) -> None:
    """Both `-` and `_` are usual between language and country."""
    assert named(load(write(one=f"hosts: a.example\nlocale: {written}")), "one").locale == name


def test_fields_have_the_locale_of_their_file_or_their_own(write: Write) -> None:
    """A field's own locale goes before the file's, and the file's before that of the defaults."""
    field = "{css: p, type: number}"
    text = f"fields:\n  a: {field}\n  b: {{css: p, type: number, locale: en}}\n"
    folder = write(
        defaults=f"locale: de\nfields:\n  common: {field}",
        one="hosts: a.example\nlocale: fr\n" + text,
        two="hosts: b.example",
    )

    sites = load(folder)

    assert {name: each.locale for name, each in named(sites, "one").fields.items()} == {
        "common": "fr",
        "a": "fr",
        "b": "en",
    }
    assert (
        named(sites, "two").fields["common"].locale == sites.default.fields["common"].locale == "de"
    )


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("windows-1251", "windows-1251"),
        ("CP1251", "windows-1251"),
        ("latin1", "windows-1252"),
        ("UTF8", "utf-8"),
    ],
)
def test_an_encoding_may_have_any_label_that_browsers_know(
    write: Write, label: str, name: str
) -> None:
    """The label is kept as the charset's name, so that a result's version does not depend on the
    spelling."""
    assert named(load(write(one=f"hosts: a.example\nencoding: {label}")), "one").encoding == name


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"hosts: a.example\n# \xff", 2, "the file is not UTF-8"),
        (b"hosts: a.example\nrate: \x01", 2, "the character 0x1 is not allowed"),
        (b"hosts: a.example\n" + b"#" * yamlfile.MAX_SIZE, None, "bytes, more than 1,000,000"),
        (b"a: " + b"[" * 200_000, 1, "nested more than 10 deep"),
        (b"{a: " * 100_000, 1, "nested more than 10 deep"),
        (b"- " * 100_000, 1, "nested more than 10 deep"),
        (
            b"x: &a [" + b"1, " * 49_990 + b"1]\ny: [*a, *a]\n",
            2,
            "more than 50,000 values, with what aliases repeat",
        ),
        (
            b"a0: &a0 [x, x]\n"
            + b"".join(
                b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 8))
                for n in range(1, 60)
            ),
            6,
            "more than 50,000 values, with what aliases repeat",
        ),
        (
            b"a0: &a0 {x: x}\n"
            + b"".join(b"a%d: &a%d {not: *a%d}\n" % (n, n, n - 1) for n in range(1, 5_000)),
            10,
            "nested more than 10 deep",
        ),
    ],
    ids=["utf-8", "control", "size", "brackets", "braces", "dashes", "wide", "laughs", "aliases"],
)
def test_a_file_that_is_a_bomb_is_refused_before_it_bursts(
    write: Write, data: bytes, line: int | None, reason: str
) -> None:
    """Size, depth and what aliases repeat are bounded while the file is read."""
    folder = write()
    (folder / "sites" / "county.yaml").write_bytes(data)

    error = refusal(folder)

    assert (error.line, reason in error.reason) == (line, True), error


def test_aliases_within_reason_are_read(write: Write) -> None:
    """An anchor saves typing, and nothing more."""
    sites = load(
        write(one="hosts: a.example\nfields:\n  a: &price {css: .a, type: number}\n  b: *price\n")
    )

    fields = named(sites, "one").fields
    assert fields["a"] == fields["b"] == Field(css=".a", type="number")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("County.yaml", "lower case letters, digits, -, _ and dots"),
        ("a b.yaml", "lower case letters, digits, -, _ and dots"),
        ("county.yml", "must end in .yaml"),
        ("a..yaml", "dots, which stand between others"),
        ("default.yaml", "is in scraping_defaults.yaml"),
    ],
)
def test_names_of_files_that_would_never_be_found(write: Write, name: str, reason: str) -> None:
    """A file that looks like a site's and is none is refused, not passed over."""
    folder = write()
    (folder / "sites" / name).write_text("hosts: a.example\n")

    error = refusal(folder)

    assert (Path(error.path).name, reason in error.reason) == (name, True)


def test_other_files_beside_the_sites_are_left_alone(write: Write) -> None:
    """Notes, backups and what an editor leaves are nobody's site."""
    folder = write(one="hosts: a.example")
    for name in ("README.md", "one.yaml~", ".one.yaml", "one.yaml.bak"):
        (folder / "sites" / name).write_text("::: not yaml")

    assert load(folder).of("http://a.example/").name == "one"


def test_hosts_belong_to_one_site(write: Write) -> None:
    """Two files that claim a host are refused with both names."""
    error = refusal(write(one="hosts: a.example", two="\nhosts: [b.example, A.EXAMPLE]"))

    assert (Path(error.path).name, error.line) == ("two.yaml", 2)
    assert re.search(r"the host a.example belongs to .*one.yaml already", error.reason)


def test_what_belongs_to_one_site_is_no_default(write: Write) -> None:
    """hosts and url_template in scraping_defaults.yaml are refused with where they belong."""
    error = refusal(write(defaults="rate: 1/s\nhosts: a.example\n"))

    assert (Path(error.path).name, error.line) == ("scraping_defaults.yaml", 2)
    assert "sites/<site>.yaml" in error.reason


def test_what_is_no_file_is_refused(write: Write) -> None:
    """A folder in the place of a file, or a file in that of a folder, is a clear error."""
    folder = write()
    (folder / "scraping_defaults.yaml").mkdir()
    first = refusal(folder)
    (folder / "scraping_defaults.yaml").rmdir()
    (folder / "sites").rmdir()
    (folder / "sites").write_text("")

    assert "not a file" in first.reason
    assert "cannot be read" in refusal(folder).reason


@pytest.mark.parametrize("value", [f"{SECRET}\\n", f"{SECRET}\\u0001", SECRET * 1000])
def test_the_values_of_headers_are_never_shown(write: Write, value: str) -> None:
    """Neither in an error nor in a site's representation."""
    folder = write(one=f'hosts: a.example\nheaders:\n  Authorization: "{value}"\n')
    error = refusal(folder) if value.startswith(f"{SECRET}\\u") or len(value) > 100 else None
    folder = write(one=f'hosts: a.example\nheaders:\n  Authorization: "{SECRET}"\n')
    site = named(load(folder), "one")

    assert site.headers == (("Authorization", SECRET),)
    assert SECRET not in f"{error} {error!r} {site} {site!r}"


def test_a_line_break_in_a_header_is_refused(write: Write) -> None:
    """No value can begin a header, or a request, of its own."""
    error = refusal(write(one='hosts: a.example\nheaders:\n  X-A: "b\\r\\nHost: evil.example"\n'))

    assert (error.line, "line break" in error.reason, "evil" in error.reason) == (3, True, False)


# Start-up.


def test_nothing_is_imported_that_is_not_needed(tmp_path: Path) -> None:
    """Where there are no files, neither YAML nor HTML nor the list of suffixes is loaded: every
    command does this."""
    code = (
        "import json, sys; from pathlib import Path;"
        "from crawler.sites import load; load(Path(sys.argv[1]));"
        "heavy = {'yaml', 'selectolax', 're2', 'publicsuffixlist', 'aiohttp'};"
        "print(json.dumps(sorted(heavy & set(sys.modules))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == []


# URLs out of columns.

TEMPLATE = "url_template: HTTPS://Assessor.county.example:443/{state}/parcel?id={Parcel_ID}\n"


def read(folder: Path, name: str, text: str) -> list[rows.Row | rows.Reject]:
    file = folder / name
    file.write_text(text)
    return list(rows.read(file, load(folder)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("in.csv", "platform,parcel_id,state\ncounty,12-3 a/b,TX\n"),
        ("in.csv", "Platform;Parcel_ID;State\n County ;12-3 a/b;TX\n"),
        ("in.csv", 'url,platform,parcel_id,state\n,county,"12-3 a/b",TX\n'),
        (
            "in.jsonl",
            '{"platform": "county", "parcel_id": "12-3 a/b", "state": "TX", "extra": [1]}\n',
        ),
        (
            "in.json",
            '[{"url": null, "platform": "county", "parcel_id": "12-3 a/b", "state": "TX"}]',
        ),
    ],
)
def test_a_row_without_a_url_gets_it_from_its_platform(write: Write, name: str, text: str) -> None:
    """The site's template takes the row's columns, percent-encoded; the site's host needs no other
    mention."""
    folder = write(county=TEMPLATE)

    [row] = read(folder, name, text)

    assert isinstance(row, rows.Row), row
    assert row.task.address.url == "https://assessor.county.example/TX/parcel?id=12-3%20a%2Fb"
    assert row.task.parcel_id == "12-3 a/b"
    assert load(folder).of(row.task.address.url).name == "county"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            '{"platform": "county", "state": "TX"}',
            "the column 'parcel_id' is missing, and the url_template",
        ),
        (
            '{"platform": "county", "state": "TX", "parcel_id": " "}',
            "the column 'parcel_id' is empty",
        ),
        (
            '{"platform": "county", "state": "TX", "parcel_id": null}',
            "the column 'parcel_id' is empty",
        ),
        ('{"platform": "county", "state": "..", "parcel_id": "1"}', "the column 'state' is '..'"),
        (
            '{"platform": "county", "state": ["TX"], "parcel_id": "1"}',
            "the state is not text but a list",
        ),
        (
            '{"platform": "city", "parcel_id": "1"}',
            "no site 'city' with a url_template; there are: county",
        ),
        ('{"platform": "", "parcel_id": "1"}', "neither a url nor a platform"),
        ('{"parcel_id": "1"}', "neither a url nor a platform"),
        ('{"platform": "plain", "parcel_id": "1"}', "no site 'plain' with a url_template"),
    ],
)
def test_a_row_that_gives_no_url_is_rejected_with_the_reason(
    write: Write, row: str, reason: str
) -> None:
    """A missing column costs its row and no other."""
    folder = write(county=TEMPLATE, plain="hosts: plain.example")
    good = '{"platform": "county", "state": "TX", "parcel_id": 7}\n'

    bad, last = read(folder, "in.jsonl", f"{row}\n{good}")

    assert isinstance(bad, rows.Reject)
    assert reason in bad.reason
    assert isinstance(last, rows.Row)
    assert last.task.address.url.endswith("?id=7")


def test_numbers_are_taken_as_they_are_written(write: Write) -> None:
    """Parcel 1.50 is not parcel 1.5."""
    [row] = read(
        write(county=TEMPLATE),
        "in.jsonl",
        '{"platform": "county", "state": "TX", "parcel_id": 1.50}\n',
    )

    assert isinstance(row, rows.Row)
    assert row.task.address.url.endswith("?id=1.50")


def test_a_url_that_is_there_goes_before_the_template(write: Write) -> None:
    """The template only fills what is empty."""
    text = "url,platform,parcel_id,state\nhttp://other.example/,county,1,TX\n"
    [row] = read(write(county=TEMPLATE), "in.csv", text)

    assert isinstance(row, rows.Row)
    assert row.task.address.url == "http://other.example/"


def test_without_templates_a_url_column_is_needed(write: Write) -> None:
    """A platform alone gives no URL; the message is that of a missing column."""
    with pytest.raises(InputError, match="there is no column 'url'"):
        read(write(one="hosts: a.example"), "in.csv", "platform,parcel_id\none,1\n")


# The page about it.


def test_the_table_of_the_docs_names_every_key() -> None:
    """docs/SITES.md has every key of a file, of a field and of retry, with its default, and no
    other."""
    page = (ROOT / "docs" / "SITES.md").read_text()
    tables = {
        title: dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", part, re.M))
        for title, part in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    }

    assert set(tables["Every key"]) == set(BUILT_IN)
    assert set(tables["Fields"]) == {field.name for field in msgspec.structs.fields(Field)}
    assert set(tables["Types"]) == set(get_args(fieldfile.Type))
    for key, value in BUILT_IN.items():
        if isinstance(value, bool):
            assert tables["Every key"][key].strip() == f"`{str(value).lower()}`", key
        elif isinstance(value, str | int | float):
            assert tables["Every key"][key].strip() == (
                f"`{value:g}`" if not isinstance(value, str) else f"`{value}`"
            ), key
    for key, value in BUILT_IN["retry"].items():
        assert f"{key}: {value:g}" in tables["Every key"]["retry"], key


def test_the_example_of_the_docs_can_be_loaded(write: Write) -> None:
    """Every YAML block of docs/SITES.md that is a whole file is accepted."""
    blocks = re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / "docs" / "SITES.md").read_text(), re.M | re.S
    )
    files = [block for block in blocks if "hosts:" in block or "url_template:" in block]

    assert files
    for number, block in enumerate(files):
        assert load(write(county=block)).named("county"), number


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["imotti"], "there is no site 'imotti'; did you mean imoti?"),
        (["nosuch"], "there is no site 'nosuch'; known are: county, imoti"),
        (
            ["conty", "imoti", "imotti"],
            "there are no sites 'conty' (did you mean county?), 'imotti' (did you mean imoti?)",
        ),
        (
            ["nosuch", "imotti"],
            "there are no sites 'nosuch', 'imotti' (did you mean imoti?); known are: county, imoti",
        ),
    ],
)
def test_all_unknown_sites_are_named_at_once(tmp_path: Path, names: list[str], told: str) -> None:
    """Each with the nearest name; where there is none, all that are known."""
    (tmp_path / "sites").mkdir()
    for name in ("county", "imoti"):
        (tmp_path / "sites" / f"{name}.yaml").write_text(f"hosts: {name}.example\n")
    known = load(tmp_path)

    with pytest.raises(UsageError) as error:
        known.find_all(names)

    assert str(error.value) == told
    assert [site.name for site in known.find_all(["IMOTI", "county"])] == ["imoti", "county"]
