"""Small plots as inline SVG; colours come from the page's style, so that they suit light and
dark."""

from collections.abc import Callable, Sequence
from html import escape

from crawler.analyze.facts import Bin
from crawler.logs import printable

WIDTH, HEIGHT, _ROW = 360, 110, 12
"""About as wide as a phone, so that the labels keep their size there."""


def text(value: object) -> str:
    """Text from anywhere, inert on a page."""
    return escape(printable(str(value)))


def stacked(parts: Sequence[tuple[str, int, str]]) -> str:
    """One bar of several parts (name, count, class) with its legend; parts that are empty are left
    out."""
    parts = [part for part in parts if part[1]]
    total = sum(count for _, count, _ in parts)
    at, bars, legend = 0.0, "", ""
    for name, count, kind in parts:
        width = 100 * count / total
        title = f"{text(name)} {count:,}"
        bars += f'<rect x="{at:.3f}" width="{width:.3f}" height="10" class="{kind}"><title>{title}</title></rect>'
        legend += f'<li><i class="{kind}"></i>{text(name)} <b>{count:,}</b></li>'
        at += width
    label = ", ".join(f"{text(name)} {count:,}" for name, count, _ in parts)
    return (
        f'<svg class="stack" role="img" aria-label="{label}" viewBox="0 0 100 10" preserveAspectRatio="none">'
        f'{bars}</svg><ul class="legend">{legend}</ul>'
    )


def bar(*shares: tuple[float, str]) -> str:
    """A bar filled by shares of it, each with its class."""
    at, parts = 0.0, ""
    for share, kind in shares:
        parts += f'<rect x="{at * 100:.2f}" width="{share * 100:.2f}" height="8" class="{kind}"/>'
        at += share
    return f'<svg class="bar" aria-hidden="true" viewBox="0 0 100 8" preserveAspectRatio="none">{parts}</svg>'


def histogram(
    title: str,
    bins: Sequence[Bin],
    show: Callable[[float], str],
    marks: Sequence[tuple[str, float]] = (),
) -> str:
    """Bars for bins, lines for marks (percentiles), and what the ends of the scale mean."""
    top = _ROW * len(marks) + 4
    base = top + HEIGHT
    most = max(each.count for each in bins)
    width = WIDTH / len(bins)
    body = ""
    for place, each in enumerate(bins):
        height = HEIGHT * each.count / most
        body += (
            f'<rect class="fill" x="{place * width + 0.5:.1f}" y="{base - height:.1f}" width="{width - 1:.1f}" '
            f'height="{height:.1f}"><title>{show(each.low)} to {show(each.high)}: {each.count:,}</title></rect>'
        )
    for row, (name, value) in enumerate(marks):
        x, y = WIDTH * _place(bins, value), _ROW * (row + 1)
        side = "end" if x > WIDTH / 2 else "start"
        body += (
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8}" y2="{base}"/>'
            f'<text x="{x + (-4 if side == "end" else 4):.1f}" y="{y}" text-anchor="{side}">{name} {show(value)}</text>'
        )
    middle = bins[len(bins) // 2].low
    ends = [(0, "start", bins[0].low), (WIDTH / 2, "middle", middle), (WIDTH, "end", bins[-1].high)]
    for x, side, value in ends[:: 1 if len(bins) > 1 else 3]:
        body += f'<text x="{x}" y="{base + 13}" text-anchor="{side}">{show(value)}</text>'
    body += f'<line class="axis" x1="0" x2="{WIDTH}" y1="{base}" y2="{base}"/>'
    return (
        f"<figure><figcaption>{text(title)} <small>tallest bar: {most:,}</small></figcaption>"
        f'<svg role="img" aria-label="{text(title)}" viewBox="0 0 {WIDTH} {base + 18}">{body}</svg></figure>'
    )


def _place(bins: Sequence[Bin], value: float) -> float:
    """Where on the scale a number lies, 0 to 1; every bin is equally wide, whatever it spans."""
    for place, each in enumerate(bins):
        if value <= each.high:
            span = each.high - each.low
            return (place + ((value - each.low) / span if span else 0.5)) / len(bins)
    return 1.0
