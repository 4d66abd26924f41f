"""Which tests of the SDK the real RocketMQ cannot pass, and why: the differences between the brokers, as a table.

A test that is not named here passes against our broker, 5.3.3 and 4.9.7 alike. No cometmq is imported.
"""

from typing import NamedTuple

from support.real_rocketmq import V4, V5


class Difference(NamedTuple):
    """Why a test is not run against some real brokers."""

    versions: tuple[str, ...]
    reason: str


BOTH = (V5, V4)

#: By `file::test`.
DIFFERENCES: dict[str, Difference] = {
    "test_admin::test_brokers_tell_how_they_are": Difference(
        BOTH, "a real broker lets its own name be changed at run time, and is another one from then on; ours refuses"
    ),
    "test_app::test_a_body_that_does_not_fit_fails_with_a_clear_log_and_comes_again": Difference(
        BOTH, "the test looks inside of the broker for the dead letters"
    ),
    "test_forwarder::test_everything_that_belongs_to_a_message_is_kept_and_nothing_else": Difference(
        BOTH, "the test moves the broker's clock"
    ),
    "test_outages::test_members_that_subscribe_differently_go_on_and_the_broker_says_so": Difference(
        BOTH, "the test reads the broker's log; a real one says nothing about such members"
    ),
}


def reason(test: str, version: str) -> str | None:
    """Why a test does not run against a version; None when it does."""
    found = DIFFERENCES.get(test)
    return found.reason if found is not None and version in found.versions else None
