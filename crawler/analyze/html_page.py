"""The report as one HTML file: no script, no network, and scraped text stays text."""

from collections.abc import Sequence
from html import escape

from crawler.analyze import report
from crawler.analyze.compare import Comparison
from crawler.analyze.profile import Profile
from crawler.analyze.report import Section
from crawler.logs import printable

_CLASSES = {">": "number", "…": "wide"}
_COLOURS = ("good", "bad", "warn", "odd", "calm", "fill")
_STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b1f24;--soft:#5d6670;
--line:#dfe3e8;--track:#e6eaef}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1d2126;--ink:#e6e9ed;
--soft:#9aa5b1;--line:#30363d;--track:#2b3138}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1040px;margin:0 auto;padding:24px 16px 48px;overflow-wrap:anywhere}
h1{font-size:24px}h2{font-size:17px;margin:0 0 12px}p{margin:4px 0;white-space:pre-wrap}
section,details{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:16px;margin:16px 0;overflow-x:auto}
svg{display:block;width:100%;height:8px;background:var(--track);border-radius:4px}
.stack{height:22px}.good{fill:#2f8f5b;background:#2f8f5b}.bad{fill:#cc4b40;background:#cc4b40}
.warn{fill:#c28a1c;background:#c28a1c}.odd{fill:#8567b5;background:#8567b5}
.calm{fill:#9aa4af;background:#9aa4af}.fill{fill:#3b76c4;background:#3b76c4}
ul{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:8px 0}
i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;color:var(--soft)}
th,td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}.wide{width:38%}
"""


def page(found: Profile | Comparison) -> str:
    """The whole page."""
    body = _sections(found)
    if isinstance(found, Comparison):
        for letter, run in (("A", found.a), ("B", found.b)):
            summary = f"<summary>{letter}: {_text(run.source)}</summary>"
            body += f"<details>{summary}{_sections(run)}</details>"
    title = _text(report.title(found))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title} – results</title><style>{_STYLE}</style></head>
<body><main><h1>{title}</h1>{body}</main></body></html>
"""


def _text(value: object) -> str:
    """Text from anywhere, inert on a page."""
    return escape(printable(str(value)))


def _sections(found: Profile | Comparison) -> str:
    return "\n".join(_section(each) for each in report.sections(found))


def _section(section: Section) -> str:
    parts = [f"<h2>{_text(section.title)}</h2>"]
    parts += [f"<p>{_text(line)}</p>" for line in section.lines]
    if section.bar:
        parts.append(_bar(section.bar))
    if section.rows:
        parts.append(_table(section))
    return f"<section>{''.join(parts)}</section>"


def _bar(parts: Sequence[tuple[str, int]]) -> str:
    """One bar of several parts, with a legend."""
    total = sum(count for _, count in parts) or 1
    at, bars, legend = 0.0, "", ""
    for number, (name, count) in enumerate(parts):
        if not count:
            continue
        colour = _COLOURS[min(number, len(_COLOURS) - 1)]
        bars += _rect(at, count / total, colour)
        at += count / total
        legend += f'<li><i class="{colour}"></i>{_text(name)} <b>{count:,}</b></li>'
    return f"{_svg(bars, 'stack')}<ul>{legend}</ul>"


def _rect(at: float, share: float, colour: str) -> str:
    return f'<rect x="{at * 100:.2f}" width="{share * 100:.2f}" height="8" class="{colour}"/>'


def _svg(body: str, kind: str) -> str:
    box = 'viewBox="0 0 100 8" preserveAspectRatio="none"'
    return f'<svg class="{kind}" aria-hidden="true" {box}>{body}</svg>'


def _table(section: Section) -> str:
    classes = [_CLASSES.get(head[:1], "") for head in section.heads]
    heads = [_text(head.lstrip(">…")) for head in section.heads]
    html = _row("th", classes, heads)
    for row in section.rows:
        html += _row("td", classes, [_cell(value) for value in row])
    return f"<table>{html}</table>"


def _row(tag: str, classes: Sequence[str], cells: Sequence[str]) -> str:
    html = ""
    for name, cell in zip(classes, cells, strict=True):
        html += f'<{tag} class="{name}">{cell}</{tag}>'
    return f"<tr>{html}</tr>"


def _cell(value: str | float) -> str:
    if isinstance(value, float):
        return report.percent(value) + _svg(_rect(0, value, "fill"), "share")
    return _text(value)
