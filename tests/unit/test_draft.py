"""A draft is a file that can be loaded, and that finds something on its page."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.fetch.budget import Budget
from crawler.models import Role
from crawler.sites import Site, links, load
from crawler.sites.draft import Draft, draft
from crawler.sites.parser import parse
from tests.support.tasks import page

HOST = "https://www.county.example"


def drafted(path: str, html: str) -> Draft:
    return draft(page(f"{HOST}{path}", html.encode()))


def site_of(folder: Path, made: Draft) -> Site:
    (folder / "sites").mkdir(exist_ok=True)
    (folder / "sites" / f"{made.name}.yaml").write_text(made.text)
    site = load(folder).named(made.name)
    assert site is not None
    return site


def followed(site: Site, path: str, html: str) -> dict[str, Role | None]:
    """The links that a crawl with a draft follows from its page."""
    at = page(f"{HOST}{path}", html.encode())
    rules = links.LinkRules(site, Role.START)
    found = links.in_html(parse(html), html.encode(), at, rules, Budget())
    return {link.href: link.role for link in found.links}


MENU = "<nav>" + "".join(f"<a href=/about/{n}>About {n}</a>" for n in range(20)) + "</nav>"


def a_list(item: str, more: str = "", count: int = 5) -> str:
    rows = "".join(f"<li class=hit>{item.format(n=1000 + 7 * n)}</li>" for n in range(count))
    return f"<html><body>{MENU}<ul class=results>{rows}</ul>{more}</body></html>"


ITEM = "<a href=/parcel/{n}>Parcel {n} at the mill</a>"


def test_repeated_links_of_a_list_become_its_items(tmp_path: Path) -> None:
    """With the CSS and the regular expression of the group; links of menus are none."""
    html = a_list(ITEM)
    made = drafted("/parcels", html)
    site = site_of(tmp_path, made)

    assert (made.name, made.items, made.fields) == ("county.example", 5, {})
    assert site.hosts == ("www.county.example",)
    assert [start.url for start in site.start] == [f"{HOST}/parcels"]
    assert site.follow is not None
    [rule] = site.follow
    assert (rule.css, rule.role) == ("li.hit a", "listing")
    assert rule.regex == r"://www\.county\.example/parcel/\d+(?:$|\?)"
    assert followed(site, "/parcels", html) == {
        f"/parcel/{1000 + 7 * n}": Role.LISTING for n in range(5)
    }
    kind = site.kind_of(f"{HOST}/parcel/1")
    assert kind is not None
    assert (kind.role, kind.structured) == ("listing", True)
    assert site.kind_of(f"{HOST}/parcels") is None


@pytest.mark.parametrize(
    ("item", "fits", "not_fits"),
    [
        ("<a href=/flat-{n}.html>Flat {n} m</a>", "/flat-5.html", "/flat-5.pdf"),
        ("<a href=/sofia/flat-no{n}x-big>A flat</a>", "/sofia/flat-no7x-big", "/varna/a"),
        ("<a href='/show?id={n}&lang=bg'>A flat</a>", "/show?lang=bg&id=4", "/show?lang=bg"),
        ("<b><a class='title big' href=/a/b/{n}/>A flat</a></b>", "/a/b/1/", "/a/b/x/"),
    ],
)
def test_the_shape_of_items_is_that_of_their_urls(
    tmp_path: Path, item: str, fits: str, not_fits: str
) -> None:
    """What differs is left open, as numbers where it is numbers."""
    made = drafted("/list", a_list(item))
    site = site_of(tmp_path, made)

    assert made.items == 5
    assert site.kind_of(HOST + fits) is not None
    assert site.kind_of(HOST + not_fits) is None


@pytest.mark.parametrize(
    ("more", "path", "rule"),
    [
        ("<a rel=next href=?page=2>2</a>", "/list", {"next": "a[rel~=next]"}),
        ("<a class=forward href=?s=2>Next</a>", "/list", {"next": "a.forward"}),
        ("<a href=?s=2>Следваща »</a>", "/list", {"next": 'a:contains("Следваща »")'}),
        ("<a href=?page=2>2</a><a href=?page=3>3</a>", "/list", {"parameter": "page"}),
        (
            "<a href=?offset=20>2</a><a href=?offset=40>3</a>",
            "/list",
            {"parameter": "offset", "first": 20, "step": 20},
        ),
        ("<a href=/list/p-2>2</a><a href=/list/p-3>3</a>", "/list", {"path": "/p-{n}"}),
        ("<a href=/list/page/2/>2</a>", "/list/", {"path": "/page/{n}"}),
        ("<a href=/year/2>2</a><a href=?year=2024>2024</a>", "/list", {}),
    ],
)
def test_the_next_page_is_guessed(
    tmp_path: Path, more: str, path: str, rule: dict[str, object]
) -> None:
    """By what it says of itself, by its text, by a number in the URL; or not at all."""
    html = a_list(ITEM, more)
    made = drafted(path, html)
    site = site_of(tmp_path, made)

    assert made.items == 5
    if not rule:
        assert site.pagination == ()
        return
    [found] = site.pagination
    assert {key: getattr(found, key) for key in rule} == rule
    assert len(followed(site, path, html)) == 6


DETAIL = """<html><body><h1>Parcel 12</h1><table>
<tr><th>Owner:</th><td>Jane Roe</td></tr><tr><th>Assessed value</th><td>$184,500</td></tr>
<tr><th>Land area</th><td>850 m²</td></tr><tr><th>Last sale</th><td>2024-03-05</td></tr>
<tr><th>Площ</th><td>85</td></tr></table>{more}</body></html>"""


def test_labels_of_a_page_become_fields(tmp_path: Path) -> None:
    """Under the names of the labels, with types where the values show them."""
    made = drafted("/parcel/12", DETAIL.replace("{more}", ""))
    site = site_of(tmp_path, made)

    assert made.fields["title"] == "Parcel 12"
    assert made.fields["owner"] == "Jane Roe"
    assert made.fields["last_sale"] == "2024-03-05"
    assert made.fields["площ"] == 85
    assert {"assessed_value", "land_area"} <= set(made.fields)
    kind = site.kind_of(f"{HOST}/parcel/77")
    assert kind is not None
    assert set(kind.fields) == set(made.fields)
    assert site.kind_of(f"{HOST}/other/77") is None


def test_labels_in_running_text_become_fields(tmp_path: Path) -> None:
    """Where no cell stands beside the label, its line is searched."""
    lines = ("Град: Варна", "Квартал: Гео (Милев)", "Площ: 98 кв.м", 'Вид "а": къща')
    items = "".join(f"<li>{line}</li>" for line in lines)
    made = drafted("/obiava/100000-apartament", f"<h1>Имот</h1><ul>{items}</ul>")
    site = site_of(tmp_path, made)

    assert (made.fields["град"], made.fields["квартал"]) == ("Варна", "Гео (Милев)")
    assert "площ" in made.fields
    assert site.kind_of(f"{HOST}/obiava/100017-kashta"), "other items have other words"


def test_menus_in_layout_tables_are_no_items(tmp_path: Path) -> None:
    """Links with numbers go before a larger group without."""
    menu = "".join(f"<td><a href=/{word}>{word}</a>" for word in ("a", "b", "c", "d", "e"))
    rows = "".join(f"<tr><td><a href=/parcel/01-00{n}-4>Parcel {n}</a>" for n in range(10, 14))
    made = drafted("/township/alder", f"<table><tr>{menu}</table><table>{rows}</table>")
    site = site_of(tmp_path, made)

    assert made.items == 4
    assert site.kind_of(f"{HOST}/parcel/77-0-1")
    assert site.kind_of(f"{HOST}/parcel/list") is None


def test_json_ld_becomes_fields(tmp_path: Path) -> None:
    """Of the item, not of the site around it; prices and images with their types."""
    data = """<script type="application/ld+json">{"@graph": [
      {"@type": "WebSite", "name": "The site"},
      {"@type": "Product", "name": "A flat", "sku": 17, "image": ["/1.jpg", "/2.jpg"],
       "offers": {"@type": "Offer", "price": "61355", "priceCurrency": "EUR"},
       "address": {"addressLocality": "Sofia"}, "url": "https://www.county.example/x"}]}</script>"""
    made = drafted("/flat/3", f"<html><head>{data}</head><body><h1>A flat</h1></body></html>")
    site_of(tmp_path, made)

    assert made.fields["name"] == "A flat"
    assert made.fields["address_address_locality"] == "Sofia"
    assert made.fields["image"] == [f"{HOST}/1.jpg", f"{HOST}/2.jpg"]
    assert made.fields["price"] == {"amount": 61355, "currency": "EUR"}
    assert "url" not in made.fields


def test_a_page_with_nothing_of_the_kind_gives_its_title(tmp_path: Path) -> None:
    """Every draft collects something."""
    made = drafted("/", "<html><head><title>Hello</title></head><body><h1>Hi</h1></body></html>")

    assert made.fields == {"title": "Hi", "heading": "Hello"}
    assert site_of(tmp_path, made).kind_of(f"{HOST}/")


NEXT = "<a rel=next href=/parcels?page=2>next</a>"
FROM_ITEM = f"no fields: draft from an item, such as {HOST}/parcel/1000, and take its fields"


@pytest.mark.parametrize(
    ("html", "lacks"),
    [
        (a_list(ITEM, NEXT), [FROM_ITEM]),
        (
            a_list(ITEM),
            ["no link to the next page: if the list has more pages, add pagination", FROM_ITEM],
        ),
        (
            DETAIL.replace("{more}", ""),
            ["no list: draft from a list of items, too, and take its start, follow and pagination"],
        ),
        (
            "<html><body><h1>Hi</h1></body></html>",
            [
                "no list of links to items: add follow, or draft from a page with such a list",
                "no fields of labels or JSON-LD, which this page lacks: add fields",
            ],
        ),
    ],
)
def test_a_draft_says_what_it_lacks(html: str, lacks: list[str]) -> None:
    """And what the reader can do about it."""
    assert drafted("/parcels", html).lacks == lacks


def test_long_urls_make_no_pattern_that_is_refused(tmp_path: Path) -> None:
    """A regular expression has a limit; the host alone is one, too."""
    made = drafted("/" + "x" * 3_000, a_list("<a href=/" + "y" * 3_000 + "/{n}>A flat</a>"))

    assert made.items == 5
    assert site_of(tmp_path, made).kind_of(f"{HOST}/{'y' * 3_000}/1")


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_no_page_makes_a_file_that_cannot_be_loaded(label: str, value: str, path: str) -> None:
    """Whatever stands in labels, values and URLs is written so that it means itself."""
    rows = "".join(f"<tr><th>{label}{n}</th><td>{value}</td></tr>" for n in range(4))
    items = "".join(f'<li class="{label}"><a href="/{path}/{n}">{value} x</a>' for n in range(4))

    draft(page(f"{HOST}/a", f"<h1>a</h1><table>{rows}</table>{items}".encode("utf-8", "replace")))
