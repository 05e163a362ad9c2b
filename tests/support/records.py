"""Pages that show a record in one of many layouts, among what such pages have around it, with the
truth known."""

import random
from collections.abc import Callable, Iterator
from html import escape
from typing import NamedTuple

Rows = list[tuple[str, str]]
"""Labels, and values as HTML."""


class Made(NamedTuple):
    """A page, and the pairs that a reader sees in its record."""

    html: str
    truth: set[tuple[str, str]]


_NAMES = (
    "SMITH JOHN A",
    "Müller, Ilse",
    "ROE JANE & JOHN",
    "Иванова Мария",
    "ACME HOLDINGS LLC",
    "O'Brien Pat",
    "Chen Wei",
)
_STREETS = (
    "123 MAIN ST",
    "4 Birch Lane",
    "ul. Rila 12",
    "Hauptstr. 5",
    "99 COUNTY RD 12",
    "PO BOX 7",
)
_TOWNS = ("SPRINGFIELD IL 62704", "Sofia 1000", "04109 Leipzig", "LINCOLN, NE 68508")
_WORDS = (
    "Residential",
    "VACANT LAND",
    "Single family",
    "Brick",
    "Agricultural",
    "R1 Low density",
    "None",
    "Yes",
)


def _money(dice: random.Random) -> str:
    return dice.choice(("${:,}", "${:,}.00", "{:,} EUR", "{:,}")).format(dice.randint(900, 900_000))


def _day(dice: random.Random) -> str:
    year, month, day = dice.randint(1970, 2026), dice.randint(1, 12), dice.randint(1, 28)
    return dice.choice(
        (
            f"{month}/{day}/{year}",
            f"{year}-{month:02}-{day:02}",
            f"{day}.{month}.{year}",
            f"May {day}, {year}",
        )
    )


def _address(dice: random.Random) -> str:
    lines = [dice.choice(_STREETS), dice.choice(_TOWNS)]
    return "<br>".join(lines) if dice.random() < 0.6 else lines[0]


def _linked(dice: random.Random) -> str:
    return (
        f'<a href="/deeds/{dice.randint(1, 99)}">{dice.randint(100, 999)}/{dice.randint(1, 99)}</a>'
    )


def _number(dice: random.Random) -> str:
    return dice.choice(
        (
            f"{dice.randint(1, 99)}.{dice.randint(10, 99)}",
            str(dice.randint(1, 9999)),
            "12-34-567.008",
        )
    )


def _name(dice: random.Random) -> str:
    return escape(dice.choice(_NAMES))


def _word(dice: random.Random) -> str:
    return escape(dice.choice(_WORDS))


def _legal(dice: random.Random) -> str:
    return (
        f"LOT {dice.randint(1, 40)} BLK {dice.randint(1, 9)} MILL CREEK SUB PHASE 2 N 1/2 OF SEC "
        "12 T3N R4W"
    )


Value = Callable[[random.Random], str]
_LABELS: dict[str, list[tuple[str, Value]]] = {
    "en": [
        ("Owner", _name),
        ("Owner Name", _name),
        ("Site Address", _address),
        ("Mailing Address", _address),
        ("Parcel #", _number),
        ("Parcel ID/Account No.", _number),
        ("Acres", _number),
        ("Land Use", _word),
        ("Assessed Value", _money),
        ("Total Assessed Value of Land", _money),
        ("Living Area (sq. ft.)", _number),
        ("Last Sale Date", _day),
        ("Sale Price", _money),
        ("Tax Year", _number),
        ("School District", _word),
        ("Legal Description", _legal),
        ("Zoning", _word),
        ("Deed Book/Page", _linked),
        ("Year Built", _number),
        ("Homestead?", _word),
        ("2025 Market Value", _money),
        ("Exterior Wall", _word),
        ("# of Stories", _number),
    ],
    "de": [
        ("Eigentümer", _name),
        ("Adresse", _address),
        ("Flurstücksnummer", _number),
        ("Grundstücksfläche (m²)", _number),
        ("Nutzungsart", _word),
        ("Verkehrswert", _money),
        ("Datum des letzten Verkaufs", _day),
        ("Baujahr", _number),
        ("Grundbuch/Blatt", _linked),
        ("Gemarkung", _word),
        ("Kaufpreis", _money),
        ("Anzahl Geschosse", _number),
        ("Wohnfläche", _number),
        ("Bauweise", _word),
        ("Anschrift des Eigentümers", _address),
        ("Denkmalschutz", _word),
    ],
    "bg": [
        ("Собственик", _name),
        ("Адрес", _address),
        ("Идентификатор", _number),
        ("Площ (кв. м.)", _number),
        ("Предназначение", _word),
        ("Данъчна оценка", _money),
        ("Дата на последна сделка", _day),
        ("Етажи", _number),
        ("Нотариален акт №", _linked),
        ("Година на строеж", _number),
        ("Цена", _money),
        ("Вид на имота", _word),
        ("Населено място", _word),
        ("Данъчна основа", _money),
        ("Начин на ползване", _word),
        ("Партида", _number),
    ],
}

_HEADLINES = (
    "Tax sale postponed until further notice",
    "The treasurer's office moves to Mill Street",
    "New hours at the county courthouse this spring",
    "Board of review will hear appeals in May",
)
_SENTENCES = (
    "The office will be closed on Monday because of the holiday.",
    "Payments can be made online or by mail until the end of the month.",
    "This information is believed to be right, but it is not guaranteed.",
    "Please contact the assessor if something in this record is wrong.",
)


def text_of(html: str) -> str:
    """What a reader sees of a value."""
    plain = html.replace("<br>", " ")
    while "<" in plain:
        plain = plain[: plain.index("<")] + plain[plain.index(">") + 1 :]
    for entity, sign in (("&amp;", "&"), ("&#x27;", "'"), ("&nbsp;", " ")):
        plain = plain.replace(entity, sign)
    return " ".join(plain.split())


def _record(dice: random.Random) -> Rows:
    language = dice.choice(("en", "en", "en", "de", "bg"))
    chosen = dice.sample(_LABELS[language], dice.randint(4, 14))
    shout = dice.random() < 0.3
    rows = [(label.upper() if shout else label, value(dice)) for label, value in chosen]
    for at in range(len(rows)):
        if dice.random() < 0.08:
            rows[at] = (rows[at][0], dice.choice(("", "&nbsp;", " ")))
    return rows


_DRESSES = (
    *(
        "{}",
        "{}",
        "{}",
        "{}&nbsp;",
        "\n  {}\n ",
        "<font size=2>{}</font>",
        "<span>{}</span>",
        "<!-- x -->{}",
    ),
    "<span id=ctl00_1>{}</span>",
)
"""What is put around labels and values: nothing that a reader sees."""


def _dressed(rows: Rows, dice: random.Random) -> Rows:
    around_label, around_value = (
        dice.choice((*_DRESSES, "<a href=/help>{}</a>")),
        dice.choice(_DRESSES),
    )
    return [
        (around_label.format(label), around_value.format(value) if value else value)
        for label, value in rows
    ]


def _navigation(dice: random.Random) -> str:
    names = dice.sample(
        ("Home", "Search", "Maps", "Forms", "Contact Us", "Departments", "Pay Taxes", "Sales"), 6
    )
    links = [f'<a href="/{name.lower()}">{name}</a>' for name in names]
    return dice.choice(
        (
            "<nav><ul>" + "".join(f"<li>{link}</li>" for link in links) + "</ul></nav>",
            "<table width=100%><tr>"
            + "".join(f"<td>{link}</td>" for link in links)
            + "</tr></table>",
            "<table>"
            + "".join(
                f"<tr><td>{a}</td><td>{b}</td></tr>"
                for a, b in zip(links[:3], links[3:], strict=True)
            )
            + "</table>",
            "<div id=menu>" + " | ".join(links) + "</div>",
            "<ul class=menu>"
            + "".join(f"<li><strong>{link}</strong></li>" for link in links)
            + "</ul>",
        )
    )


def _news(dice: random.Random) -> str:
    items = [(headline, _day(dice)) for headline in dice.sample(_HEADLINES, 3)]
    shape = dice.choice(
        (
            "<tr><td>{0}</td><td>{1}</td></tr>",
            "<tr><td>{1}</td><td>{0}</td></tr>",
            "<li><strong>{0}</strong> {1}</li>",
            "<li><b>{1}</b> {0}</li>",
            "<div class=item><div class=headline>{0}</div><div class=date>{1}</div></div>",
            "<div class=item><span class=date>{1}</span><span>{0}</span></div>",
            "<p>{0}<br>{1}</p>",
        )
    )
    body = "".join(shape.format(*item) for item in items)
    if shape.startswith("<tr>"):
        return f"<table>{body}</table>"
    return f"<ul>{body}</ul>" if shape.startswith("<li>") else f"<div class=news>{body}</div>"


def _notice(dice: random.Random) -> str:
    sentence = dice.choice(_SENTENCES)
    return dice.choice(
        (
            f"<p>{sentence}</p>",
            f"<p><b>Disclaimer</b> {sentence}</p>",
            f"<p>{sentence} {_day(dice)}</p>",
            f"<ul><li><strong>Important</strong> {sentence}</li><li><strong>New</strong> "
            f"{sentence}</li></ul>",
            f"<table><tr><td>{sentence}</td><td>{_day(dice)}</td></tr></table>",
            f"<div><div>Notice</div><div>{sentence}</div></div>",
        )
    )


def _search(dice: random.Random) -> str:
    years = "".join(f"<option>{year}" for year in range(2020, 2026))
    return dice.choice(
        (
            "<form action=/search><label>Owner name</label><input name=q><button>Search</button>"
            "</form>",
            "<form action=/search><table><tr><td>Last name:</td><td><input type=text name=q></td>"
            f"</tr><tr><td>Tax year</td><td><select name=y>{years}</select></td></tr><tr><td></td>"
            "<td><input type=submit value=Search></td></tr></table></form>",
            "<form class=search><div><label>Search by</label><div><input placeholder='Name'></div>"
            "</div></form>",
        )
    )


def _history(dice: random.Random) -> str:
    """A table of many rows, which is no record."""
    count = dice.randint(3, 6)
    rows = [(_day(dice), _money(dice), _name(dice)) for _ in range(count)]
    cells = "".join(f"<tr><td>{a}</td><td>{b}</td><td>{c}</td></tr>" for a, b, c in rows)
    names = ("Date", "Price", "Buyer")
    head = dice.choice(("<th>{}</th>", "<td><b>{}</b></td>", "<td class=hd>{}</td>"))
    return f"<table><tr>{''.join(head.format(name) for name in names)}</tr>{cells}</table>"


def _pagination(dice: random.Random) -> str:
    pages = [f"<a href='?p={n}'>{n}</a>" for n in range(1, dice.randint(4, 8))]
    return dice.choice(
        (
            "<div class=pagination>" + " ".join(pages) + "</div>",
            "<table><tr><td><a href='?p=1'>Previous</a></td><td><a href='?p=3'>Next</a></td></tr>"
            "</table>",
            "<div><span><a href='?p=1'>Previous</a></span><span><a href='?p=3'>Next</a></span>"
            "</div>",
        )
    )


def _footer(dice: random.Random) -> str:
    return dice.choice(
        (
            "<footer><b>Phone:</b> 555-0100<br><b>Fax:</b> 555-0101</footer>",
            "<div class=footer><p><i>Phone</i><span>555-0100</span></p><p><i>Fax</i>"
            "<span>555-01</span></p></div>",
            "<p>© 2026 County of Mill. All rights reserved.</p>",
            "<table id=footer><tr><td>Phone<td>555-0100<tr><td>Last updated<td>5/1/2026</table>",
        )
    )


def _scrap(dice: random.Random) -> str:
    """Small things that are no record."""
    days = "".join(f"<td>{n}</td>" for n in range(1, 8))
    return dice.choice(
        (
            f"<table><tr>{'<td>Mo</td>' * 7}</tr><tr>{days}</tr><tr>{days}</tr></table>",
            "<div class=crumbs><a href=/>Home</a> &gt; <a href=/p>Parcels</a> &gt; <b>12-34</b>"
            "</div>",
            "<div><span><a href=/print>Print</a></span> <span><a href=/mail>E-mail</a></span>"
            "</div>",
            "<ul class=tabs><li><b>Summary</b></li><li><a href=/tax>Taxes</a></li><li><a "
            "href=/map>Map</a></li></ul>",
            "<div class=hero><div class=logo>County of Mill</div><div class=motto>Land of "
            "rivers</div></div>",
            "<table><tr><td><img src=seal.gif></td><td><b>COUNTY ASSESSOR</b><br>Property "
            "search</td></tr></table>",
            f"<p><strong>{dice.choice(_SENTENCES)}</strong> {dice.choice(_SENTENCES)}</p>" * 2,
            f"<table><tr><td>{_name(dice)}</td><td>{_money(dice)}</td><td>{_day(dice)}</td></tr>"
            "</table>",
            "<div class=grid>"
            + "".join(f"<div><h5>News</h5><p>{sentence}</p></div>" for sentence in _SENTENCES)
            + "</div>",
            "<div><div>8,412</div><div>Parcels</div></div><div><div>12</div><div>Towns</div></div>",
        )
    )


_WARES = ("Oak table", "Garden hose", "Wool scarf", "Desk lamp", "Tea kettle", "Bike pump")
_CLUBS = ("Rovers", "Lokomotiv", "Union", "Ajax", "Sparta", "Levski", "Boca", "Porto")
_AGO = ("3 minutes ago", "an hour ago", "vor 4 Tagen", "преди 6 часа", "hace 2 días", "gestern")
_OPINIONS = ("So true", "Not in my town", "Well said, neighbour", "Who pays for it", "Same here")


def catalogue(dice: random.Random) -> str:
    """Goods with their prices."""
    sign = dice.choice(("£{}.50", "{},99 €", "{} лв.", "EUR {}.00", "{}.90"))
    goods = [(ware, sign.format(dice.randint(3, 99))) for ware in dice.sample(_WARES, 4)]
    if dice.random() < 0.3:
        goods = [
            (f"{goods[0][0]} no. {n} {ware[:3]}", price) for n, (ware, price) in enumerate(goods)
        ]
    shape = dice.choice(
        (
            "<div class=product><div class=title>{}</div><div class=cost>{}</div></div>",
            "<tr><td>{}</td><td>{}</td></tr>",
            "<li><span>{}</span><span>{}</span></li>",
            "<li>{} <b>{}</b></li>",
            "<li><strong>{}</strong> {}</li>",
        )
    )
    body = "".join(shape.format(*item) for item in goods)
    return f"<table>{body}</table>" if shape.startswith("<tr") else f"<ul>{body}</ul>"


def scores(dice: random.Random) -> str:
    """Clubs with their goals, and topics with how often they come."""
    clubs = [(club, str(dice.randint(0, 5))) for club in dice.sample(_CLUBS, 6)]
    pairs = list(zip(clubs[::2], clubs[1::2], strict=True))
    return dice.choice(
        (
            _table(
                [f"<td>{a}</td><td>{n}</td><td>{b}</td><td>{m}</td>" for (a, n), (b, m) in pairs]
            ),
            "<ul>" + "".join(f"<li>{club} <span>{n}</span></li>" for club, n in clubs) + "</ul>",
            "<ul>" + "".join(f"<li><b>{club}</b> ({n})</li>" for club, n in clubs) + "</ul>",
        )
    )


def posts(dice: random.Random) -> str:
    """Members of a forum, each with the same few facts, beside what they wrote."""
    rows = [
        f"<td><b>{name.lower()}{n}</b><br>Messages: {n * 11}<br>Member since: {2001 + n}</td>"
        f"<td>{dice.choice(_SENTENCES)}</td>"
        for n, name in enumerate(dice.sample(_CLUBS, 4))
    ]
    return "".join(_table([row]) for row in rows)


def switches(dice: random.Random) -> str:
    """Languages to choose from."""
    return dice.choice(
        (
            "<div><span>Български</span><span>English</span></div><div><span>Русский</span>"
            "<span>Türkçe</span></div>",
            "<ul><li><b>Italiano</b> Polski</li><li><b>Nederlands</b> Português</li></ul>",
        )
    )


def buttons(dice: random.Random) -> str:
    """Things to do, as words."""
    return dice.choice(
        (
            "<div><b>Download</b> Reply</div><div><b>Edit</b> Delete</div>",
            "<p><span>Teilen</span><span>Drucken</span></p><p><span>Merken</span>"
            "<span>Melden</span></p>",
            "<li><strong>Вход</strong> Регистрация</li><li><strong>Сподели</strong> Печат</li>",
        )
    )


def recent(dice: random.Random) -> str:
    """Headlines with how long ago they are."""
    items = zip(("Bridge to close", "Dog found", "Fair opens"), dice.sample(_AGO, 3), strict=True)
    shape = dice.choice(
        (
            "<li><b>{}</b> <span>{}</span></li>",
            "<li><span class=headline>{}</span><span class=ago>{}</span></li>",
            "<li>{} <em>{}</em></li>",
        )
    )
    return "<ul>" + "".join(shape.format(*item) for item in items) + "</ul>"


def comments(dice: random.Random) -> str:
    """Readers, when they wrote, and what."""
    return "".join(
        f"<div class=comment><span class=who>{who}</span><span class=at>{ago}</span><p>{text}</p>"
        "</div>"
        for who, ago, text in zip(
            ("Mia", "Georgi", "Pedro"), dice.sample(_AGO, 3), dice.sample(_OPINIONS, 3), strict=True
        )
    )


STRANGERS: dict[str, Callable[[random.Random], str]] = {
    part.__name__: part for part in (catalogue, scores, posts, switches, buttons, recent, comments)
}
"""Parts of pages that look like records and are none."""

_COOKIES = (
    "<div id=cookie-banner><p>We use cookies to make this site better for you.</p>"
    "<button>Accept</button></div>",
    "<div class='cookie'><span>Necessary</span><span>Always on</span></div>",
    "",
)


def _around(dice: random.Random, record: str) -> str:
    before = [_navigation(dice), _search(dice), _notice(dice), _scrap(dice)]
    after = [_news(dice), _history(dice), _pagination(dice), _notice(dice), _scrap(dice)]
    after += [part(dice) for part in dice.sample(list(STRANGERS.values()), 2)]
    dice.shuffle(before)
    dice.shuffle(after)
    parts = [dice.choice(_COOKIES), *before[: dice.randint(1, 4)], "<h1>Parcel 12-34</h1>", record]
    parts += [*after[: dice.randint(1, 5)], _footer(dice)]
    return (
        "<html><head><title>Parcel 12-34</title></head><body>" + "\n".join(parts) + "</body></html>"
    )


def _nested(dice: random.Random, inner: str, least: int = 0) -> str:
    for _ in range(dice.randint(least, 3)):
        inner = dice.choice(
            (
                "<table width='100%'><tr><td>{}</td></tr></table>",
                "<table><tbody><tr><td width=10>&nbsp;</td><td valign=top>{}</td></tr></tbody>"
                "</table>",
                "<table><tr><td><img src=logo.gif></td></tr><tr><td>{}</td></tr></table>",
                "<div><table border=0>\n <tr>\n  <td>\n{}\n</td>\n </tr>\n</table></div>",
            )
        ).format(inner)
    return inner


def _by(rows: Rows, count: int) -> Iterator[Rows]:
    return (rows[at : at + count] for at in range(0, len(rows), count))


def _table(rows: list[str]) -> str:
    return "<table>\n" + "\n".join(f"<tr>{row}</tr>" for row in rows) + "\n</table>"


def two_cells(rows: Rows, dice: random.Random) -> str:
    """Labels without a colon in nested tables."""
    return _nested(dice, _table([f"<td>{label}</td><td>{value}</td>" for label, value in rows]), 1)


def _wide(rows: Rows, dice: random.Random, pairs: int) -> str:
    label_cell = dice.choice(
        ("<td>{}</td>", "<td>{}:</td>", "<td><b>{}</b></td>", "<td nowrap>{}</td>")
    )
    lines = [
        "".join(label_cell.format(label) + f"<td>{value}</td>" for label, value in part)
        for part in _by(rows, pairs)
    ]
    return _nested(dice, _table(lines), 1)


def four_cells(rows: Rows, dice: random.Random) -> str:
    """Label, value, label, value."""
    return _wide(rows, dice, 2)


def six_cells(rows: Rows, dice: random.Random) -> str:
    """Three pairs in a row."""
    return _wide(rows, dice, 3)


def coloured(rows: Rows, dice: random.Random) -> str:
    """Labels that only their background tells."""
    mark = dice.choice(
        (
            "class=hdr",
            "bgcolor='#ccccff'",
            "style='background:#eee'",
            "class='bg-light w-25'",
            "align=right",
        )
    )
    lines = [
        "".join(f"<td {mark}>{label}</td><td>{value}</td>" for label, value in part)
        for part in _by(rows, 2)
    ]
    return _nested(dice, _table(lines))


def in_cells(rows: Rows, dice: random.Random) -> str:
    """Label and value in one cell."""
    mark = dice.choice(
        (
            "<b>{}</b><br>",
            "<strong>{}:</strong><br>",
            "<b>{}:</b> ",
            "<span class=lbl>{}</span><br>",
            "<b>{}</b> <br/>",
        )
    )
    lines = [
        "".join(f"<td>{mark.format(label)}{value}</td>" for label, value in part)
        for part in _by(rows, dice.choice((1, 2, 3)))
    ]
    return _nested(dice, _table(lines))


def head_cells(rows: Rows, dice: random.Random) -> str:
    """A `th` for each label."""
    count = dice.choice((1, 1, 2))
    return _nested(
        dice,
        _table(
            ["".join(f"<th>{a}</th><td>{b}</td>" for a, b in part) for part in _by(rows, count)]
        ),
    )


def head_rows(rows: Rows, dice: random.Random) -> str:
    """Labels in one row, values in the next; one table or many."""
    mark = dice.choice(
        (
            "<th>{}</th>",
            "<td><b>{}</b></td>",
            "<td class=head>{}</td>",
            "<td bgcolor=silver>{}</td>",
        )
    )
    parts = []
    for part in _by(rows, dice.choice((3, 4, 5))):
        if len(part) > 2:
            parts.append(
                [
                    "".join(mark.format(label) for label, _ in part),
                    "".join(f"<td>{value}</td>" for _, value in part),
                ]
            )
        else:
            parts.append([f"<th>{label}</th><td colspan=3>{value}</td>" for label, value in part])
    if dice.random() < 0.5:
        return "".join(_table(part) for part in parts)
    return _nested(dice, _table([line for part in parts for line in part]))


def definitions(rows: Rows, dice: random.Random) -> str:
    """A definition list."""
    shape = dice.choice(
        ("<dt>{}</dt><dd>{}</dd>", "<dt>{}:<dd>{}", "<div class=row><dt>{}</dt><dd>{}</dd></div>")
    )
    return "<dl class=details>" + "".join(shape.format(*row) for row in rows) + "</dl>"


def boxes(rows: Rows, dice: random.Random) -> str:
    """A box for each pair, with two in it."""
    shape = dice.choice(
        (
            "<div class=row><div class='col-4'>{}</div><div class='col-8'>{}</div></div>",
            "<div class=field><div class=field__label>{}</div><div class=field__value>{}</div>"
            "</div>",
            "<div class=item><span class=k>{}</span><span class=v>{}</span></div>",
            "<li class=detail><span class=name>{}</span> <span class=data>{}</span></li>",
            "<div class='form-group'><label>{}</label><p class=form-control-static>{}</p></div>",
            "<div class=row>\n <div class=col-sm-3><strong>{}</strong></div>\n <div "
            "class=col-sm-9>{}</div>\n</div>",
            "<div class=card><div class=head>{}</div><p>{}</p></div>",
            "<div><span class=label>{}:</span> {}</div>",
        )
    )
    body = "\n".join(shape.format(*row) for row in rows)
    return f"<ul>{body}</ul>" if shape.startswith("<li") else f"<div class=record>{body}</div>"


def flat_boxes(rows: Rows, dice: random.Random) -> str:
    """Labels and values in turn, with nothing around a pair."""
    shape = dice.choice(
        (
            "<div class=k>{}</div><div class=v>{}</div>\n",
            "<span class=title>{}</span><span class=value>{}</span>\n",
            "<span class=lbl>{}</span> <span>{}</span><br>\n",
            "<div class=label>{}:</div>\n<div>{}</div>\n",
        )
    )
    return "<div class=record>" + "".join(shape.format(*row) for row in rows) + "</div>"


def _shown(value: str, dice: random.Random) -> str:
    state = dice.choice(("readonly", "disabled", "readonly=readonly"))
    return f'<input type=text value="{escape(text_of(value))}" {state}>'


def inputs(rows: Rows, dice: random.Random) -> str:
    """A form that shows a record."""
    shape = dice.choice(
        (
            "<div><label>{}</label><div>{}</div></div>",
            "<p><label>{}:</label> {}</p>",
            "<label>{}</label>{}<br>",
            "<tr><td><label>{}</label></td><td>{}</td></tr>",
            "<tr><td>{}</td><td>{}</td></tr>",
        )
    )
    body = "\n".join(shape.format(label, _shown(value, dice)) for label, value in rows)
    return (
        f"<form method=post>{f'<table>{body}</table>' if shape.startswith('<tr') else body}</form>"
    )


def items(rows: Rows, dice: random.Random) -> str:
    """A list with strong labels."""
    shape = dice.choice(
        (
            "<li><strong>{}</strong> {}</li>",
            "<li><strong>{}:</strong> {}</li>",
            "<li><b>{}</b>: {}</li>",
            "<li><b>{}</b><br>{}</li>",
        )
    )
    return "<ul>" + "\n".join(shape.format(*row) for row in rows) + "</ul>"


def fieldset(rows: Rows, dice: random.Random) -> str:
    """Labels and spans in fieldsets."""
    shape = dice.choice(
        (
            "<label>{}</label><span>{}</span><br>",
            "<div><label for=x>{}</label> <span id=x>{}</span></div>",
            "<label>{}:</label> {}<br>",
        )
    )
    parts = ("".join(shape.format(*row) for row in part) for part in _by(rows, 5))
    return "".join(
        f"<fieldset><legend>Part {n}</legend>{part}</fieldset>" for n, part in enumerate(parts, 1)
    )


def lines(rows: Rows, dice: random.Random) -> str:
    """Bold labels in lines of one paragraph."""
    shape = dice.choice(
        (
            "<b>{}:</b> {}<br>",
            "<strong>{}</strong>: {}<br>\n",
            "<b>{}</b> {}<br>\n",
            "<b>{}</b><br>{}<br><br>\n",
        )
    )
    return "<p>" + "".join(shape.format(*row) for row in rows) + "</p>"


def spaced(rows: Rows, dice: random.Random) -> str:
    """Pairs with an empty column between them."""
    gap = dice.choice(("<td width=20></td>", "<td>&nbsp;</td>", "<td><img src=pixel.gif></td>"))
    label_cell = dice.choice(("<td>{}</td>", "<td class=l>{}</td>", "<td><b>{}:</b></td>"))
    parts = (
        [label_cell.format(label) + f"<td>{value}</td>" for label, value in part]
        for part in _by(rows, 2)
    )
    return _nested(dice, _table([gap.join(part) for part in parts]))


def mixed(rows: Rows, dice: random.Random) -> str:
    """A table with rows of its own beside one that holds another table."""
    half = len(rows) // 2
    outer = [f"<td>{label}</td><td>{value}</td>" for label, value in rows[:half]]
    inner = _table([f"<th>{label}</th><td>{value}</td>" for label, value in rows[half:]])
    at = dice.choice((0, len(outer)))
    return _table([*outer[:at], f"<td colspan=2>{inner}</td>", *outer[at:]])


def spanning(rows: Rows, dice: random.Random) -> str:
    """Rows of four cells, some of two, and headings between them."""
    found, left = ["<td colspan=4>Summary</td>"], list(rows)
    while left:
        if len(left) == 1 or dice.random() < 0.3:
            label, value = left.pop(0)
            found.append(f"<td class=l>{label}</td><td colspan=3>{value}</td>")
        else:
            found.append(
                "".join(f"<td class=l>{a}</td><td>{b}</td>" for a, b in (left.pop(0), left.pop(0)))
            )
    return _nested(dice, _table(found))


def old_forms(rows: Rows, dice: random.Random) -> str:
    """Pages of the nineties: font tags, upper-case markup, cells that nothing closes, a colour for
    labels."""
    colour = dice.choice(("navy", "#800000"))
    label_cell = dice.choice(
        (
            f"<TD ALIGN=RIGHT NOWRAP><FONT COLOR={colour} SIZE=-1><B>{{}}</B></FONT>",
            f"<TD><FONT COLOR={colour}>{{}}</FONT>",
            "<TD BGCOLOR=#EEEEEE><FONT FACE=Arial>{} :</FONT>",
        )
    )
    count = dice.choice((1, 2, 3))
    body = "".join(
        "\n<TR VALIGN=TOP>"
        + "".join(f"{label_cell.format(a)}<TD><FONT FACE=Arial>{b}</FONT>" for a, b in part)
        for part in _by(rows, count)
    )
    return (
        f"<CENTER><TABLE WIDTH=600><TR><TD COLSPAN=2><TABLE BORDER=1>{body}\n</TABLE></TABLE>"
        "</CENTER>"
    )


def rowheaders(rows: Rows, dice: random.Random) -> str:
    """Tables that are made of other elements, with their roles or with a class for each part."""
    shape = dice.choice(
        (
            "<div role=row><span role=rowheader>{}</span><span role=cell>{}</span></div>",
            "<div class=tr><div class=td><p>{}</p></div><div class='td last'><p>{}</p></div></div>",
            "<section class=prop><header>{}</header><div class=content>{}</div></section>",
            "<a class=anchor id=x></a><div class=prop-name>{}</div><div class=prop-value>{}</div>",
            "<details open><summary>{}</summary>{}</details>",
        )
    )
    return "<div role=table class=props>" + "\n".join(shape.format(*row) for row in rows) + "</div>"


def panels(rows: Rows, dice: random.Random) -> str:
    """Cards of today, with a title and a list of pairs in each."""
    shape = dice.choice(
        (
            "<li class='list-item'><div class='d-flex'><div class='text-muted small'>{}</div>"
            "<div>{}</div></div></li>",
            "<li><p class=mb-0>{}</p><p class=fw-bold>{}</p></li>",
            "<li><em>{}</em> <span>{}</span></li>",
            "<li><div class=cell><small>{}</small></div><div class=cell>{}</div></li>",
        )
    )
    parts = ("".join(shape.format(*row) for row in part) for part in _by(rows, 6))
    return "".join(
        f"<section class=card><h3>Part {n}</h3><ul>{part}</ul></section>"
        for n, part in enumerate(parts, 1)
    )


def plain_lines(rows: Rows, dice: random.Random) -> str:
    """A label, a colon and a value as plain text, in an element or a line each."""
    rows = [(text_of(label), value) for label, value in rows]
    shape = dice.choice(
        (
            "<li>{}: {}</li>",
            "<p>{}: {}</p>",
            "<div>{}: {}</div>\n",
            "{}: {}<br>\n",
            "<li class=fact>{} : {}</li>",
            "<p><span>{}</span>: {}</p>",
        )
    )
    body = "".join(shape.format(*row) for row in rows)
    return f"<ul>{body}</ul>" if shape.startswith("<li") else f"<div class=facts>{body}</div>"


def marked_values(rows: Rows, dice: random.Random) -> str:
    """Labels as plain text, and values in an element behind them."""
    rows = [(text_of(label), value) for label, value in rows]
    shape = dice.choice(
        (
            "<li>{} <strong>{}</strong></li>",
            "<li>{} <span>{}</span></li>\n",
            "<p>{} <b>{}</b></p>",
            "<div>{}\n <em>{}</em></div>",
        )
    )
    body = "".join(shape.format(*row) for row in rows)
    return f"<ul>{body}</ul>" if shape.startswith("<li") else f"<div class=facts>{body}</div>"


def colon_cells(rows: Rows, dice: random.Random) -> str:
    """A colon in a cell of its own."""
    mark = dice.choice(("<td>:</td>", "<td width=5> : </td>", "<td align=center><b>:</b></td>"))
    count = dice.choice((1, 1, 2))
    lines = (
        "".join(f"<td>{label}</td>{mark}<td>{value}</td>" for label, value in part)
        for part in _by(rows, count)
    )
    return _nested(dice, _table(list(lines)))


def preformatted(rows: Rows, dice: random.Random) -> str:
    """A text of a machine, with a line for each pair."""
    width = dice.choice((0, 34))
    lead = dice.choice((" ", "."))
    lines = (
        f"{text_of(label).ljust(width, lead)}: {escape(text_of(value), quote=False)}"
        for label, value in rows
    )
    return "<pre>\n" + "\n".join(lines) + "\n</pre>"


def values_first(rows: Rows, dice: random.Random) -> str:
    """Values above or before their labels, with classes that say so."""
    shape = dice.choice(
        (
            "<div class=tile><div class=value>{1}</div><div class=label>{0}</div></div>",
            "<li><span class=fact-number>{1}</span> <span class=fact-label>{0}</span></li>",
            "<div class=kpi><i class=icon></i><p class=kpi__value>{1}</p><p "
            "class=kpi__label>{0}</p></div>",
            "<div><strong class=amount>{1}</strong><br><small class=lbl>{0}</small></div>",
        )
    )
    body = "\n".join(shape.format(*row) for row in rows)
    return f"<ul>{body}</ul>" if shape.startswith("<li") else f"<div class=tiles>{body}</div>"


def dashed(rows: Rows, dice: random.Random) -> str:
    """Bold labels with a dash before the value."""
    dash = dice.choice("–—-")
    shape = dice.choice(
        (
            "<li><b>{0}</b> {2} {1}</li>",
            "<p><strong>{0}</strong> {2} {1}</p>",
            "<b>{0}</b> {2} {1}<br>",
        )
    )
    body = "".join(shape.format(*row, dash) for row in rows)
    return f"<ul>{body}</ul>" if shape.startswith("<li") else f"<div>{body}</div>"


Layout = Callable[[Rows, random.Random], str]
LAYOUTS: dict[str, Layout] = {
    layout.__name__: layout
    for layout in (
        two_cells,
        four_cells,
        six_cells,
        coloured,
        in_cells,
        head_cells,
        head_rows,
        definitions,
        boxes,
        flat_boxes,
        inputs,
        items,
        fieldset,
        lines,
        spaced,
        mixed,
        spanning,
        panels,
        plain_lines,
        marked_values,
        colon_cells,
        preformatted,
        values_first,
        dashed,
    )
}

HELD_OUT: dict[str, Layout] = {layout.__name__: layout for layout in (old_forms, rowheaders)}
"""Written when the reading was done: nothing in it is tuned to these."""


def made(layout: Layout, seed: int) -> Made:
    """A page in a layout; the same for a seed everywhere."""
    dice = random.Random(f"{layout.__name__} {seed}")
    rows = _record(dice)
    truth = {(label, shown) for label, value in rows if (shown := text_of(value))}
    return Made(_around(dice, layout(_dressed(rows, dice), dice)), truth)
