"""The real-estate portal of `python -m crawler.examples` as a class.

Hosts, starts and pagination stay in `sites/imoti.yaml`; links and records come from here.
"""

import re
from collections.abc import Iterator
from typing import Any


class Imoti:
    """Finds the listings of lists and of the API, and reads each listing's page."""

    def extract_listing_urls(self, page: Any) -> Iterator[tuple[str, str]]:
        """Yield the URLs of listings, each with its role."""
        if "json" in page.headers.get("content-type", ""):
            for item in page.json()["items"]:
                yield item["url"], "listing"
            return
        for link in page.css(".card a.title"):
            yield page.urljoin(link.attributes["href"]), "listing"

    def extract_listing(self, page: Any) -> dict[str, Any] | None:
        """Return the record of a listing; None for every other page."""
        if "/obiava/" not in page.url:
            return None
        product = page.json_ld[0]
        facts = {
            node.css_first("span").text().strip(": "): node.css_first("b").text()
            for node in page.css(".params li")
        }
        photos = (node.attributes["data-src"] for node in page.css(".gallery img"))
        return {
            "id": product["sku"],
            "title": product["name"],
            "price": _price(page.css_first(".price").text()),
            "area": _area(facts["Площ"]),
            "floor": _floor(facts.get("Етаж", "")),
            "city": product["address"]["addressLocality"],
            "quarter": facts["Квартал"],
            "photos": [page.urljoin(photo) for photo in photos],
            "published": product["releaseDate"],
        }


def _price(text: str) -> dict[str, Any] | None:
    digits = re.sub(r"\D", "", text)
    if not digits:
        return None  # "Цена при запитване"
    return {"amount": int(digits), "currency": "BGN" if "лв" in text else "EUR"}


def _area(text: str) -> int:
    number = float(text.split(maxsplit=1)[0].replace(",", "."))
    return round(number * 1000) if "дка" in text else round(number)


def _floor(text: str) -> dict[str, int] | None:
    found = re.search(r"(партер|\d+)\D* от (\d+)", text)
    if not found:
        return None
    return {"floor": 0 if found[1] == "партер" else int(found[1]), "floors": int(found[2])}
