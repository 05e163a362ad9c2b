"""What a record says about a thing, in one form for all sites."""

import io
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from crawler.listings import images
from crawler.listings.duplicates import blocks_of, compare
from crawler.listings.fingerprint import Fingerprint, fingerprint, rooms_in, simhash
from crawler.listings.words import latin, name_words
from crawler.sites.listingfile import Match

MATCH = Match(
    locality=("city",), address=("quarter", "street"), text=("title", "text"), images=("photos",)
)


def _made(**record: Any) -> Fingerprint:
    return fingerprint(record, MATCH)


class TestNames:
    @pytest.mark.parametrize(
        "spellings",
        [
            ("кв. Лозенец", "Lozenets", "ЛОЗЕНЕЦ", "ж.к. Лозенец", "Lozenetz", "Lozenec quarter"),
            ("ж.к. Младост 1", "Mladost-1", "жк Младост1", "zh.k. Mladost 1", "Младост 1"),
            ("гр. София", "Sofia", "София", "Sofiya", "град София"),
            ("Велико Търново", "Veliko Tarnovo", "гр. Велико Търново"),
            ("ул. Иван Вазов 12", "Ivan Vazov str. 12", "улица „Иван Вазов“ №12"),
            ("бул. Цар Борис III", "Tsar Boris III blvd.", "Car Boris III"),
            ("с. Бистрица", "Bistritsa village", "Бистрица"),
            ("ул. Щербаковская", "улица Щербаковская"),
            ("вул. Хрещатик", "Хрещатик вулиця"),
            ("Oak Ave., Apt 5", "OAK AVENUE 5"),
            ("Café Straße", "cafe strasse"),
        ],
    )
    def test_spellings_of_one_place_meet(self, spellings: tuple[str, ...]) -> None:
        """Abbreviations, punctuation, case, Cyrillic and Latin make no difference."""
        assert len({frozenset(name_words(text)) for text in spellings}) == 1

    @pytest.mark.parametrize(
        ("one", "other"),
        [("Младост 1", "Младост 2"), ("Лозенец", "Изток"), ("ул. Борис I", "ул. Борис II")],
    )
    def test_other_places_stay_others(self, one: str, other: str) -> None:
        """A number is part of a name."""
        assert name_words(one) != name_words(other)

    @pytest.mark.parametrize(
        ("text", "spelled"),
        [
            ("Щастие", "shtastie"),
            ("Жълтуша", "zhaltusha"),
            ("Юндола", "yundola"),
            ("Чепеларе", "chepelare"),
            ("Цариградско шосе", "tsarigradsko shose"),
            ("България", "balgaria"),
            ("объезд", "obaezd"),
            ("мыс Эмона", "mys emona"),
            ("Київ", "kiyiv"),
            ("Ґанок", "ganok"),
        ],
    )
    def test_cyrillic_is_spelled_by_the_streamlined_system(self, text: str, spelled: str) -> None:
        """Russian and Ukrainian letters have a spelling, too."""
        assert latin(text) == spelled


class TestValues:
    @pytest.mark.parametrize(
        ("title", "rooms", "kind"),
        [
            ("Двустаен апартамент, София", 2, "apartment"),
            ("Продава 3-стаен", 3, "apartment"),
            ("Two-room apartment", 2, "apartment"),
            ("1-bedroom flat", 2, "apartment"),
            ("Studio in Varna", 1, "apartment"),
            ("Двухкомнатная квартира", 2, "apartment"),
            ("Къща с двор и гараж", None, "house"),
            ("Къщата на Иван", None, "house"),
            ("Парцел, Варна", None, "plot"),
            ("Офис до метростанция", None, "office"),
            ("Доминион", None, ""),
            ("", None, ""),
        ],
    )
    def test_rooms_and_kind_are_read_from_the_title(
        self, title: str, rooms: int | None, kind: str
    ) -> None:
        """If no field has the rooms. A bedroom is not the only room."""
        made = _made(title=title)
        assert (made.rooms, made.kind) == (rooms, kind)

    def test_a_field_with_rooms_goes_before_the_title(self) -> None:
        """As a number, as digits or in words."""
        for value in (4, "4", "четиристаен", "4-room"):
            assert _made(rooms=value, title="Двустаен апартамент").rooms == 4

    @pytest.mark.parametrize(
        ("value", "floor", "floors"),
        [
            ({"floor": 3, "floors": 8}, 3, 8),
            ({"floor": 3, "floors": None}, 3, None),
            (3, 3, None),
            ("3/8", 3, 8),
            ("ет. 3", 3, None),
            ("партер", 0, None),
            (None, None, None),
            (True, None, None),
            ({"floor": "x"}, None, None),
        ],
    )
    def test_floors(self, value: object, floor: int | None, floors: int | None) -> None:
        """As the type `floor` gives them, as a number or as a text."""
        made = _made(floor=value)
        assert (made.floor, made.floors) == (floor, floors)

    @pytest.mark.parametrize(
        ("value", "area"),
        [(87, 87.0), (86.64, 86.6), ("87 кв.м", 87.0), ("1,2 дка", 1200.0), (0, None),
         (-5, None), (float("nan"), None), ("много", None), ([87], None)],
    )  # fmt: skip
    def test_areas(self, value: object, area: float | None) -> None:
        """In square metres, rounded to a tenth."""
        assert _made(area=value).area == area

    def test_only_lev_becomes_euro(self) -> None:
        """By the legal rate; other currencies stay what they are."""
        lev = fingerprint({}, MATCH, 195583.0, "BGN")
        assert (lev.price, lev.currency) == (100000.0, "EUR")
        dollars = fingerprint({}, MATCH, 100.0, "USD")
        assert (dollars.price, dollars.currency) == (100.0, "USD")
        euro = fingerprint({}, MATCH, 100.0, "EUR")
        assert "price" not in compare(euro, dollars).reasons

    def test_the_locality_is_no_part_of_the_address(self) -> None:
        """So that it counts once."""
        made = _made(city="гр. София", quarter="София, кв. Лозенец", street="ул. Крум Попов 5")
        assert made.locality == "sofia"
        assert made.names == ("lozenec", "krum", "popov")
        assert made.numbers == {"5"}


TEXT = (
    "Светъл и просторен апартамент на спокойна улица, близо до парк, училище и спирка на метрото. "
    "Състои се от дневна с кухненски бокс, две спални, баня с тоалетна и две тераси с изглед към "
    "планината. Сградата е от 2019 година, с контролиран достъп, асансьор и подземен паркинг."
)


class TestSimhash:
    def test_a_few_other_words_change_few_bits(self) -> None:
        """Another text changes about half of them."""
        one, near = simhash(TEXT), simhash(TEXT.replace("спокойна", "тиха"))
        far = simhash(" ".join(reversed(TEXT.split())))
        assert one is not None
        assert near is not None
        assert far is not None
        assert (one ^ near).bit_count() <= 14 < (one ^ far).bit_count()

    def test_a_short_text_has_none(self) -> None:
        """Titles are the same on many listings."""
        assert simhash("Двустаен апартамент в Лозенец") is None

    def test_letters_make_no_difference(self) -> None:
        """A text and its transliteration are one text."""
        assert simhash(TEXT) == simhash(latin(TEXT)) == simhash(TEXT.upper())


def _photo(width: int, height: int, form: str, shift: int = 0) -> bytes:
    image = Image.new("RGB", (96, 96))
    image.putdata([((x * 7 + shift * y) % 256, (y * 5) % 256, (x * y) % 256)
                   for y in range(96) for x in range(96)])  # fmt: skip
    target = io.BytesIO()
    image.resize((width, height)).save(target, form)
    return target.getvalue()


class TestImages:
    def test_another_size_and_compression_look_the_same(self) -> None:
        """And another image does not."""
        looks = [
            images.dhash(data)
            for data in (_photo(640, 480, "PNG"), _photo(320, 240, "JPEG"), _photo(640, 480, "GIF"))
        ]
        other = images.dhash(_photo(640, 480, "PNG", shift=11))
        numbers = [int(look, 16) for look in looks if look]
        assert len(numbers) == 3
        assert other
        assert all((numbers[0] ^ it).bit_count() <= images.NEAR for it in numbers)
        assert (numbers[0] ^ int(other, 16)).bit_count() > images.NEAR

    def test_what_is_no_image_has_no_look(self) -> None:
        """Nor has a broken, a blank or a huge one."""
        blank = io.BytesIO()
        Image.new("RGB", (50, 50), "white").save(blank, "PNG")
        photo = _photo(640, 480, "PNG")
        for data in (b"", b"<html>", blank.getvalue(), photo[:500]):
            assert images.dhash(data) is None
        assert images.dhash(photo, max_pixels=640 * 480) is not None
        assert images.dhash(photo, max_pixels=640 * 480 - 1) is None

    def test_without_pillow_only_contents_are_compared(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The extra `images` is needed for looks."""
        photo = _photo(64, 64, "PNG")
        monkeypatch.setitem(sys.modules, "PIL", None)
        images._pillow.cache_clear()
        try:
            assert not images.can_look()
            assert images.dhash(photo) is None
        finally:
            images._pillow.cache_clear()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
FIELDS = ("city", "quarter", "street", "area", "rooms", "floor", "title", "text", "photos")
RECORDS = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=len(FIELDS))


class TestHostileRecords:
    @settings(max_examples=150, deadline=None)
    @given(RECORDS, JSON)
    def test_any_record_has_a_fingerprint(self, record: dict[str, Any], price: Any) -> None:
        """Values of wrong types are left out, and its blocks can be found."""
        made = fingerprint(record, MATCH, price, "EUR")
        assert len(blocks_of(made)) < 200

    def test_a_huge_record_takes_little(self) -> None:
        """Only so much of it is read."""
        long = "дълъг текст с много думи " * 200_000
        nested: Any = long
        for _ in range(500):
            nested = [nested]
        made = _made(title=long, text=long, city=long, quarter=[long] * 200, area=long, floor=long,
                     rooms=long, photos=nested, street=nested)  # fmt: skip
        assert made.simhash is not None
        assert len(made.names) < 200
        assert len(blocks_of(made)) < 200


def test_rooms_of_a_long_number_are_none() -> None:
    """Years and ids are no rooms."""
    assert rooms_in("built 2019 room") is None
