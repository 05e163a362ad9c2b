"""The API as a process of its own on a free port of loopback, and the `Server` that tests hold."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 60.0


class Server:
    """A server on a data folder; it is started and stopped as often as a test likes."""

    def __init__(self, data: Path, **env: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CRAWLER_", "REDIS_"))}
        self._env = clean | {"CRAWLER_DATA_DIR": str(data), "CRAWLER_RATE": "none"} | env
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGTERM)
        self._socket.close()

    def start(self) -> None:
        """Start it. The port is open before, so that no client is refused."""
        number = self._socket.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.dialect_server", str(number)],
            cwd=ROOT,
            env=self._env,
            pass_fds=(number,),
        )

    def stop(self, how: signal.Signals) -> None:
        """End it by a signal."""
        self._process.send_signal(how)
        self._process.wait(STOP_S)


def main() -> None:
    """Serve the API on a socket, whose number is the argument."""
    import uvicorn

    from crawler import config
    from crawler.api.app import create_app

    app = create_app(config.load())
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    server.run(sockets=[socket.socket(fileno=int(sys.argv[1]))])


if __name__ == "__main__":
    main()
