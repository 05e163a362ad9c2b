"""The report as one HTML file: no script, no network, and scraped text that is only text."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from crawler.analyze import plots, words
from crawler.analyze.facts import Comparison, Distribution, FieldChange, Groups, Profile
from crawler.analyze.plots import text

_STATES = ("completed", "failed", "skipped", "expired", "pending", "processing")
_KINDS = {">": "n", "_": "line", "=": "k", "…": "wide"}
_STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b1f24;--soft:#5d6670;--line:#dfe3e8;--fill:#3b76c4;
--track:#e6eaef;--good:#2f8f5b;--bad:#cc4b40;--warn:#c28a1c;--odd:#8567b5;--calm:#9aa4af;--mark:#b4483e}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1d2126;--ink:#e6e9ed;--soft:#9aa5b1;--line:#30363d;
--fill:#6aa3ea;--track:#2b3138;--good:#4fb37c;--bad:#e8756b;--warn:#dba940;--odd:#a98fd8;--calm:#6b7580;--mark:#f09a8f}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
main{max-width:1040px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:24px;line-height:1.25;margin:0 0 4px}h2{font-size:17px;margin:0 0 12px}
p{margin:4px 0}.soft,small,figcaption small{color:var(--soft)}
section,details{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px;margin:16px 0}
details section{border:0;padding:0;margin:20px 0}summary{cursor:pointer;font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:16px 0}
.cards div{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.cards b{display:block;font-size:22px;line-height:1.3}.cards span{color:var(--soft);font-size:13px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr));gap:16px 28px}
table+.plots,.legend+table{margin-top:16px}
figure{margin:0}figcaption{font-weight:600;margin-bottom:4px}svg{display:block;width:100%}
svg text{font:10.5px system-ui,sans-serif;fill:var(--soft);paint-order:stroke;stroke:var(--card);stroke-width:3px}
.axis{stroke:var(--line)}
.mark{stroke:var(--mark);stroke-dasharray:3 2}.stack{height:22px;border-radius:5px}
.bar{height:8px;min-width:70px;background:var(--track);border-radius:4px;margin:4px 0}
.fill{fill:var(--fill)}.good{fill:var(--good);background:var(--good)}.bad{fill:var(--bad);background:var(--bad)}
.warn{fill:var(--warn);background:var(--warn)}.odd{fill:var(--odd);background:var(--odd)}
.calm{fill:var(--calm);background:var(--calm)}.cool{fill:var(--fill);background:var(--fill)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:8px 0 0}
.legend i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;color:var(--soft);font-weight:600;font-size:13px}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}tr:last-child td{border-bottom:0}
td:first-child{min-width:11em}td:first-child,td.wide{overflow-wrap:anywhere}td.wide{width:38%}.k{min-width:6.5em}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
code{font:13px ui-monospace,monospace}ul.plain{padding-left:18px;margin:4px 0 12px}
.change{color:var(--soft);font-size:13px;margin:2px 0}
@media (max-width:640px){thead{display:none}tr{display:flex;flex-wrap:wrap;gap:0 16px;padding:8px 0}
tr{border-bottom:1px solid var(--line)}tr:last-child{border-bottom:0}td{border:0;padding:0}td:empty{display:none}
td::before{content:attr(data-head) " ";color:var(--soft)}td:first-child,td.wide,td.line{flex:0 0 100%}.k{min-width:0}
td:first-child{font-weight:600}td:first-child::before,td.wide::before,td.line::before{content:none}}
"""


def page(found: Profile | Comparison) -> str:
    """The whole page."""
    if isinstance(found, Comparison):
        title, body = f"{found.a.source} → {found.b.source}", _comparison(found)
    else:
        title, body = (
            f"{found.job} of {found.source}" if found.job else found.source,
            _profile(found),
        )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">
<title>{text(title)} – results</title><style>{_STYLE}</style></head>
<body><main><h1>{text(title)}</h1>
{body}
</main></body></html>
"""


def beside(found: Comparison) -> list[tuple[str, str, str]]:
    """Both runs, number by number."""
    return [(name, show(found.a), show(found.b)) for name, show in _BESIDE.items()]


def _middle(spread: Distribution | None, show: Callable[[float], str]) -> str:
    return show(spread.p50) if spread else words.UNKNOWN


_BESIDE: dict[str, Callable[[Profile], str]] = {
    "source": lambda run: run.source,
    "job": lambda run: run.job or "–",
    "tasks": words.books,
    "results": lambda run: f"{run.results:,}",
    "unreadable": lambda run: f"{run.unreadable:,}",
    "success": lambda run: words.percent(run.success_rate),
    "verdicts": lambda run: words.counts(run.verdicts),
    "parsers": lambda run: words.names(run.parsers),
    "fetch, median": lambda run: _middle(run.fetch_ms, words.ms),
    "parse, median": lambda run: _middle(run.parse_ms, words.ms),
    "page size, median": lambda run: _middle(run.page_bytes, words.size),
}


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already; `>` heads numbers, `_` bars, `=` words that stay
    together, `…` others."""
    kinds = [f' class="{_KINDS[head[0]]}"' if head[:1] in _KINDS else "" for head in heads]
    names = [escape(head.strip("".join(_KINDS))) for head in heads]
    head = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, names, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{k} data-head="{n}">{cell}</td>'
            for k, n, cell in zip(kinds, names, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _cards(cards: Iterable[tuple[str, str]]) -> str:
    return f'<div class="cards">{"".join(f"<div><b>{text(n)}</b><span>{text(w)}</span></div>" for n, w in cards)}</div>'


def _profile(found: Profile) -> str:
    fetch = found.fetch_ms
    cards = [
        (f"{found.results:,}", "results"),
        (words.percent(found.success_rate), words.success(found)),
        (f"{found.pages_per_s:,.1f}" if found.pages_per_s else "–", "pages per second"),
        (
            words.ms(fetch.p50) if fetch else "–",
            "fetch, median" if fetch else f"fetch: {words.UNKNOWN}",
        ),
    ]
    if found.unreadable:
        cards.append((f"{found.unreadable:,}", "could not be read"))
    lines = "".join(
        f'<p class="soft">{text(line)}</p>' for line in [*found.notes, words.rate(found)]
    )
    return "\n".join(
        [
            lines,
            _cards(cards),
            _tasks(found),
            _unreadable(found),
            _fields(found),
            _missing(found),
            _spread(found),
        ]
        + [
            _groups(title, groups)
            for title, groups in (("Domains", found.domains), ("Sites", found.sites))
        ]
        + [_rest(found)]
    )


def _rest(found: Profile) -> str:
    lines = {
        "parsers": words.names(found.parsers),
        "verdicts": words.counts(found.verdicts),
        "attempts": words.counts(found.attempts),
    }
    return _section(
        "The rest", "".join(f"<p>{name}: {text(line)}</p>" for name, line in lines.items())
    )


def _tasks(found: Profile) -> str:
    if found.tasks is None:
        parts = [
            (verdict, count, "good" if verdict == "ok" else "bad")
            for verdict, count in found.verdicts.items()
        ]
        return _section(
            "Verdicts", plots.stacked(parts), f'<p class="soft">{text(words.books(found))}</p>'
        )
    kinds = ("good", "bad", "warn", "odd", "calm", "cool")
    bar = plots.stacked(
        [
            (state, getattr(found.tasks, state), kind)
            for state, kind in zip(_STATES, kinds, strict=True)
        ]
    )
    rows = [
        (
            text(f"{e.reason} ({e.status})"),
            f"{e.count:,}",
            f"{text(e.url)}<br><small>{text(e.message)}</small>",
        )
        for e in found.errors or []
    ]
    title = f"{found.tasks.accepted:,} tasks"
    return _section(title, bar, _table(("reason", ">tasks", "…for example"), rows) if rows else "")


def _unreadable(found: Profile) -> str:
    if not found.unreadable:
        return ""
    items = "".join(f"<li>{text(example)}</li>" for example in found.unreadable_examples)
    return _section(
        f"{found.unreadable:,} could not be read as results", f'<ul class="plain">{items}</ul>'
    )


def _fields(found: Profile) -> str:
    rows = []
    for field in found.fields:
        full = (field.records - field.empty) / found.results
        rows.append(
            (
                f"<code>{text(field.path)}</code>",
                plots.bar((full, "cool"), (field.share - full, "warn")),
                words.percent(field.share),
                f"{field.empty:,}",
                text(words.types(field)),
                words.distinct(field),
                text(words.values(field)),
            )
        )
    note = (
        '<p class="soft">There are even more fields; they were not looked at.</p>'
        if found.fields_capped
        else ""
    )
    heads = ("field", "_", ">records", ">empty", "=type", ">distinct", "…values")
    return _section("Fields", _table(heads, rows), note) if rows else ""


def _missing(found: Profile) -> str:
    parts = ""
    for lack in words.missing(found):
        names = ", ".join(f"<code>{text(name)}</code>" for name in lack.fields)
        items = "".join(
            f"<li>{text(e.url)} <small>{text(e.task_id)}</small></li>" for e in lack.examples
        )
        parts += f'<p><b>{lack.records:,}</b> lack {names}</p><ul class="plain">{items}</ul>'
    return _section("Records that lack what most have", parts) if parts else ""


def _spread(found: Profile) -> str:
    kinds = (
        ("Fetch time", found.fetch_ms, words.ms),
        ("Parse time", found.parse_ms, words.ms),
        ("Page size", found.page_bytes, words.size),
    )
    rows, figures = [], ""
    for title, spread, show in kinds:
        if spread is None:
            rows.append((title, words.UNKNOWN, *[""] * 5))
            continue
        marks = words.percentiles(spread)
        rows.append((title, f"{spread.count:,}", *(show(value) for _, value in marks)))
        figures += plots.histogram(title, spread.histogram, show, marks[:-1])
    if len(found.over_time) > 1:
        time = words.clock if (found.seconds or 0) < 86_400 else words.day
        figures += plots.histogram("Pages over time (UTC)", found.over_time, time)
    table = _table(("", ">pages", ">p50", ">p90", ">p95", ">p99", ">max"), rows)
    return _section("Time and size", table, f'<div class="plots">{figures}</div>')


def _groups(title: str, groups: Groups) -> str:
    most = max((group.results + (group.failed or 0) for group in groups.top), default=0) or 1
    rows = [
        (
            text(group.name),
            plots.bar((group.results / most, "cool"), ((group.failed or 0) / most, "bad")),
            f"{group.results:,}",
            "–" if group.failed is None else f"{group.failed:,}",
        )
        for group in groups.top
    ]
    if groups.other_names:
        failed = "–" if groups.other_failed is None else f"{groups.other_failed:,}"
        rows.append((f"{groups.other_names:,} others", "", f"{groups.other_results:,}", failed))
    return _section(title, _table(("name", "_", ">results", ">no result"), rows)) if rows else ""


def _comparison(found: Comparison) -> str:
    parts = [
        ("the same in both", found.same, "good"),
        ("in both, changed", found.both - found.same, "warn"),
        ("only in A", found.only_a, "bad"),
        ("only in B", found.only_b, "cool"),
    ]
    only = "".join(
        f"<li>only in {letter}: {text(url)}</li>"
        for letter, urls in (("A", found.only_a_examples), ("B", found.only_b_examples))
        for url in urls
    )
    verdicts = [(text(f"{v.a} → {v.b}"), f"{v.count:,}", text(v.url)) for v in found.verdicts]
    heads = ("field", ">A", ">B", ">changed", ">appeared", ">vanished", "=type", "…for example")
    return "\n".join(
        (
            _section(
                "Two runs", _table(("", "A", "B"), [tuple(map(text, row)) for row in beside(found)])
            ),
            _section(
                "Pages", plots.stacked(parts), f'<ul class="plain">{only}</ul>' if only else ""
            ),
            _section(
                "Verdicts that changed", _table(("from → to", ">pages", "…for example"), verdicts)
            )
            if verdicts
            else "",
            _section(
                f"{len(found.fields):,} fields changed, {found.fields_same:,} did not",
                _table(heads, [_change(field) for field in found.fields]) if found.fields else "",
            ),
            *(
                f"<details><summary>{letter}: {text(run.source)}</summary>{_profile(run)}</details>"
                for letter, run in (("A", found.a), ("B", found.b))
            ),
        )
    )


def _change(field: FieldChange) -> tuple[str, ...]:
    shares = (
        words.percent(share) + plots.bar((share, "cool"))
        for share in (field.share_a, field.share_b)
    )
    examples = "".join(
        f'<p>{text(e.old or "(nothing)")} → {text(e.new or "(nothing)")}</p><p class="change">{text(e.url)}</p>'
        for e in field.examples
    )
    counts = (f"{count:,}" for count in (field.changed, field.appeared, field.vanished))
    return (
        f"<code>{text(field.path)}</code>",
        *shares,
        *counts,
        text(words.retyping(field)),
        examples,
    )
