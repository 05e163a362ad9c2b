"""The benchmark's own parts that figures rest on: the site, the fields, the report."""

import json
from pathlib import Path

from selectolax.lexbor import LexborHTMLParser

from benchmarks import browser, report, script_site, site


def test_the_site_is_the_same_everywhere_and_holds_what_is_asked_for() -> None:
    """A page is made from its number alone, has 20 to 60 KB, and an element for each of the eight
    fields."""
    for number in (0, 7, 19_999):
        text = site.page(number)
        assert text == site.page(number)
        assert 20_000 < len(text.encode()) < 62_000
        tree = LexborHTMLParser(text)
        found = {
            name: node.text() for name, css in site.FIELDS.items() if (node := tree.css_first(css))
        }
        assert len(found) == 8
        assert all(found.values())
        assert found["parcel"].startswith(f"{number:05d}-")
    assert site.page(1) != site.page(2)


def test_every_domain_is_an_address_of_its_own() -> None:
    """A thousand domains are a thousand loopback addresses."""
    addresses = site.domains()
    assert len(set(addresses)) == site.MANY_DOMAINS == 1_000
    assert all(address.startswith("127.1.") for address in addresses)


def test_a_section_of_the_report_replaces_only_itself(tmp_path: Path) -> None:
    """What other parts have measured stays, and the order does not depend on what ran last."""
    file = tmp_path / "RESULTS.md"
    report.section("parts", "old parts", file)
    report.section("speed", "speed", file)
    report.section("parts", "new parts", file)
    text = file.read_text()
    assert "old parts" not in text
    assert text.index("speed") < text.index("new parts")


def test_pages_that_need_a_browser_have_their_record_only_in_their_data() -> None:
    """The data is made from a page's number alone, and has all fields; the page itself has none."""
    data = script_site.data(7)
    assert data == script_site.data(7) != script_site.data(8)
    assert list(json.loads(data)["record"]) == list(site.FIELDS)
    assert 10_000 < len(data) < 60_000
    tree = LexborHTMLParser(script_site.SHELL.format(number=7))
    assert not any(tree.css_first(css) for css in site.FIELDS.values())


def test_each_round_begins_with_another_contestant() -> None:
    """All take part in each round, and the order goes round."""
    orders = [browser.in_turn(number) for number in range(len(browser.CONTESTANTS))]
    assert all(sorted(order) == sorted(browser.CONTESTANTS) for order in orders)
    assert len({order[0] for order in orders}) == len(orders)
