"""A10: an ordered listener raises until `reconsume_times >= 3`, then records and succeeds.

Later messages of that queue wait for it; other queues do not.
"""

from pathlib import Path

from cometmq.client import connect
from cometmq.client.message import ReceivedMessage
from support.standalone import StandaloneProcess, fill, make_topic
from support.wire import until

TOPIC = "TopicA10"


async def test_a_queue_waits_for_its_failed_message_and_others_do_not(tmp_path: Path) -> None:
    recorded: list[tuple[bytes, int]] = []
    tries: list[int] = []

    async def listen(message: ReceivedMessage) -> None:
        if message.body == b"stubborn":
            tries.append(message.reconsume_times)
            # The other queue is read to its end while this one stands.
            await until(lambda: (b"elsewhere 4", 0) in recorded)
            if message.reconsume_times < 3:
                raise ValueError("not yet")
        recorded.append((message.body, message.reconsume_times))

    with StandaloneProcess(tmp_path) as broker:
        async with connect(broker.nameserver) as mq:
            await make_topic(mq, TOPIC, 2)
            await fill(mq, TOPIC, b"before", b"stubborn", b"after 0", b"after 1", queue=0)
            await fill(mq, TOPIC, *(b"elsewhere %d" % number for number in range(5)), queue=1)
            options = {"start_from": "first", "suspend": 0.05, "rebalance_interval": 0.2}
            async with mq.push_consumer("CG", {TOPIC: "*"}, listen, ordered=True, **options):
                await until(lambda: len(recorded) == 9)
    assert tries == [0, 1, 2, 3]
    assert [each for each in recorded if not each[0].startswith(b"elsewhere")] == [
        (b"before", 0),
        (b"stubborn", 3),
        (b"after 0", 0),
        (b"after 1", 0),
    ]
    elsewhere = [each for each in recorded if each[0].startswith(b"elsewhere")]
    assert elsewhere == [(b"elsewhere %d" % number, 0) for number in range(5)]
