"""What is done about a failure, and how long that waits."""

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.judge import decided
from crawler.models import RetryClass
from crawler.resilience import retry_after, retry_delay
from crawler.resilience.permit import MAX_RETRY_AFTER_S

NOW = 1_794_812_400.0


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("connection", RetryClass.SOON),
        ("timeout", RetryClass.SOON),
        ("truncated", RetryClass.SOON),
        ("http_500", RetryClass.SOON),
        ("http_502", RetryClass.SOON),
        ("http_599", RetryClass.SOON),
        ("dns", RetryClass.LATER),
        ("robots_unreachable", RetryClass.LATER),
        ("http_429", RetryClass.SLOW_DOWN),
        ("http_503", RetryClass.SLOW_DOWN),
        ("http_404", RetryClass.GIVE_UP),
        ("http_403", RetryClass.GIVE_UP),
        ("forbidden_address", RetryClass.GIVE_UP),
        ("too_large", RetryClass.GIVE_UP),
        ("robots", RetryClass.GIVE_UP),
        ("never heard of", RetryClass.GIVE_UP),
        ("poison", RetryClass.POISON),
    ],
)
def test_each_reason_has_a_class(reason: str, kind: RetryClass) -> None:
    """One table decides; what it does not know is given up."""
    assert decided(reason).retry is kind


@given(failures=st.integers(0, 50), chance=st.floats(0, 1))
def test_the_wait_is_anything_up_to_a_bound_that_doubles(failures: int, chance: float) -> None:
    """Full jitter: between nothing and the bound, which never exceeds its cap."""
    wait_s = retry_delay(RetryClass.SOON, failures, None, 2.0, 60.0, lambda: chance)

    assert wait_s == pytest.approx(chance * min(60.0, 2.0 * 2**failures))
    assert retry_delay(RetryClass.LATER, failures, None, 2.0, 60.0, lambda: 1.0) >= wait_s


@given(asked_s=st.floats(0.1, 1e9), chance=st.floats(0, 1))
def test_what_a_server_asks_for_is_kept_and_capped(asked_s: float, chance: float) -> None:
    """Never earlier than it says, unless it says more than an hour."""
    wait_s = retry_delay(RetryClass.SLOW_DOWN, 0, asked_s, 1.0, 60.0, lambda: chance)

    assert min(asked_s, MAX_RETRY_AFTER_S) <= wait_s <= MAX_RETRY_AFTER_S + 5


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0", None),
        ("99999999999999999999", MAX_RETRY_AFTER_S),
        (formatdate(NOW + 90, usegmt=True), 90.0),
        (formatdate(NOW - 90, usegmt=True), None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_AFTER_S),
        ("soon", None),
        ("", None),
        ("-5", None),
        ("1e9", None),
        ("٣", 3.0),
    ],
)
def test_retry_after_is_a_number_or_a_date(header: str, seconds: float | None) -> None:
    """Both forms are read, nonsense is none, and absurd ones are capped."""
    assert retry_after(header, NOW) == (None if seconds is None else pytest.approx(seconds, abs=1))
