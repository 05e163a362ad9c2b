"""The benchmark's own parts that figures rest on: the site, the fields, the report."""

from pathlib import Path

from selectolax.lexbor import LexborHTMLParser

from benchmarks import report, site


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
