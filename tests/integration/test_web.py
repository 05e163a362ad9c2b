"""The web as it is, through the whole corridor: robots.txt, limits, walls, unchanged pages,
sessions."""

import json
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise

import pytest

from crawler.history import timeline
from tests.support.pages import Answer, Pages, parcel
from tests.support.site import ROOT
from tests.support.stack import Folder, wait_for


@pytest.fixture
def pages() -> Iterator[Pages]:
    """A site with ten good pages."""
    with Pages() as site:
        site.answers |= {f"/page/{n}": Answer(parcel(n)) for n in range(10)}
        yield site


def urls(pages: Pages, count: int = 10) -> list[str]:
    """The URLs of the first good pages."""
    return [f"{pages.url}/page/{n}" for n in range(count)]


def test_what_robots_txt_forbids_is_skipped_and_said(folder: Folder, pages: Pages) -> None:
    """Its refusals are recorded as such and shown; the file is asked for once, and can be ignored
    on demand."""
    pages.answers["/robots.txt"] = Answer(
        "User-agent: *\nDisallow: /page/3\n", headers={"Content-Type": "text/plain"}
    )
    file = folder.write("pages.txt", urls(pages))

    done = folder.crawler("run", str(file), "--workers", "2")

    assert done.returncode == 1, done.stderr
    assert "1 skipped (1 by robots.txt)" in done.stderr
    assert "1 skipped: robots" in done.stdout
    assert sorted(pages.paths()) == sorted(f"/page/{n}" for n in range(10) if n != 3)
    assert [asked.path for asked in pages.asked].count("/robots.txt") == 1
    assert (
        "does not let crawler fetch this page"
        in folder.crawler("why", f"{pages.url}/page/3").stdout
    )

    done = folder.crawler("run", str(file), "--job", "again", "--ignore-robots")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/page/3" in pages.paths()


def test_a_rate_is_kept_over_processes_and_the_audit_proves_it(
    folder: Folder, pages: Pages
) -> None:
    """Three processes on one domain at 5/s: no window of their requests has more, and the server's
    log agrees."""
    pages.answers |= {f"/page/{n}": Answer(parcel(n)) for n in range(30)}
    file = folder.write("pages.txt", urls(pages, 30))

    done = folder.crawler("run", str(file), "--workers", "3", "--rate", "5/s")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 of them at 127.0.0.1: 5/s, 5 at a time" in done.stderr
    asked = [each.at for each in pages.asked]
    assert len(asked) == 31  # with robots.txt
    assert (
        asked[-1] - asked[0] >= 5
    )  # 6 s, less what the server may have been late to note the first
    audit = folder.crawler("audit", "127.0.0.1")
    assert audit.returncode == 0, audit.stdout
    assert "31 requests" in audit.stdout
    assert "No limit was broken." in audit.stdout


def test_the_default_is_polite(folder: Folder, pages: Pages) -> None:
    """Without a word about it, a domain gets two requests a second."""
    del folder.env["CRAWLER_RATE"]
    file = folder.write("pages.txt", urls(pages, 4))

    done = folder.crawler("run", str(file), "--workers", "2")

    assert done.returncode == 0, done.stdout + done.stderr
    asked = [each.at for each in pages.asked]
    assert asked[-1] - asked[0] >= 1.9  # robots.txt and four pages
    [facts] = json.loads(folder.crawler("audit", "--json").stdout)
    assert (facts["limits"], facts["breaches"]) == (["2/s, 2 at a time"], [])


def test_a_rate_limit_of_celery_limits_domains(
    folder: Folder, pages: Pages, redis_url: str
) -> None:
    """An annotation `rate_limit` is the default rate of each domain, over all processes; no message
    waits for it."""
    folder.env |= {"REDIS_URL": redis_url, "PYTHONPATH": str(ROOT)}
    del folder.env["CRAWLER_RATE"]
    folder.redis().flushall()
    folder.start(
        "celery", "-A", "tests.support.annotated", "worker", "-Q", "urgent,default", "-c", "2"
    )
    wait_for(lambda: len(folder.children()) == 2, 60, "the worker's children")

    folder.crawler("bulk", "import", str(folder.write("pages.txt", urls(pages, 6))))
    folder.wait_until_done(6, 60)

    [facts] = json.loads(folder.crawler("audit", "--json").stdout)
    assert facts["limits"] == ["5/s, 5 at a time"]
    assert (facts["requests"], facts["breaches"]) == (7, [])


def test_calls_keep_the_rate_of_their_annotation_over_two_workers(
    folder: Folder, pages: Pages, redis_url: str
) -> None:
    """`crawl_url`, limited to 10/m, sends no more to a domain, whichever worker has the call."""
    folder.env |= {
        "REDIS_URL": redis_url,
        "PYTHONPATH": str(ROOT),
        "CRAWLER_ALLOW_NETS": "127.0.0.0/8",
        "ANNOTATED_TASK": "crawl_url",
    }
    del folder.env["CRAWLER_RATE"]
    folder.redis().flushall()
    for n in range(2):
        pages.answers[f"/page/{n}"] = Answer(parcel(n))
    queues = ("-Q", "urgent,default", "-c", "1")
    for _ in range(2):
        folder.start("celery", "-A", "tests.support.annotated", "worker", *queues)
    wait_for(lambda: len(folder.children()) == 2, 60, "the workers' children")

    for n in range(2):
        args = f'["{pages.url}/page/{n}", "research-123", {{}}]'
        folder.start("celery", "-A", "crawler", "call", "crawl_url", "--args", args)
    folder.wait_until_done(2, 120)

    [facts] = json.loads(folder.crawler("audit", "--json").stdout)
    assert facts["limits"] == ["10/m, 2 at a time"]
    assert (facts["requests"], facts["breaches"]) == (3, [])  # with robots.txt
    asked = [each.at for each in pages.asked]
    assert all(later - earlier > 5.5 for earlier, later in pairwise(asked))


def test_a_domain_that_blocks_is_left_alone(folder: Folder, pages: Pages) -> None:
    """Some blocks in a row open its circuit: nothing more is asked, tasks wait unfailed, and
    `domains` says so."""
    for n in range(10):
        pages.answers[f"/page/{n}"] = Answer("no", 503)
    folder.crawler("up", "--workers", "2", CRAWLER_RATE="20/s", CIRCUIT_BREAKER_FAIL_MAX="3")
    folder.crawler("bulk", "import", str(folder.write("pages.txt", urls(pages))), "--ignore-robots")

    opened = wait_for(
        lambda: "circuit open until" in folder.crawler("domains").stdout, 60, "an open circuit"
    )

    assert opened
    assert len(pages.paths()) < 10
    books = folder.books()
    assert (books.failed, books.open) == (0, 10)
    assert "because http_503" in folder.crawler("domains").stdout
    asked = len(pages.paths())
    for n in range(10):
        pages.answers[f"/page/{n}"] = Answer(parcel(n))
    assert folder.crawler("domains", "reset", "127.0.0.1").returncode == 0
    wait_for(lambda: len(pages.paths()) > asked, 60, "requests after the reset")
    folder.wait_until_done(10, 90)


def test_a_redirect_takes_a_permit_too(folder: Folder, pages: Pages) -> None:
    """Pages that each redirect once are asked for at half the pace: the server counts every
    request."""
    for n in range(5):
        pages.answers[f"/old/{n}"] = Answer("", 302, {"Location": f"/page/{n}"})
    file = folder.write("pages.txt", [f"{pages.url}/old/{n}" for n in range(5)])

    done = folder.crawler("run", str(file), "--rate", "5/s", "--ignore-robots")

    assert done.returncode == 0, done.stdout + done.stderr
    asked = [each.at for each in pages.asked]
    assert len(asked) == 10
    assert asked[-1] - asked[0] >= 1.7
    [facts] = json.loads(folder.crawler("audit", "--json").stdout)
    assert (facts["requests"], facts["breaches"]) == (10, [])


def test_an_unchanged_page_is_stored_as_such(folder: Folder, pages: Pages) -> None:
    """With its ETag known one asks for changes; 304 keeps the earlier record and stores no body."""
    pages.answers["/page/1"] = Answer(parcel(1), headers={"ETag": '"one"'})
    pages.answers["/page/2"] = Answer(parcel(2), headers={"ETag": '"two"'})
    file = folder.write("pages.txt", urls(pages, 3))
    assert folder.crawler("run", str(file)).returncode == 0
    first = {result["url"]: result for result in folder.results()}

    pages.answers["/page/2"] = Answer(parcel(2, "Otto Lindgren"), headers={"ETag": '"three"'})
    assert folder.crawler("run", str(file)).returncode == 0

    again = {result["url"]: result for result in folder.results()[3:]}
    same, changed, plain = (again[url] for url in (urls(pages)[1], urls(pages)[2], urls(pages)[0]))
    assert (same["verdict"], same["status_code"]) == ("unchanged", 304)
    assert same["data"] == first[same["url"]]["data"]
    assert same["raw"] == first[same["url"]]["raw"]
    assert same["same_as"] == first[same["url"]]["task_id"]
    assert (changed["verdict"], changed["data"]["fields"]["Owner"]) == ("ok", "Otto Lindgren")
    assert (plain["verdict"], plain["same_as"]) == ("ok", first[plain["url"]]["task_id"])
    timeline = folder.crawler("why", same["task_id"]).stdout
    assert "verdict unchanged" in timeline
    assert folder.crawler("doctor").returncode == 0


@pytest.mark.parametrize("gone", ["pruned", "lost", "accepted as lost"])
def test_a_page_that_is_gone_is_fetched_again(folder: Folder, pages: Pages, gone: str) -> None:
    """Of a page that is no longer stored nobody asks whether it has changed: a new run stores it
    again."""
    pages.answers["/page/1"] = Answer(parcel(1), headers={"ETag": '"one"'})
    file = folder.write("pages.txt", [f"{pages.url}/page/1"])
    assert folder.crawler("run", str(file)).returncode == 0
    if gone == "pruned":
        assert folder.crawler("prune", "--raw", "--older-than", "0s").returncode == 0
    else:
        for path in (folder.data / "raw").iterdir():
            path.unlink()
    if gone == "accepted as lost":
        assert folder.crawler("job", "accept", "pages.txt").returncode == 0

    ran = folder.crawler("run", str(file))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "if-none-match" not in pages.asked[-1].headers
    with closing(folder.lpm()) as lpm:
        *_, again = lpm.results.read()
    assert (again["verdict"], again["job"]) == ("ok", "pages.txt-2")
    assert parcel(1) in folder.crawler("raw", again["url"]).stdout
    assert folder.crawler("job", "verify", "pages.txt-2").returncode == 0


def test_the_same_content_is_noted_and_kept(folder: Folder, pages: Pages) -> None:
    """Two addresses with the same page are two results, and the second says so."""
    pages.answers["/copy"] = Answer(parcel(1))
    file = folder.write("pages.txt", [f"{pages.url}/page/1", f"{pages.url}/copy"])

    assert folder.crawler("run", str(file)).returncode == 0

    results = folder.results()
    noted = [result["same_as"] for result in results]
    assert len(results) == 2
    assert noted.count(None) == 1
    assert {result["task_id"] for result in results} >= {each for each in noted if each}


def test_a_wall_is_never_a_success(folder: Folder, pages: Pages) -> None:
    """A challenge dressed as 200 fails with its vendor, goes to quarantine, and leaves good pages
    alone."""
    challenge = (
        "<!DOCTYPE html><html><head><title>Just a moment...</title></head><body>"
        "<h1>county.example</h1><p>Verifying you are human. This may take a few seconds.</p>"
        '<script src="/cdn-cgi/challenge-platform/h/b/orchestrate/chl_page/v1"></script>'
        "</body></html>"
    )
    pages.answers["/wall"] = Answer(challenge, 200, {"Server": "cloudflare"})
    file = folder.write("pages.txt", [*urls(pages, 2), f"{pages.url}/wall"])
    (folder.path / "config" / "sites").mkdir(parents=True)
    (folder.path / "config" / "scraping_defaults.yaml").write_text("retry:\n  attempts: 1\n")

    done = folder.crawler("run", str(file))

    assert done.returncode == 1
    assert "1 failed: captcha" in done.stdout
    assert len(list((folder.data / "raw").glob("*-quarantine-*.warc.gz"))) == 1
    timeline = folder.crawler("why", f"{pages.url}/wall").stdout
    assert "cloudflare" in timeline
    assert "decision retry later, but no attempt is left" in timeline
    assert "Just a moment" in folder.crawler("raw", f"{pages.url}/wall").stdout
    assert folder.crawler("doctor").returncode == 0


def test_retry_after_is_kept_and_told(folder: Folder, pages: Pages) -> None:
    """A 429 that asks for two seconds gets them, and the timeline says so."""
    pages.answers["/page/1"] = Answer("busy", 429, {"Retry-After": "2"})
    file = folder.write("pages.txt", urls(pages, 2))
    run = folder.start("crawler", "run", str(file))
    wait_for(lambda: "/page/1" in pages.paths(), 60, "the first attempt")
    pages.answers["/page/1"] = Answer(parcel(1))

    assert run.wait(120) == 0, folder.log(run)

    first, second = (asked.at for asked in pages.asked if asked.path == "/page/1")
    assert second - first >= 2
    assert "slow the domain down" in folder.crawler("why", f"{pages.url}/page/1").stdout


def failing(times: int) -> Callable[[str], Answer | None]:
    """A rule by which each page fails so often before it is given, every other one with 429 instead
    of 503."""
    tries: Counter[str] = Counter()

    def rule(path: str) -> Answer | None:
        tries[path] += 1
        if not path.startswith("/page/") or tries[path] > times:
            return None
        return Answer("not now", 429 if int(path.removeprefix("/page/")) % 2 else 503)

    return rule


def test_waits_grow_and_are_random(folder: Folder, pages: Pages) -> None:
    """After each 503 or 429 a page waits for a random time below a bound that doubles: here 0.5, 1
    and 2 s."""
    # Given a server that fails each of 48 pages three times
    pages.answers |= {f"/page/{n}": Answer(parcel(n)) for n in range(48)}
    pages.rule = failing(3)
    (folder.path / "config").mkdir()
    (folder.path / "config" / "scraping_defaults.yaml").write_text(
        "retry: {attempts: 4, base_s: 0.1}\n"
    )

    # When they are collected
    done = folder.crawler("run", str(folder.write("pages.txt", urls(pages, 48))), "--workers", "2")

    # Then each was asked for four times, never before its time
    assert done.returncode == 0, done.stdout + done.stderr
    assert Counter(pages.paths()) == {f"/page/{n}": 4 for n in range(48)}
    waits = [waits_of(folder, pages, n) for n in range(48)]
    # And no wait is above its bound, one of 24 is above half of it (but once in 16 million times),
    # and they differ
    for of_a_kind in (waits[::2], waits[1::2]):
        for failure, waits_s in enumerate(zip(*of_a_kind, strict=True)):
            bound_s = 0.5 * 2**failure
            assert max(noted_s for noted_s, _ in waits_s) <= bound_s
            assert max(asked_s for _, asked_s in waits_s) > bound_s / 2
        assert min(asked_s for _, asked_s in waits_s) < bound_s


def waits_of(folder: Folder, pages: Pages, n: int) -> list[tuple[float, float]]:
    """How long a page was left alone after each failure, since that was noted and since it was
    asked for.

    The true wait lies between the two, however slow the machine is.
    """
    lpm = folder.lpm()
    [task] = lpm.tasks.find(urls(pages, n + 1)[n])
    failed = [step for step in timeline(lpm, task).steps if "not_before" in step.detail]
    lpm.close()
    shift_s = time.time() - time.monotonic()
    asked = [each.at + shift_s for each in pages.asked if each.path == f"/page/{n}"]
    until = [step.detail["not_before"] for step in failed]
    assert all(later > end - 0.01 for later, end in zip(asked[1:], until, strict=True))
    return [
        (end - step.at, end - at)
        for end, step, at in zip(until, failed, asked, strict=False)
        if step.at
    ]


def test_some_failures_are_tried_again_and_others_are_not(folder: Folder, pages: Pages) -> None:
    """A page that answers 503 once is collected by a second attempt; one that answers 404 has
    failed with its first."""
    pages.rule = failing(1)
    file = folder.write("pages.txt", [urls(pages, 1)[0], f"{pages.url}/gone"])
    (folder.path / "config").mkdir()
    (folder.path / "config" / "scraping_defaults.yaml").write_text("retry: {base_s: 0.1}\n")

    done = folder.crawler("run", str(file), "--workers", "1")
    listed = folder.crawler("tasks", "list", "--json").stdout
    soft, hard = (folder.crawler("why", url).stdout for url in file.read_text().split())

    assert done.returncode == 1, done.stderr
    assert "1 failed: http_404" in done.stdout
    assert Counter(pages.paths()) == {"/page/0": 2, "/gone": 1}
    tasks = [json.loads(line) for line in listed.splitlines()]
    assert [(task["status"], task["attempts"], task["reason"]) for task in tasks] == [
        ("completed", 2, None),
        ("failed", 1, "http_404"),
    ]
    assert "error http_503" in soft
    assert "decision slow the domain down" in soft
    assert "decision give up" in hard


def test_headers_cookies_and_credentials_reach_the_page_and_nothing_else(
    folder: Folder, pages: Pages
) -> None:
    """They are sent to the page's own origin, kept in a file for its owner's eyes, and in no
    database or log."""
    jar = folder.path / "cookies.txt"
    jar.write_text(
        "# Netscape HTTP Cookie File\n127.0.0.1\tFALSE\t/\tFALSE\t0\tsid\tcrumb-secret\n"
    )
    given = pages.url.replace("http://", "http://ada:pass-secret@")
    file = folder.write("pages.txt", [f"{given}/page/{n}" for n in range(3)])

    done = folder.crawler(
        "run", str(file), "--header", "X-Key: header-secret", "--user-agent", "ParcelBot/1",
        "--cookie-file", str(jar)
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    asked = [each for each in pages.asked if each.path.startswith("/page/")]
    assert len(asked) == 3
    for each in asked:
        assert each.headers["x-key"] == "header-secret"
        assert each.headers["user-agent"] == "ParcelBot/1"
        assert each.headers["cookie"] == "sid=crumb-secret"
        assert each.headers["authorization"] == "Basic YWRhOnBhc3Mtc2VjcmV0"
    [session] = (folder.data / "sessions").glob("*.json")
    assert stat.S_IMODE(session.stat().st_mode) == 0o600
    folder.results()
    for path in folder.path.rglob("*"):
        if path.is_file() and path not in (session, jar, file):
            content = path.read_bytes()
            for secret in (
                b"header-secret",
                b"crumb-secret",
                b"pass-secret",
                b"YWRhOnBhc3Mtc2VjcmV0",
            ):
                assert secret not in content, path
    assert "secret" not in done.stdout + done.stderr


def test_secrets_do_not_follow_a_redirect_to_another_origin(folder: Folder, pages: Pages) -> None:
    """Neither the page there nor its robots.txt is asked with what was meant for the first one."""
    folder.env["CRAWLER_ALLOW_NETS"] = "127.0.0.0/8"
    with Pages("127.0.0.2") as other:
        other.answers["/inner"] = Answer(parcel(99))
        pages.answers["/out"] = Answer("", 302, {"Location": f"{other.url}/inner"})
        given = f"{pages.url}/out".replace("//", "//ada:secret@")

        done = folder.crawler(
            "scrape", given, "--header", "Authorization: secret", "--header", "X-Key: secret"
        )

        assert done.returncode == 0, done.stdout
        assert [asked.path for asked in other.asked] == ["/robots.txt", "/inner"]
        assert "secret" not in str(other.asked)
        assert "secret" in str(pages.asked)


def test_what_one_call_sends_along_is_sent_beside_a_running_stack(
    folder: Folder, pages: Pages
) -> None:
    """The stack does not take such a call away; a retry of it is made by the same process, too."""
    folder.crawler("up", "--workers", "2")
    pages.answers["/page/2"] = Answer("later", 500)

    first = folder.crawler("scrape", f"{pages.url}/page/1", "--header", "X-Key: one")
    second = folder.crawler("scrape", f"{pages.url}/page/2", "--user-agent", "Fred/1")

    assert (first.returncode, second.returncode) == (0, 1)
    agents = [asked.headers["user-agent"] for asked in pages.asked if asked.path == "/page/2"]
    assert agents == ["Fred/1"] * 3
    assert [asked.headers.get("x-key") for asked in pages.asked if asked.path == "/page/1"] == [
        "one"
    ]


def test_jobs_with_and_without_a_limit_share_a_domain(folder: Folder, pages: Pages) -> None:
    """Each keeps to its own word, and both come to their end."""
    pages.answers |= {f"/page/{n}": Answer(parcel(n)) for n in range(60)}
    slow = folder.write("slow.txt", urls(pages, 20))
    quick = folder.path / "quick.csv"
    quick.write_text("url,priority\n" + "".join(f"{url},3\n" for url in urls(pages, 60)[20:]))
    folder.crawler("bulk", "import", str(slow), "--rate", "10/s")
    folder.crawler("bulk", "import", str(quick), "--rate", "none")

    done = folder.crawler("resume", "--workers", "2")

    assert done.returncode == 0, done.stdout + done.stderr
    assert folder.books().completed == 60
    assert "Error" not in (folder.data / "logs" / "worker.log").read_text()


def test_a_redirect_at_a_slow_rate_arrives(folder: Folder, pages: Pages) -> None:
    """Its second request waits for its own permit, and the first is not made again."""
    pages.answers["/old"] = Answer("", 302, {"Location": "/page/1"})
    file = folder.write("one.txt", [f"{pages.url}/old"])

    done = folder.crawler("run", str(file), "--rate", "5/m", "--ignore-robots")

    assert done.returncode == 0, done.stdout + done.stderr
    assert pages.paths() == ["/old", "/page/1"]


def test_another_page_that_has_not_changed_is_not_this_one(folder: Folder, pages: Pages) -> None:
    """A 304 from where a URL leads now says nothing about the page that it led to before."""
    pages.answers["/page/1"] = Answer(parcel(1), headers={"ETag": '"one"'})
    file = folder.write("pages.txt", urls(pages, 2)[1:])
    assert folder.crawler("run", str(file)).returncode == 0
    pages.answers["/page/1"] = Answer("", 302, {"Location": "/page/5"})
    pages.answers["/page/5"] = Answer(parcel(5, "Rosa Delgado"), headers={"ETag": '"one"'})

    assert folder.crawler("run", str(file)).returncode == 0

    second = folder.results()[1]
    assert (second["verdict"], second["data"]["fields"]["Owner"]) == ("ok", "Rosa Delgado")


def test_loopback_is_reached_only_where_the_command_line_names_it(
    folder: Folder, pages: Pages
) -> None:
    """A page on this machine may not lead to another server on it, unless that network is
    opened."""
    with Pages() as other:
        other.answers["/inner"] = Answer(parcel(99))
        pages.answers["/out"] = Answer("", 302, {"Location": f"{other.url}/inner"})
        file = folder.write("pages.txt", [f"{pages.url}/out"])

        for options in ((), ("--ignore-robots",)):
            done = folder.crawler("run", str(file), *options)
            assert done.returncode == 1
            assert "forbidden_address" in done.stdout
            assert "CRAWLER_ALLOW_NETS" in done.stdout
            assert other.asked == []

        done = folder.crawler("run", str(file), "--ignore-robots", CRAWLER_ALLOW_NETS="127.0.0.0/8")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [asked.path for asked in other.asked] == ["/inner"]


def test_a_site_file_decides_how_its_pages_are_asked_for_and_read(
    folder: Folder, pages: Pages
) -> None:
    """Headers and fields apply to its hosts, its version goes with every result, and `--stored`
    shows a change."""
    sites = folder.path / "config" / "sites"
    sites.mkdir(parents=True)
    site = sites / "county.yaml"
    site.write_text("hosts: [127.0.0.1]\nheaders: {X-County: alder}\nfields:\n  owner: td.owner\n")
    file = folder.write("pages.txt", urls(pages, 2))

    assert folder.crawler("run", str(file)).returncode == 0

    results = folder.results()
    assert [result["data"]["owner"] for result in results] == ["Nora Whitfield"] * 2
    assert {result["site"]["name"] for result in results} == {"county"}
    assert {asked.headers["x-county"] for asked in pages.asked} == {"alder"}
    count = len(pages.asked)

    site.write_text("hosts: [127.0.0.1]\nheaders: {X-County: alder}\nfields:\n  holder: td.owner\n")
    again = json.loads(folder.crawler("scrape", f"{pages.url}/page/1", "--stored", "--json").stdout)
    assert again["now"]["holder"] == "Nora Whitfield"
    assert len(pages.asked) == count

    site.write_text("hosts: [127.0.0.1]\nconcurency: 2\n")
    bad = folder.crawler("run", str(file))
    assert bad.returncode == 2
    assert "county.yaml, line 2" in bad.stderr
    assert "concurrency" in bad.stderr


def test_json_and_text_are_collected_with_what_they_say(folder: Folder, pages: Pages) -> None:
    """Their data and their text are the records, in results and exports; unchanged, they are not
    sent again."""
    owner = {"owner": "Jane Roe", "acres": [1.5, None]}
    pages.answers |= {
        "/parcel.json": Answer(
            json.dumps(owner), headers={"Content-Type": "application/json", "ETag": '"1"'}
        ),
        "/parcel.txt": Answer(
            "Owner: Jane Roe\nAcres: 1.5\n", headers={"Content-Type": "text/plain", "ETag": '"2"'}
        ),
        "/parcel.pdf": Answer(
            b"%PDF-1.7", headers={"Content-Type": "application/pdf", "ETag": '"3"'}
        ),
    }
    for name in ("urls.txt", "again.txt"):
        file = folder.write(name, [f"{pages.url}/parcel.{kind}" for kind in ("json", "txt", "pdf")])
        done = folder.crawler("run", str(file), "--rate", "none")
        assert done.returncode == 0, done.stdout + done.stderr

    first, again = folder.results()[:3], folder.results()[3:]
    assert {result["url"].rpartition(".")[2]: result["data"] for result in first} == {
        "json": {"json": owner},
        "txt": {"text": "Owner: Jane Roe\nAcres: 1.5"},
        "pdf": {},
    }
    assert [result["verdict"] for result in again] == ["unchanged"] * 3
    exported = folder.crawler(
        "results", "export", "--format", "csv", "-o", str(folder.path / "out.csv")
    )
    assert exported.returncode == 0, exported.stderr
    assert "data.json.owner" in (folder.path / "out.csv").read_text()
