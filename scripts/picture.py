"""Draw a command's terminal as an SVG: `.venv/bin/python scripts/picture.py docs/run.svg COMMAND…`.

The command really runs, in a tmux of 110 columns; what the screen shows at its end is the picture.
"""

import re
import shlex
import subprocess
import sys
import time
from html import escape
from pathlib import Path

COLUMNS, ROWS, LIMIT_S = 110, 40, 600
CHARACTER_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 19, 16
STYLE = "font: 14px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
BACKGROUND, FOREGROUND = "#14181f", "#d7dde5"
PALETTE = {31: "#e06c75", 32: "#98c379", 33: "#e5c07b", 34: "#61afef", 36: "#56b6c2", 70: "#98c379"}
NO_BREAK = "\xa0"  # renderers fold spaces
ESCAPE = re.compile(r"\x1b\[([\d;]*)m")


def screen(command: str) -> list[str]:
    """The lines on a terminal when a command has ended, with their colours."""
    tmux = ["tmux", "-L", f"picture-{time.time_ns()}"]
    typed = f"printf '$ %s\\n' {shlex.quote(command)}; {command}; tmux wait-for -S ended; cat"
    size = ["-x", str(COLUMNS), "-y", str(ROWS)]
    subprocess.run([*tmux, "new-session", "-d", *size, "sh", "-c", typed], check=True)
    try:
        subprocess.run([*tmux, "wait-for", "ended"], check=True, timeout=LIMIT_S)
        shown = subprocess.run([*tmux, "capture-pane", "-ep"], check=True, capture_output=True)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    return shown.stdout.decode().rstrip().splitlines()


def drawn(line: str) -> str:
    """A line as SVG text, one `tspan` for each colour."""
    colour, spans, at = FOREGROUND, [], 0
    for match in [*ESCAPE.finditer(line), None]:
        text = line[at : match.start() if match else None]
        if text:
            spans.append(f'<tspan fill="{colour}">{escape(text).replace(" ", NO_BREAK)}</tspan>')
        if match:
            codes = [int(code or 0) for code in match[1].split(";")]
            colour = PALETTE.get(codes[-1], FOREGROUND)
            at = match.end()
    return "".join(spans)


def picture(lines: list[str]) -> str:
    """The whole picture."""
    width = round(COLUMNS * CHARACTER_WIDTH + 2 * MARGIN)
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    texts = [
        f'<text x="{MARGIN}" y="{MARGIN + LINE_HEIGHT * (at + 0.75):g}">{drawn(line)}</text>'
        for at, line in enumerate(lines)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
    )
    board = f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>'
    return "\n".join([head, board, f'<g style="{STYLE}">', *texts, "</g></svg>", ""])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(picture(screen(" ".join(sys.argv[2:]))))
