"""The reference Gateway does what its own description says, whatever it is sent."""

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

from tests.support.gateway import Gateway

SETTINGS = """
continue-on-failure = true

[auth.openapi.APIKeyHeader]
api_key = "${GATEWAY_TOKEN}"
"""


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """Every answer to generated requests, valid and not, is one that /openapi.json announces."""
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    program = str(Path(sys.executable).with_name("st"))
    with Gateway(tmp_path / "served") as gateway:
        gateway.import_tasks(
            [{"task_id": f"t-{n}", "platform": "beacon", "parcel_id": n} for n in range(200)]
        )

        done = subprocess.run(
            [
                program,
                "run",
                f"{gateway.url}/openapi.json",
                "--checks",
                "all",
                "--seed",
                "7",
                "-n",
                "25",
            ],
            cwd=tmp_path,
            env=os.environ | gateway.env,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

        assert done.returncode == 0, done.stdout
        assert "Tested: 8" in done.stdout
        assert '"status":500' not in gateway.log.read_text()
        assert gateway.token not in gateway.log.read_text()


def test_the_description_is_complete(tmp_path: Path) -> None:
    """Each exchange of the contract has an example of its answer, and each refusal its shape."""
    with (
        Gateway(tmp_path) as gateway,
        closing(urllib.request.urlopen(f"{gateway.url}/openapi.json")) as answer,
    ):
        description = json.load(answer)

    assert set(description["paths"]) == {
        "/internal/work",
        "/internal/results",
        "/internal/raw-files",
        "/internal/tasks/{task_id}/complete",
        "/internal/tasks/{task_id}/fail",
        "/internal/heartbeat",
        "/health",
        "/workers",
    }
    for exchanges in description["paths"].values():
        for exchange in exchanges.values():
            for code, response in exchange["responses"].items():
                content = response["content"]["application/json"]
                assert content["example"]
                kind = content["schema"].get("$ref", "").rpartition("/")[2]
                assert code == "200" or kind == "Refusal" or (code, kind) == ("503", "Failing")
