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
    "test_admin::test_attributes_of_a_topic_are_set": Difference((V4,), "topics have attributes since 5.0"),
    "test_admin::test_many_topics_and_groups_by_one_request": Difference(
        (V4,), "the requests for many topics or groups came with 5.3"
    ),
    "test_admin::test_group_is_created_shown_and_deleted": Difference(
        (V4,), "4.9 does not keep whether a group consumes in order"
    ),
    "test_admin::test_group_without_offsets_has_no_progress": Difference(
        (V4,), "4.9 says 0 for an offset that there is not, whatever it was asked"
    ),
    "test_admin::test_offsets_are_reset_cloned_and_set": Difference(
        (V4,), "4.9 resets the offsets of groups only that are online"
    ),
    "test_pull::test_seek": Difference((V4,), "for a moment that is to come 4.9 gives the last message, not the end"),
    "test_producer::test_one_key_one_queue_in_order": Difference(
        BOTH, "the threads of a real broker may swap sends that are on the way together; users await each"
    ),
    "test_audit::test_a_producer_and_a_consumer_agree": Difference(
        BOTH, "the threads of a real broker may swap sends that are on the way together, which the audit reports"
    ),
    "test_producer::test_delays": Difference(
        BOTH, "ours has no timers so far; 5.3 has them, and for 4.9 the SDK refuses before it sends"
    ),
    "test_producer_security::test_recall_is_refused_by_a_broker_that_cannot": Difference(
        (V5,), "5.3.3 can recall messages, and refuses by its configuration"
    ),
    "test_app::test_a_body_that_does_not_fit_fails_with_a_clear_log_and_comes_again": Difference(
        BOTH, "the test looks inside of the broker for the dead letters"
    ),
    "test_forwarder::test_everything_that_belongs_to_a_message_is_kept_and_nothing_else": Difference(
        BOTH, "the test moves the broker's clock"
    ),
}


def reason(test: str, version: str) -> str | None:
    """Why a test does not run against a version; None when it does."""
    found = DIFFERENCES.get(test)
    return found.reason if found is not None and version in found.versions else None
