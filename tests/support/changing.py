"""A site that is crawled twice: some of its pages say that they have not changed, by ETag or in a
sitemap; others redirect."""

from crawler.examples.server import Request, Response, not_found, redirect, serve

HOST = "changing.localhost"
ENDLESS = "/hops/"
LINKS = (
    "/etag", "/old", "/older", "/out", "/cookie", f"{ENDLESS}0", "/private", "/missing", "/members",
    "/circle", "/sitemap.xml",
)  # fmt: skip


class Changing:
    """The site; `/etag` and the pages of the sitemap lead to pages that nothing else links to."""

    host = HOST

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        path, base = request.path, request.base
        match path:
            case "/robots.txt":
                rules = f"User-agent: *\nDisallow: /private\nSitemap: {base}/sitemap.xml\n"
                return Response(rules.encode(), kind="text/plain")
            case "/sitemap.xml":
                return Response(_sitemap(base), kind="application/xml")
            case "/":
                return _page("start", *LINKS)
            case "/etag":
                if request.headers.get("if-none-match") == '"1"':
                    return Response(b"", status=304)
                page = _page("etag", "/behind-etag")
                return page._replace(headers=(("ETag", '"1"'),))
            case "/dated":
                return _page("dated", "/behind-dated")
            case "/future":
                return _page("future")
            case "/old" | "/older":
                return redirect("/new", 301)
            case "/out":
                return redirect("http://elsewhere.localhost/")
            case "/cookie":
                return redirect("/cookie?PHPSESSID=1") if not request.query else _page("cookie")
            case "/members" if "let-in" not in request.cookies:
                return redirect("/auth", 302, "sid=1")
            case "/auth":
                return redirect("/members", 302, "let-in=1")
            case "/circle":
                return redirect("/circle/2")
            case "/circle/2":
                return redirect("/circle")
            case "/members" | "/new" | "/behind-etag" | "/behind-dated" | "/private":
                return _page(path)
        if path.startswith(ENDLESS):
            return redirect(f"{ENDLESS}{int(path.removeprefix(ENDLESS)) + 1}")
        return not_found()


def _page(name: str, *links: str) -> Response:
    anchors = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    words = f"<h1>{name}</h1><p>{'some words about it ' * 20}</p><ul>{anchors}</ul>"
    return Response(f"<html><body>{words}</body></html>".encode())


def _sitemap(base: str) -> bytes:
    pages = {"/dated": "2020-01-01", "/future": "2099-01-01"}
    urls = "".join(
        f"<url><loc>{base}{path}</loc><lastmod>{day}</lastmod></url>" for path, day in pages.items()
    )
    return f"<urlset>{urls}</urlset>".encode()


if __name__ == "__main__":
    serve([Changing()])
