"""Topics and groups of a broker that is killed: what was answered is there after the next start."""

import json

import pytest

from support.cluster import OwnBroker
from support.plain_frames import call, create_topic

UPDATE, GET, DELETE, UPDATE_GROUP, GET_GROUP, FORBID = 17, 351, 215, 200, 352, 353


@pytest.fixture
def broker(tmp_path):
    # Nobody listens there: a broker works without its nameservers.
    process = OwnBroker(tmp_path, "127.0.0.1:1", {"autoCreateSubscriptionGroup": "false"})
    try:
        start(process)
        yield process
    finally:
        process.kill()


def start(process):
    boots = process.stdout.count(process.boot_line)
    process.start()
    process.wait_ready("boot", 60, lambda: process.stdout.count(process.boot_line) > boots)


def kill_and_start(process):
    process.kill()
    start(process)


def test_what_was_answered_outlives_a_kill(broker):
    address = broker.address
    for number in range(5):
        create_topic(address, f"T{number}", 3)
        group = json.dumps({"groupName": f"G{number}", "retryMaxTimes": number}).encode()
        assert call(address, UPDATE_GROUP, body=group).code == 0
    assert call(address, FORBID, {"group": "G1", "topic": "T1", "readable": "false"}).code == 0
    assert call(address, DELETE, {"topic": "T0"}).code == 0
    kill_and_start(broker)
    assert call(address, GET, {"topic": "T0"}).code == 17
    for number in range(1, 5):
        assert call(address, GET, {"topic": f"T{number}"}).json()["writeQueueNums"] == 3
    for number in range(5):
        assert call(address, GET_GROUP, {"group": f"G{number}"}).json()["retryMaxTimes"] == number
    assert call(address, FORBID, {"group": "G1", "topic": "T1"}).json()["readable"] is False


def test_a_kill_in_the_middle_of_changes_loses_none_that_was_answered(broker):
    address, answered = broker.address, 0
    with pytest.raises((OSError, ValueError)):  # noqa: PT012 - the kill ends the loop wherever it is
        for number in range(1000):
            create_topic(address, f"T{number:03}", 2)
            answered = number
            if number == 20:
                broker.terminate(9)
    kill_and_start(broker)
    for number in range(answered + 1):
        assert call(address, GET, {"topic": f"T{number:03}"}).code == 0
