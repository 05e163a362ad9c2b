"""Tokens of the API, and what they open."""

import stat
from pathlib import Path

import msgspec
import pytest

from crawler.api.auth import names_this_machine
from crawler.api.bodies import DEFAULT_FORMATS, Options
from crawler.api.errors import ApiError
from crawler.api.limits import Slots
from crawler.api.tokens import OPERATOR, Client, TokenFile, Tokens
from crawler.api.webhooks import MAX_FAILURES, MAX_PAUSE_S, pause_s, signature
from crawler.batches import BatchOptions
from crawler.config import Settings
from crawler.errors import StoreError, UsageError


def test_a_token_is_found_by_its_hash(tmp_path: Path) -> None:
    """The secret opens what it was made for, and is not in the file."""
    file = TokenFile(tmp_path)
    secret = file.add("ann", ("read",), 5, 2)
    tokens = Tokens(Settings(data_dir=tmp_path, api_token="operator"))

    assert tokens.client_of(secret) == Client("ann", ("read",), 5, 2)
    assert tokens.client_of("operator") == OPERATOR
    assert tokens.client_of("") is None
    assert tokens.client_of(secret[:-1]) is None
    assert secret not in file.path.read_text()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_a_change_is_seen_by_others(tmp_path: Path) -> None:
    """A server knows of tokens that another process adds and removes."""
    tokens, file = Tokens(Settings(data_dir=tmp_path)), TokenFile(tmp_path)

    assert not tokens.any()
    secret = file.add("ann", ("crawl",))
    assert tokens.client_of(secret) is not None
    file.remove("ann")
    assert tokens.client_of(secret) is None
    assert not tokens.any()


@pytest.mark.parametrize("name", ["", "a b", "../x", "a:b", "x" * 41, "-a", "ä"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    """A name is part of keys of the ledger, and has no sign that means something there."""
    with pytest.raises(UsageError, match="no name"):
        TokenFile(tmp_path).add(name, ("read",))


def test_a_damaged_file_is_an_error_without_its_content(tmp_path: Path) -> None:
    """Nobody gets in while the tokens cannot be read."""
    (tmp_path / "api-tokens.json").write_text('{"tokens": [{"name": "s3cret"')

    with pytest.raises(StoreError, match="damaged") as caught:
        Tokens(Settings(data_dir=tmp_path))

    assert "s3cret" not in str(caught.value)


def test_scopes_include_each_other() -> None:
    """`admin` includes `crawl`, which includes `read`; none is nothing."""
    allowed = {
        scope: [
            wanted for wanted in ("read", "crawl", "admin") if Client("x", (scope,)).may(wanted)
        ]
        for scope in ("read", "crawl", "admin")
    }

    assert allowed == {
        "read": ["read"],
        "crawl": ["read", "crawl"],
        "admin": ["read", "crawl", "admin"],
    }
    assert not Client("x", ()).may("read")


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True),
        ("a.localhost:1", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("localhost.evil.example", False),
        ("127.0.0.1@evil.example", False),
        ("0.0.0.0", False),
        ("[::1", False),
        ("::1", False),
        ("localhost:1:2", False),
        ("", False),
    ],
)
def test_only_names_of_this_machine_are_hosts(host: str, is_here: bool) -> None:
    """A name that merely leads here is not one."""
    assert names_this_machine(host) is is_here


def test_slots_are_counted_by_client() -> None:
    """One client cannot take the slots of others, nor all together more than there are."""
    slots = Slots("streams", 3, 2)
    slots.take("ann")
    slots.take("ann")
    for client in ("ann", "bob"):
        if client == "bob":
            slots.take("bob")
        with pytest.raises(ApiError, match="too many streams"):
            slots.take(client)
    slots.give("ann")
    with slots.taken("ann"), pytest.raises(ApiError):
        slots.take("carl")


def test_options_are_those_of_the_package() -> None:
    """Every option of a batch can be sent, and with the defaults nothing else is meant."""
    options = Options().as_batch_options()

    assert set(Options.model_fields) == {
        field.name for field in msgspec.structs.fields(BatchOptions)
    }
    assert options == BatchOptions(formats=DEFAULT_FORMATS)


def test_pauses_of_webhooks_grow_up_to_a_day() -> None:
    """Retries come later and later, and end after about a day."""
    pauses = [pause_s(failures) for failures in range(1, MAX_FAILURES)]

    assert pauses[:3] == [2, 4, 8]
    assert max(pauses) == MAX_PAUSE_S
    assert 20 * 3600 < sum(pauses) < 30 * 3600


def test_a_signature_is_the_hmac_of_the_body() -> None:
    """As published in the examples of HMAC-SHA-256."""
    expected = "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8"

    assert signature("key", b"The quick brown fox jumps over the lazy dog") == f"sha256={expected}"
