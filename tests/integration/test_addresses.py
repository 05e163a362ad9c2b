"""Every spelling of REDIS_URL, with a real Redis behind it: plain, over TLS and on a socket."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis

from crawler.redis_server import redis_program
from tests.support import tls
from tests.support.site import Site
from tests.support.stack import Folder, wait_for

PASSWORD = "p@/?&=%w"
ESCAPED = "p%40%2F%3F%26%3D%25w"
SPELLINGS = {
    "plain, another database": "redis://default:{password}@localhost:{port}/4",
    "TLS": "rediss://:{password}@localhost:{tls_port}/0?ssl_cert_reqs=required&ssl_ca_certs={folder}/ca.pem",
    "TLS unchecked": "rediss://:{password}@127.0.0.1:{tls_port}/3?ssl_cert_reqs=CERT_NONE",
    "socket, password in the query": "redis+socket://{folder}/r.sock?virtual_host=3&password={password}",
    "socket of redis-py": "unix://:{password}@{folder}/r.sock?db=5",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """What stands in an address: a Redis with a password, on a port, a port with TLS and a
    socket."""
    folder = tls.make(tmp_path_factory.mktemp("redis"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    conf = folder / "redis.conf"
    conf.write_text(
        f"port {port}\nbind 127.0.0.1\nunixsocket {folder}/r.sock\n"
        f'requirepass "{PASSWORD}"\nsave ""\ndir {folder}\n'
    )
    server = subprocess.Popen([redis_program(), str(conf)], stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port, password=PASSWORD)
        wait_for(lambda: _answers(client), 20, "Redis")
        with tls.Front(tls.identity(folder, "good"), port) as front:
            yield {"port": port, "tls_port": front.port, "folder": folder, "password": ESCAPED}
    finally:
        server.terminate()
        server.wait()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_worker_collects_and_results_come_back(
    folder: Folder, site: Site, places: dict[str, object], spelling: str
) -> None:
    """Import, worker, `delay().get()`, `status` and `doctor` all reach Redis, and none of them
    shows its password."""
    # Given a worker at this address
    address = SPELLINGS[spelling].format(**places)
    folder.env |= {"REDIS_URL": address, "CRAWLER_ALLOW_NETS": "127.0.0.0/8"}
    folder.redis().flushall()
    worker = folder.worker()

    # When pages are imported, and one is asked for from Python
    file = folder.write("pages.txt", [site.page(n) for n in range(5)])
    done = folder.crawler("bulk", "import", str(file))
    assert done.returncode == 0, done.stderr
    program = (
        "import json\nfrom crawler.tasks import scrape_task\n"
        f"print(json.dumps(scrape_task.delay({site.page(7)!r}).get(timeout=60)))"
    )
    argv = [sys.executable, "-W", "ignore", "-c", program]
    asked = subprocess.run(
        argv, cwd=folder.path, env=folder.env, capture_output=True, text=True, check=False
    )

    # Then all are collected, and the result is back
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)["status"] == "completed"
    folder.wait_until_completed(6, 60)
    status, doctor = folder.crawler("status", "--json"), folder.crawler("doctor")
    assert json.loads(status.stdout)["redis"]["up"]
    assert "Redis does not answer" not in doctor.stdout + doctor.stderr
    said = "".join(
        each.stdout + each.stderr for each in (done, asked, status, doctor)
    ) + folder.log(worker)
    assert PASSWORD not in said
    assert ESCAPED not in said


def test_a_certificate_of_a_stranger_is_refused(folder: Folder, places: dict[str, object]) -> None:
    """`rediss://` without options checks the certificate, as redis-py does."""
    folder.env["REDIS_URL"] = "rediss://:{password}@localhost:{tls_port}/0".format(**places)
    folder.make_store()

    assert not folder.status()["redis"]["up"]
