"""The site that is crawled: parcel-like pages, the same for a seed everywhere, and nginx in front
of them."""

import json
import random
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SEED = 20261116
PAGES = 20_000
FAST, SLOW, TLS = 8801, 8802, 8803
"""The ports: at once; after 100 to 300 ms; at once, over TLS."""
MANY_DOMAINS = 1_000

_WORDS = (  # noqa: SIM905 - words read better as words
    "assessment boundary building certified county deed dwelling easement exemption frontage "
    "improvement instrument interior land levy lot map market mill mortgage municipal neighborhood "
    "notice office owner parcel plat property recorded residential roll route school section sewer "
    "sketch soil street structure survey tax township transfer valuation water zoning"
).split()
_STREETS = (
    "Alder",
    "Birch",
    "Cedar",
    "Dogwood",
    "Elm",
    "Fir",
    "Ginkgo",
    "Hazel",
    "Juniper",
    "Larch",
    "Maple",
    "Oak",
)
_NAMES = (
    "Adams",
    "Baker",
    "Castro",
    "Diaz",
    "Evans",
    "Fischer",
    "Garcia",
    "Hoang",
    "Ivanova",
    "Jones",
    "Kim",
    "Lopez",
)
_USES = (
    "Single family",
    "Duplex",
    "Vacant land",
    "Farm",
    "Retail",
    "Office",
    "Warehouse",
    "Condominium",
)

FIELDS = {
    "parcel": "#parcel",
    "owner": "td.owner",
    "address": "td.address",
    "county": "td.county",
    "use": "td.use",
    "acres": "td.acres",
    "value": "td.value",
    "sold": "td.sold",
}
"""The eight fields that every contestant extracts, with a selector for each."""


def sentence(dice: random.Random) -> str:
    """Some words."""
    return " ".join(dice.choices(_WORDS, k=dice.randint(8, 18))).capitalize() + "."


def page(number: int, pages: int = PAGES) -> str:
    """One page of 20 to 60 KB: a record, tables, a description as JSON-LD, links, words."""
    dice = random.Random(SEED * 1_000_003 + number)
    parcel = f"{number:05d}-{dice.randint(100, 999)}"
    owner = f"{dice.choice(_NAMES)}, {dice.choice(_NAMES)} {dice.choice('ABCDEFGHK')}"
    address = f"{dice.randint(1, 9999)} {dice.choice(_STREETS)} Street"
    county, use = f"{dice.choice(_STREETS)} County", dice.choice(_USES)
    acres, value = dice.randint(5, 4000) / 100, dice.randint(20, 900) * 1_000
    sold = f"{dice.randint(1970, 2025)}-{dice.randint(1, 12):02d}-{dice.randint(1, 28):02d}"
    described = {
        "@context": "https://schema.org",
        "@type": "Place",
        "name": f"Parcel {parcel}",
        "address": {"@type": "PostalAddress", "streetAddress": address, "addressRegion": county},
        "additionalProperty": [{"@type": "PropertyValue", "name": "acres", "value": acres}],
    }
    rows = [
        ("Owner", "owner", owner), ("Address", "address", address), ("County", "county", county),
        ("Use", "use", use), ("Acres", "acres", f"{acres:.2f}"), ("Value", "value", f"${value:,}"),
        ("Last sale", "sold", sold),
    ]  # fmt: skip
    parts = [
        f"<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>Parcel {parcel} | "
        f"Assessor</title><meta name='description' content='{sentence(dice)}'><link "
        f"rel='canonical' href='/pages/{number:05d}.html'><script "
        f"type='application/ld+json'>{json.dumps(described)}</script></head><body><header><nav>"
        "<ul>",
        *(
            f"<li><a href='/menu/{n}.html'>{dice.choice(_WORDS).title()}</a></li>"
            for n in range(24)
        ),
        f"</ul></nav></header><main><h1 id='parcel'>{parcel}</h1><table class='record'>",
        *(f"<tr><th>{name}</th><td class='{kind}'>{text}</td></tr>" for name, kind, text in rows),
        "</table>",
    ]
    size, wanted, year = sum(map(len, parts)), dice.randint(20_500, 59_500), 2025
    while size < wanted:
        part = [
            f"<section><h2>Year {year}</h2><p>{sentence(dice)}</p><table><tr><th>Tax</th>"
            "<th>Due</th></tr>"
        ]
        part += [
            f"<tr><td><span>{dice.choice(_WORDS)}</span></td>"
            f"<td>${dice.randint(10, 9999):,}.00</td></tr>"
            for _ in range(8)
        ]
        part.append("</table><p>")
        part += [
            f"<a href='/pages/{dice.randrange(pages):05d}.html'>{dice.choice(_STREETS)} "
            f"{dice.randint(1, 99)}</a> "
            for _ in range(4)
        ]
        part.append(f"</p><p>{sentence(dice)} {sentence(dice)}</p></section>")
        parts += part
        size, year = size + sum(map(len, part)), year - 1
    parts.append("</main><footer><p>County Assessor</p></footer></body></html>\n")
    return "".join(parts)


def write(folder: Path, pages: int = PAGES) -> None:
    """Write the site, once."""
    stamp = folder / f".written-{SEED}-{pages}"
    if stamp.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "pages").mkdir(parents=True)
    (folder / "robots.txt").write_text("User-agent: *\nDisallow: /private/\n")
    for number in range(pages):
        (folder / "pages" / f"{number:05d}.html").write_text(page(number, pages))
    stamp.touch()


def urls(port: int, count: int, scheme: str = "http") -> list[str]:
    """The addresses of the first pages."""
    return [f"{scheme}://127.0.0.1:{port}/pages/{number:05d}.html" for number in range(count)]


def domains() -> list[str]:
    """A thousand addresses of this machine, each a domain of its own; all serve the same pages."""
    return [f"127.1.{number // 250}.{number % 250 + 1}" for number in range(MANY_DOMAINS)]


@contextmanager
def served(folder: Path, work: Path) -> Iterator[None]:
    """Nginx on loopback, with one process, as long as this lasts."""
    work.mkdir(parents=True, exist_ok=True)
    certificate(work)
    config = work / "nginx.conf"
    config.write_text(_config(folder, work))
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    (work / "nginx.pid").unlink(missing_ok=True)
    with (work / "error.log").open("w") as log:
        server = subprocess.Popen(
            [program, "-p", str(work), "-c", str(config), "-e", "stderr"], stderr=log
        )
    try:
        _wait_until_it_answers(server, work / "nginx.pid")
        yield
    finally:
        server.terminate()
        server.wait(20)


def _wait_until_it_answers(server: "subprocess.Popen[bytes]", pid: Path) -> None:
    end = time.monotonic() + 20
    while not pid.exists():  # only then has it got its ports: another's nginx may answer on them
        if time.monotonic() > end or server.poll() is not None:
            raise OSError(f"nginx has not started; see {pid.with_name('error.log')}")
        time.sleep(0.05)
    urllib.request.urlopen(f"http://127.0.0.1:{FAST}/robots.txt", timeout=20).close()


def certificate(work: Path) -> Path:
    """A certificate for 127.0.0.1, to be trusted through SSL_CERT_FILE."""
    path = work / "tls.pem"
    if not path.exists():
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
             "-nodes", "-days", "3650", "-subj", "/CN=127.0.0.1", "-addext",
             "subjectAltName=IP:127.0.0.1", "-keyout", str(work / "tls.key"), "-out", str(path)],
            check=True, capture_output=True,
        )  # fmt: skip
    return path


def _config(folder: Path, work: Path) -> str:
    delays = "\n".join(f"    5% 0.{ms:03d};" for ms in range(105, 295, 10))
    many = "\n".join(f"    listen {address}:{FAST};" for address in domains())
    module = Path("/usr/lib/nginx/modules/ngx_http_echo_module.so")
    return f"""
load_module {module};
worker_processes 1;
daemon off;
user root;
pid {work}/nginx.pid;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  types {{ text/html html; text/plain txt; }}
  root {folder};
  client_body_temp_path {work}/body;
  proxy_temp_path {work}/proxy;
  fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi;
  scgi_temp_path {work}/scgi;
  split_clients $uri $delay {{
{delays}
    * 0.295;
  }}
  server {{
    listen 127.0.0.1:{FAST} backlog=4096;
{many}
  }}
  server {{
    listen 127.0.0.1:{SLOW} backlog=4096;
    location / {{ echo_sleep $delay; echo_exec @page; }}
    location @page {{ }}
  }}
  server {{
    listen 127.0.0.1:{TLS} ssl backlog=4096;
    ssl_certificate {work}/tls.pem;
    ssl_certificate_key {work}/tls.key;
  }}
}}
"""
