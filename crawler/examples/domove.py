"""A second real-estate portal, which has some of the things that `imoti` has, written differently.

Some of its listings are shared with `imoti` (`truth`). Some are near misses: another flat of the
same building, the same area with other rooms, or the title of another listing. The others are its
own.
"""

from collections.abc import Iterator
from html import escape
from random import Random
from typing import Any, NamedTuple

from crawler.examples.imoti import KINDS, PLOT, Imoti, Offer
from crawler.examples.server import Listing, Request, Response, integer, not_found

HOST = "domove.localhost"
LIST = "/obyavi"
PER_PAGE = 50
BGN_PER_EUR = 1.95583
_FIRST_ID = 4_000_000
_OWN_SEED = 7919
"""Added to the seed, for listings that `imoti` does not have."""

_CITIES = {
    "София": ("София", "гр. София", "Sofia"),
    "Пловдив": ("Пловдив", "гр. Пловдив", "Plovdiv"),
    "Варна": ("Варна", "гр. Варна", "Varna"),
    "Бургас": ("Бургас", "гр. Бургас", "Burgas"),
    "Русе": ("Русе", "гр. Русе", "Ruse"),
    "Самоков": ("Самоков", "гр. Самоков", "Samokov"),
}
_QUARTERS = {
    "Лозенец": ("кв. Лозенец", "Lozenets", "ЛОЗЕНЕЦ"),
    "Център": ("Център", "Tsentar", "Center"),
    "Младост 1": ("ж.к. Младост 1", "Mladost-1", "жк Младост1"),
    "Овча купел": ("ж.к. Овча Купел", "Ovcha Koupel", "кв.Овча купел"),
    "Гео Милев": ("жк Гео Милев", "Geo Milev", "ж.к. Г. Милев"),
    "Изток": ("кв. Изток", "Iztok", "Istok"),
}
_KINDS = {
    "двустаен апартамент": ("2-стаен", "Two-room apartment"),
    "тристаен апартамент": ("3-стаен", "Three-room apartment"),
    "къща": ("Къща", "House"),
    "парцел": ("Парцел", "Plot of land"),
    "офис": ("Офис", "Office"),
}
_OTHER_ROOMS = {KINDS[0]: KINDS[1], KINDS[1]: KINDS[0]}
_PRAISE = (
    "Светъл и просторен имот в отлично състояние, с бърз достъп до центъра на града.",
    "Ексклузивно предложение от нашата агенция, без комисиона от купувача.",
    "A bright property in a quiet street, close to shops, schools and public transport.",
)
_BOILERPLATE = (
    "Обадете се още днес за оглед. Агенцията съдейства за кредит при най-добри условия, поема "
    "всички документи и пази интереса на клиента до предаването на ключа."
)


class Home(NamedTuple):
    """What this portal shows of a listing."""

    title: str
    kind: str
    city: str
    quarter: str
    price: int | None
    currency: str
    area: float
    floor: str
    text: str


class Domove:
    """The portal with `size` listings, the same for the same seed.

    `shared` of them are also on `imoti`, which has `imoti_size` listings of the same seed; as many
    more are near misses.
    """

    host = HOST

    def __init__(
        self,
        size: int = 500,
        seed: int = 1,
        shared: int | None = None,
        imoti_size: int | None = None,
    ) -> None:
        self.size, self.seed = size, seed
        self._imoti = Imoti(size if imoti_size is None else imoti_size, seed)
        self._own = Imoti(size, seed + _OWN_SEED)
        self.shared = min(size, self._imoti.size, size // 15 if shared is None else shared)
        self._misses = min(self.shared, size - self.shared)
        chance = Random(f"domove {seed}")
        self._models = chance.sample(range(self._imoti.size), self.shared)
        """The listings of `imoti` that the first ones here are, or nearly are."""
        self._ids = chance.sample(range(size), size)
        self._numbers = {number: n for n, number in enumerate(self._ids)}
        self.edits: dict[int, int] = {}
        """How often a listing was changed since the start (`/_edit?id=…`)."""
        self.gone: set[int] = set()
        """Listings that are gone (`/_gone?id=…`) and not back (`/_back?id=…`)."""

    # Its truth.

    def truth(self) -> list[tuple[str, str]]:
        """Return the ids, there and here, of what both portals have."""
        return [
            (str(100_000 + model), str(_FIRST_ID + self._ids[n]))
            for n, model in enumerate(self._models)
        ]

    def home(self, n: int) -> Home:
        """Return listing n."""
        found = self._home(n)
        if found.price is None:
            return found
        return found._replace(price=found.price + self.edits.get(n, 0))

    def _home(self, n: int) -> Home:
        """Return listing n before any edit."""
        chance = Random(f"domove {self.seed} {n}")
        if n < self.shared:
            return _described(self._imoti.offer(self._models[n]), chance)
        if n < self.shared + self._misses:
            model = self._imoti.offer(self._models[n - self.shared])
            return _near_miss(model, self._own.offer(n), n % 4, chance)
        return _described(self._own.offer(n), chance)

    def path(self, n: int) -> str:
        """Return the path of listing n."""
        return f"/imot/{_FIRST_ID + self._ids[n]}"

    def record(self, n: int) -> dict[str, Any]:
        """Return what the page of listing n says."""
        it = self.home(n)
        price = {"amount": it.price, "currency": it.currency} if it.price is not None else None
        area = int(it.area) if it.area == int(it.area) else it.area
        return {
            "ref": str(_FIRST_ID + self._ids[n]),
            "title": it.title,
            "type": it.kind,
            "town": it.city,
            "place": it.quarter,
            "price": price,
            "area": area,
            "floor": _read_floor(it.floor),
            "description": it.text,
        }

    def listings(self, base: str) -> Iterator[Listing]:
        """Yield every listing that is not gone; `base` is the portal's address."""
        for n in self._linked():
            yield Listing(base + self.path(n), "list", self.record(n))

    def change(self, how: str, n: int) -> None:
        """Change listing n: `edit` its price, let it be `gone`, or `back`."""
        if how == "edit":
            self.edits[n] = self.edits.get(n, 0) + 1
        elif how == "gone":
            self.gone.add(n)
        else:
            self.gone.discard(n)

    def number(self, text: str) -> int | None:
        """Return n of a listing's id, or None if there is no such listing."""
        return self._numbers.get(integer(text) - _FIRST_ID)

    def _linked(self) -> list[int]:
        return [n for n in range(self.size) if n not in self.gone]

    # Its answers.

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        if request.path == LIST:
            return self._list(integer(request.query.get("str", "1")))
        if request.path.startswith("/imot/"):
            n = self.number(request.path.removeprefix("/imot/"))
            return not_found() if n is None or n in self.gone else self._detail(n)
        if request.path in ("/_edit", "/_gone", "/_back"):
            n = self.number(request.query.get("id", ""))
            if n is not None:
                self.change(request.path.removeprefix("/_"), n)
            return Response(b"", 204)
        if request.path == "/":
            return _page("Домове", f"<p><a href='{LIST}'>Всички обяви</a></p>")
        return not_found()

    def _list(self, page: int) -> Response:
        linked = self._linked()
        shown = linked[(page - 1) * PER_PAGE : page * PER_PAGE] if page else []
        items = "".join(
            f"<article><h3><a href='{self.path(n)}'>{escape(self.home(n).title)}</a></h3></article>"
            for n in shown
        )
        following = ""
        if page and page * PER_PAGE < len(linked):
            following = f"<a rel='next' href='{LIST}?str={page + 1}'>Напред</a>"
        return _page("Обяви", items + following)

    def _detail(self, n: int) -> Response:
        it = self.home(n)
        price = "По договаряне"
        if it.price is not None:
            price = f"{it.price:,} {'лв' if it.currency == 'BGN' else '€'}".replace(",", " ")
        facts = {
            "Реф. №": str(_FIRST_ID + self._ids[n]),
            "Вид": it.kind,
            "Населено място": it.city,
            "Район": it.quarter,
            "Цена": price,
            "Квадратура": f"{it.area:g} m²".replace(".", ","),
            "Етажност": it.floor,
        }
        rows = "".join(
            f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts.items() if value
        )
        return _page(it.title, f"<dl>{rows}</dl><section class='text'>{escape(it.text)}</section>")


def _described(offer: Offer, chance: Random) -> Home:
    """Return an offer as this portal's people write it."""
    city = chance.choice(_CITIES[offer.city])
    quarter = chance.choice(_QUARTERS[offer.quarter])
    kind = chance.choice(_KINDS[offer.kind])
    price, currency = _priced(offer, chance)
    titles = (f"{kind} в {quarter}, {city}", f"{city}: {kind}, {quarter}", f"{kind} - {quarter}")
    return Home(
        title=chance.choice(titles),
        kind=kind,
        city=city,
        quarter=quarter,
        price=price,
        currency=currency,
        area=_measured(offer, chance),
        floor=_storey(offer, chance),
        text=f"{chance.choice(_PRAISE)} {_BOILERPLATE}",
    )


def _near_miss(model: Offer, other: Offer, way: int, chance: Random) -> Home:
    """Return something that is like a listing of `imoti`, and is another thing."""
    if model.kind == KINDS[PLOT] or model.floor is None or model.floors is None or way == 3:
        # The same quarter and kind, under the title that `imoti` gives them.
        place = model._replace(amount=other.amount, area=other.area, floor=other.floor,
                               floors=other.floors)  # fmt: skip
        if model.kind == KINDS[PLOT] or other.floor is None:
            area = round(model.area * chance.uniform(1.3, 2.5) / 100) * 100
            place = model._replace(area=area)
        title = f"{model.kind.capitalize()}, {model.city}, {model.quarter}"
        return _described(place, chance)._replace(title=title)
    if way == 2 and model.kind in _OTHER_ROOMS:
        # As large, in the same quarter, with other rooms.
        return _described(
            other._replace(kind=_OTHER_ROOMS[model.kind], city=model.city, quarter=model.quarter,
                           area=model.area, amount=model.amount),
            chance,
        )  # fmt: skip
    # Another flat of the same building: above or below, and as large or not.
    storeys = [storey for storey in range(model.floors + 1) if storey != model.floor]
    flat = model._replace(floor=chance.choice(storeys))
    if way == 1:
        factor = chance.choice((0.88, 0.93, 1.07, 1.12))
        flat = flat._replace(area=round(model.area * factor))
        if model.amount is not None:
            flat = flat._replace(amount=round(model.amount * factor))
    # It tells its floor: nobody could tell the two apart without.
    return _described(flat, chance)._replace(floor=f"{flat.floor}/{flat.floors}")


def _priced(offer: Offer, chance: Random) -> tuple[int | None, str]:
    """Return the price in the other currency, or up to 3 % higher or lower."""
    if offer.amount is None:
        return None, ""
    if chance.random() < 0.5:
        if offer.currency == "EUR":
            return round(offer.amount * BGN_PER_EUR), "BGN"
        return round(offer.amount / BGN_PER_EUR), "EUR"
    return round(offer.amount * chance.uniform(0.97, 1.03)), offer.currency


def _measured(offer: Offer, chance: Random) -> float:
    """Return the area as it is, to the tenth, or rounded to five square metres."""
    if offer.kind == KINDS[PLOT]:
        return offer.area
    way = chance.randrange(3)
    if way == 0:
        return offer.area
    if way == 1:
        return round(offer.area + chance.uniform(-0.5, 0.5), 1)
    return round(offer.area / 5) * 5


def _storey(offer: Offer, chance: Random) -> str:
    """Return the floor in one of three ways; some do not tell it."""
    if offer.floor is None or chance.random() < 0.08:
        return ""
    if offer.floor == 0:
        return chance.choice((f"партер/{offer.floors}", "партер"))
    return chance.choice(
        (f"{offer.floor}/{offer.floors}", f"ет. {offer.floor}", f"{offer.floor} от {offer.floors}")
    )


def _read_floor(text: str) -> dict[str, int | None] | None:
    """Return the floor and the floors of such a text."""
    if not text:
        return None
    # As in "3/8", "ет. 3", "3 от 8" and "партер/8".
    first, _, floors = text.removeprefix("ет. ").replace(" от ", "/").partition("/")
    return {"floor": 0 if first == "партер" else int(first), "floors": int(floors or 0) or None}


def _page(title: str, content: str) -> Response:
    text = f"""<!doctype html>
<html lang="bg"><head><meta charset="utf-8"><title>{escape(title)} | Домове</title></head><body>
<header><a href="/">Домове</a></header>
<h1>{escape(title)}</h1>
{content}
<footer>Домове АД</footer></body></html>
"""
    return Response(text.encode())
