# What compose-check and compose-distributed share. They set `file` and `image`, and source this with their argument,
# the uid of the caller that root plays.
project=$(pwd)
bin=${VENV:-$project/.venv}/bin
uid=${1:-$(id -u)}
folder=$(mktemp -d)/check
mkdir "$folder"
git ls-files -co --exclude-standard | tar -cf - -T - | tar -xf - -C "$folder"
chmod 755 "${folder%/check}"
chown -R "$uid" "$folder"
cd "$folder"
export CRAWLER_ALLOW_NETS=172.16.0.0/12,192.168.0.0/16 PYTHONPATH="$project"

compose() { docker compose -p crawler-check -f "$file" "$@"; }
caller() { if [ "$uid" = "$(id -u)" ]; then "$@"; else setpriv --reuid "$uid" --clear-groups "$@"; fi; }
crawler() { caller "$bin/python" -m crawler "$@"; }
say() { echo "${0##*/}: $*"; }
fail() { say "NOT OK: $*"; exit 1; }
await() { # SECONDS WHAT COMMAND…
  end=$(($(date +%s) + $1)) what=$2
  shift 2
  until "$@"; do
    [ "$(date +%s)" -lt $end ] || fail "$what: not in time"
    sleep 0.3
  done
}
site() { # pages that take a tenth of a second each, under /js/ by a script; /hits counts what was asked for
  docker run -d --name crawler-check-site --network crawler-check_default "$@" "$image" python -c '
import collections, http.server, json, time
hits = collections.Counter()
class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/hits":
            body = json.dumps(hits).encode()
        else:
            hits[self.headers["Host"] + self.path] += 1
            if self.path == "/robots.txt":
                return self.send_error(404)
            time.sleep(0.1)
            body = page(self.path).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
def page(path):
    if not path.startswith("/js/"):
        return f"<title>Parcel {path}</title>" + f"<p>{path} has a text of its own</p>" * 9
    script = f"fetch(\"/shown{path}\").then(a => a.text()).then(t => document.getElementById(\"app\").innerHTML = t)"
    return f"<title>Loading</title><div id=app></div><script>{script}</script>"
http.server.ThreadingHTTPServer.request_queue_size = 100
http.server.ThreadingHTTPServer(("", 80), Site).serve_forever()' >/dev/null
}
hits() { docker exec crawler-check-site python -c '
import urllib.request; print(urllib.request.urlopen("http://127.0.0.1/hits").read().decode())'; }
check_owner() { # of all files, and that no list of processes shows the password
  strangers=$(find data ! -uid "$uid" | head -n 3)
  [ -z "$strangers" ] || fail "not the caller's: $strangers"
  ps -eo args | grep -F "$(cat data/redis/password)" | grep -v grep && fail "the password is in a list of processes"
  return 0
}
down_v() { # everything goes but ./data
  say "down -v"
  docker rm -f crawler-check-site >/dev/null
  compose down -v >/dev/null 2>&1
  left=$(docker ps -aq --filter label=com.docker.compose.project=crawler-check
    docker volume ls -q --filter name=crawler-check
    docker network ls -q --filter name=crawler-check)
  [ -z "$left" ] || fail "left: $left"
}
clean() {
  docker rm -f crawler-check-site >/dev/null 2>&1 || true
  compose down -v >/dev/null 2>&1 || true
  rm -rf "${folder%/check}"
}
trap clean EXIT
trap 'exit 143' TERM
trap 'exit 130' INT HUP
