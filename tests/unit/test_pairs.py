"""The pairs of label and value that are read from pages of many layouts, against what their records
hold."""

import random
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from crawler.sites import structured
from crawler.sites.pairs import is_label
from crawler.sites.parser import parse
from tests.support.records import HELD_OUT, LAYOUTS, STRANGERS, Layout, made

URL = "https://county.example/parcels/12-34"
TUNED, UNSEEN = range(30), range(1_000, 1_030)
"""Seeds that the reading was tuned on, and others."""


class Score(NamedTuple):
    """Pairs that were found and are there, that were found, and that are there."""

    right: int
    found: int
    there: int

    @property
    def recall(self) -> float:
        return self.right / self.there

    @property
    def precision(self) -> float:
        return self.right / self.found


def fields(html: str) -> dict[str, object]:
    """What the general reading finds."""
    found = structured.extract(parse(html), URL).get("fields", {})
    assert isinstance(found, dict)
    return found


def score(layouts: Iterable[Layout], seeds: Iterable[int]) -> Score:
    """The sums over pages of some layouts."""
    right = count = there = 0
    for layout in layouts:
        for seed in seeds:
            html, truth = made(layout, seed)
            found = [
                (name, value)
                for name, values in fields(html).items()
                for value in (values if isinstance(values, list) else [values])
            ]
            right, count, there = (
                right + len(truth.intersection(found)),
                count + len(found),
                there + len(truth),
            )
    return Score(right, count, there)


@pytest.mark.parametrize("seeds", [TUNED, UNSEEN], ids=["tuned", "unseen"])
def test_records_are_read_in_all_layouts(seeds: range) -> None:
    """Over all layouts at least 90 % of the pairs are found, and at least 95 % of what is found is
    right."""
    total = score([*LAYOUTS.values(), *HELD_OUT.values()], seeds)

    assert total.recall >= 0.9
    assert total.precision >= 0.95


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_is_read(name: str) -> None:
    """No layout is left out: at least 80 % of its pairs are found, and 90 % of what is found is
    right."""
    own = score([LAYOUTS[name]], UNSEEN)

    assert own.recall >= 0.8
    assert own.precision >= 0.9


@pytest.mark.parametrize("name", HELD_OUT)
def test_layouts_that_nobody_thought_of_are_read_in_part_and_rightly(name: str) -> None:
    """Layouts that the reading was not made for give some pairs, and hardly any that are wrong."""
    own = score([HELD_OUT[name]], UNSEEN)

    assert own.recall >= 0.4
    assert own.precision >= 0.9


@pytest.mark.parametrize("name", STRANGERS)
def test_parts_that_look_like_records_give_nothing(name: str) -> None:
    """Goods with prices, scores, members, languages, buttons, headlines and comments are no
    fields."""
    for seed in range(30):
        part = STRANGERS[name](random.Random(f"{name} {seed}"))

        assert fields(f"<body><h1>Parcel 12-34</h1>{part}<p>All rights reserved.</p>") == {}, part


@pytest.mark.parametrize(
    "html",
    [
        "<table><tr><td>The office is closed on Monday.</td><td>5/1/2026</td></tr></table>",
        "<table><tr><td>Office moves</td><td>5/1/2026</td></tr><tr><td>New hours</td><td>May 3, "
        "2026</td></tr></table>",
        "<table><tr><td>1 May 2026</td><td>The office is closed</td></tr></table>",
        "<table><tr><td><a href=/>Home</a></td><td><a href=/s>Search</a></td></tr></table>",
        "<table><tr><td>Year</td><td><select><option>2025<option>2026</select></td></tr></table>",
        "<p><b>Notice</b> The office is closed on all of these days.</p>" * 3,
        "<dl><dt>How do I appeal?<dd>You can send a letter to the board until May.</dl>",
        "<div><div>12,345</div><div>Parcels</div></div><div><div>12</div><div>Towns</div></div>",
        "<label>Owner name</label><input value='type a name'><button>Search</button>",
        "<footer><b>Phone:</b> 555-0100</footer><div class='page-footer'><dl>"
        "<dt>Phone<dd>555-0100</dl></div>",
        "<div><b>Welcome</b><br>County of Mill</div>",
        "<p>Set <b>Owner</b> to a name.</p><p>Set <b>Acres</b> to 2.</p>",
        "<p><em>Owner</em> is set to a name.</p><p><em>Acres</em> is 2.</p>",
        "<p>He said: we will see.</p><p>She said: we will not.</p><p>They said: perhaps one "
        "day.</p>",
        "<p>Note: closed today</p><p>Warning: wet floor</p><p>Tip: come early</p>",
        "<p>Ann: Yes</p><p>Bob: No</p><p>Ann: Why</p><p>Bob: Well</p><p>Ann: Oh</p><p>Bob: So</p>",
        "<ul><li>Owner: ROE JANE</li><li>The office is closed.</li><li>Acres: 2</li></ul>",
        "<pre><code>name: county\nrate: 2\nfields: none</code></pre>",
        "<dl><dt>When is the tax due?<dd>April 10</dl>",
    ],
)
def test_what_is_no_pair_is_left_out(html: str) -> None:
    """Sentences, headlines with a day, menus, controls, figures above their name and small print
    give no fields."""
    assert fields(html) == {}


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        (
            "<table><tr><td><table><tr><td>Owner<td>ROE JANE<td>Site<td>1 MAIN ST</table></table>",
            {"Owner": "ROE JANE", "Site": "1 MAIN ST"},
        ),
        (
            "<table><tr><td>Owner<td>ROE JANE<tr><td colspan=2><table><tr><th>Acres<td>1.5</table>"
            "</table>",
            {"Owner": "ROE JANE", "Acres": "1.5"},
        ),
        (
            "<table><tr><th>Owner<th>Acres<tr><td>ROE JANE<td>1.5</table>",
            {"Owner": "ROE JANE", "Acres": "1.5"},
        ),
        (
            "<p>Owner: <b>ROE JANE</b><br>Acres: <b>1.5</b></p>",
            {"Owner": "ROE JANE", "Acres": "1.5"},
        ),
        (
            "<p><b>Mail:</b><br>ROE JANE<br>PO BOX 7<br><br>Ask the assessor.</p>",
            {"Mail": "ROE JANE PO BOX 7"},
        ),
        (
            "<ul><li>Owner: ROE JANE</li><li>Acres: 1.5</li></ul>",
            {"Owner": "ROE JANE", "Acres": "1.5"},
        ),
        (
            "<table><tr><td>Owner: ROE JANE<br>Acres: 1.5</td></tr></table>",
            {"Owner": "ROE JANE", "Acres": "1.5"},
        ),
        (
            "<div>Owner：田中</div><div>面積：120</div><div>用途：住宅</div>",
            {"Owner": "田中", "面積": "120", "用途": "住宅"},
        ),
        (
            "<p><b>Land</b> - 500</p><p><b>Balance</b> -120</p>",
            {"Land": "500", "Balance": "-120"},
        ),
        (
            "<p><b>Land Value</b> $500</p><p><b>Total Value</b> $700</p>",
            {"Land Value": "$500", "Total Value": "$700"},
        ),
        (
            "<table><tr><td>Bedrooms<td>3<td>Baths<td>2<tr><td>Stories<td>1<td>Garage<td>2</table>",
            {"Bedrooms": "3", "Baths": "2", "Stories": "1", "Garage": "2"},
        ),
        (
            "<p><b>Status</b> <span class='label ok'>Active</span></p>"
            "<p><b>Use</b> <span class='label ok'>Farm</span></p>",
            {"Status": "Active", "Use": "Farm"},
        ),
        ("<label>Owner</label><input readonly value='ROE JANE'>", {"Owner": "ROE JANE"}),
    ],
)
def test_pairs_are_read_as_they_are_seen(html: str, expected: dict[str, str]) -> None:
    """Innermost tables, one row below its heads, bold values, addresses of several lines, inputs
    that show."""
    assert fields(html) == expected


def test_heads_in_the_middle_of_a_table_begin_another() -> None:
    """Each head names the rows below it, also where it is only bold."""
    for mark in ("<th>{}<th>{}<th>{}", "<td><b>{}</b><td><b>{}</b><td><b>{}</b>"):
        heads = [mark.format("Year", "Tax", "Due"), mark.format("Day", "By", "Sum")]
        html = f"<table><tr>{heads[0]}<tr><td>2025<td>1<td>2<tr><td>2026<td>3<td>4"
        html += f"<tr>{heads[1]}<tr><td>5/1<td>A<td>6<tr><td>5/2<td>B<td>7</table>"

        record = structured.extract(parse(html), URL)

        assert record["tables"] == [
            [{"Year": "2025", "Tax": "1", "Due": "2"}, {"Year": "2026", "Tax": "3", "Due": "4"}],
            [{"Day": "5/1", "By": "A", "Sum": "6"}, {"Day": "5/2", "By": "B", "Sum": "7"}],
        ]
        assert "fields" not in record


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Owner", True),
        ("2025 Market Value", True),
        ("Parcel #", True),
        ("Living Area (sq. ft.)", True),
        ("Площ кв. м.", True),
        ("", False),
        ("$1,200", False),
        ("12 March 2026", False),
        ("The office is closed.", False),
        ("one two three four five six seven", False),
        ("a@b.example", False),
    ],
)
def test_what_can_be_a_label(text: str, expected: bool) -> None:
    """A label is short and has letters; sentences, numbers, dates and addresses are none."""
    assert is_label(text) is expected
