"""The golden directories written anew by us from the same inputs: the same bytes in log, queues and index."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.transforms import SimpleTopics
from cometmq.protocol import names, sysflag
from cometmq.protocol import properties as props
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.record import MAGIC_BLANK, Record, decode_record
from support import golden_store

LOG_FILE_SIZE = 1 << 20


def records(name: str) -> Iterator[Record]:
    """The records of a packed directory in the order of the log."""
    for path, content in sorted(golden_store.files(name).items()):
        if not path.startswith("commitlog/"):
            continue
        at = 0
        while at + 8 <= len(content) and int.from_bytes(content[at + 4 : at + 8], "big") & 0xFFFFFFF0 == 0xDAA320A0:
            record = decode_record(content, at)
            yield record
            at += record.size


def raw(name: str, record: Record) -> bytes:
    path = f"commitlog/{record.physical_offset // LOG_FILE_SIZE * LOG_FILE_SIZE:020d}"
    at = record.physical_offset % LOG_FILE_SIZE
    return golden_store.files(name)[path][at : at + record.size]


def as_put(record: Record, text: bytes) -> Message:
    return Message(
        record.topic,
        record.queue_id,
        record.body,
        text,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        verbatim=True,
    )


class Rewriter:
    """A fresh store with the options of a golden one."""

    def __init__(self, name: str, folder: Path, **properties: str) -> None:
        self.runner = ManualRunner(FakeClock())
        self.store = Store(
            folder,
            golden_store.options(name, **properties),
            runner=self.runner,
            clock=self.runner.clock,
            topics=SimpleTopics(golden_store.BATCH_TOPICS.get(name, frozenset())),
        )
        self.store.open()
        self.store.start()

    def put(self, message: Message, at: int) -> Record:
        """Put a message at a moment of the wall clock; gives the record that it became."""
        self.runner.clock.set_wall(at)
        ticket = self.store.put(message)
        self.runner.run()
        assert ticket.status is PutStatus.PUT_OK, ticket.remark
        found = self.store.message_at(ticket.physical_offset)
        assert found is not None
        with found:
            return decode_record(found.read())


@pytest.mark.parametrize("name", ["clean", "clean49", "killed", "killed49"])
def test_log_queues_and_index_have_the_same_bytes(name: str, tmp_path: Path) -> None:
    ours = Rewriter(name, tmp_path)
    count = 0
    for record in records(name):
        written = ours.put(as_put(record, record.properties), record.store_timestamp)
        assert written == record
        count += 1
    assert count > 1500
    ours.store.close()
    golden = golden_store.files(name)
    compared = 0
    for path, content in golden.items():
        if path.startswith("commitlog/") and any(content):
            mine = (tmp_path / path).read_bytes()
            # Behind a blank record stands what was there before: nothing.
            assert mine == content, path
            compared += 1
        elif path.startswith("consumequeue/") and name.startswith("clean"):
            # (A killed broker had not written all units yet.)
            topic = path.split("/")[1]
            assert (tmp_path / path).read_bytes() == content, topic
            compared += 1
    assert compared >= 4
    theirs = [content for path, content in sorted(golden.items()) if path.startswith("index/")]
    mine = [path.read_bytes() for path in sorted((tmp_path / "index").iterdir())]
    if name.startswith("clean"):
        assert mine == theirs
    else:
        assert mine[0] == theirs[0]


def test_messages_with_more_than_they_came_with_are_the_same_but_for_the_order_of_properties(tmp_path: Path) -> None:
    """Checksums of records, inner batches and light message queues: `special`."""
    ours = Rewriter("special", tmp_path)
    kinds = set()
    for record in records("special"):
        text = props.remove(record.properties, b"__CRC32#")
        if record.sys_flag & sysflag.INNER_BATCH:
            text = props.remove(text, b"INNER_BASE")
            kinds.add("inner batch")
        if b"INNER_MULTI_QUEUE_OFFSET" in text:
            text = props.remove(text, b"INNER_MULTI_QUEUE_OFFSET")
            kinds.add("light queue")
        written = ours.put(as_put(record, text), record.store_timestamp)
        if text + record.properties[-20:] == record.properties:
            assert written == record, "the checksum too"
            kinds.add("plain")
            continue
        assert written.size == record.size
        assert written.queue_offset == record.queue_offset
        theirs, mine = record.property_map(), written.property_map()
        assert theirs.pop("__CRC32#") != mine.pop("__CRC32#"), "it covers the order too"
        assert mine == theirs
    assert kinds == {"plain", "inner batch", "light queue"}
    ours.store.close()
    golden = golden_store.files("special")
    for path in ("consumequeue/%LMQ%one/0/00000000000000000000", "consumequeue/%LMQ%two/0/00000000000000000000"):
        assert (tmp_path / path).read_bytes() == golden[path]
    path = "batchconsumequeue/BatchCqTopic/0/00000000000000000000"
    assert (tmp_path / path).read_bytes() == golden[path]


def test_delayed_messages_are_diverted_to_the_same_records(tmp_path: Path) -> None:
    ours = Rewriter("clean", tmp_path)
    diverted = 0
    offsets: dict[int, int] = {}
    for record in records("clean"):
        if record.topic != names.SCHEDULE_TOPIC:
            continue
        text = props.remove(props.remove(record.properties, b"REAL_TOPIC"), b"REAL_QID")
        properties = record.property_map()
        message = as_put(record, text)
        message = Message(
            properties["REAL_TOPIC"],
            int(properties["REAL_QID"]),
            record.body,
            text,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
        )
        written = ours.put(message, record.store_timestamp)
        assert written.topic == record.topic
        assert written.queue_id == record.queue_id
        assert written.queue_offset == record.queue_offset
        assert written.properties == record.properties
        # The unit holds the time of delivery.
        queue = ours.store.queues.get(record.topic, record.queue_id)
        golden = golden_store.files("clean")[f"consumequeue/{record.topic}/{record.queue_id}/{0:020d}"]
        number = offsets.setdefault(record.queue_id, 0)
        offsets[record.queue_id] += 1
        unit = queue.unit(number) if queue else None
        assert unit is not None
        assert unit[2] == int.from_bytes(golden[20 * number + 12 : 20 * number + 20], "big", signed=True)
        diverted += 1
    assert diverted == 9
    ours.store.close()


def test_a_batch_keeps_the_unique_keys_of_its_items(tmp_path: Path) -> None:
    """RocketMQ 5 appends the wrapper's unique key to every item; here an item keeps its own."""
    ours = Rewriter("clean", tmp_path)
    stored = [record for record in records("clean") if record.topic == "StoreBatch"]
    assert len(stored) == 20
    # Five items to a batch; the wrapper's text begins with MSG_REGION.
    for first in range(0, 20, 5):
        group = stored[first : first + 5]
        split = [record.properties.partition(b"MSG_REGION\x01") for record in group]
        wrapper = split[0][1] + split[0][2]
        items = [BatchItem(record.flag, record.body, text) for record, (text, _, _) in zip(group, split, strict=True)]
        head = as_put(group[0], wrapper)
        message = Message(
            head.topic,
            head.queue_id,
            encode_batch(items),
            wrapper,
            born_timestamp=head.born_timestamp,
            born_host=head.born_host,
            store_host=head.store_host,
        )
        ours.runner.clock.set_wall(group[0].store_timestamp)
        ticket = ours.store.put_batch(message)
        ours.runner.run()
        assert ticket.status is PutStatus.PUT_OK
        assert len(ticket.message_id.split(",")) == ticket.count == 5
        for record, item, offset in zip(group, items, ticket.offsets, strict=True):
            found = ours.store.message_at(offset)
            assert found is not None
            with found:
                written = decode_record(found.read())
            assert written.body == record.body
            assert written.queue_offset == record.queue_offset
            assert written.store_timestamp == record.store_timestamp
            mine, theirs = written.property_map(), record.property_map()
            assert mine.pop("UNIQ_KEY") == props.find(item.properties, b"UNIQ_KEY").decode()  # type: ignore[union-attr]
            assert theirs.pop("UNIQ_KEY") == props.find(wrapper, b"UNIQ_KEY").decode()  # type: ignore[union-attr]
            assert mine == theirs
            assert written.properties.startswith(item.properties)
            assert written.properties.count(b"UNIQ_KEY") == 1
    ours.store.close()


def test_every_record_of_the_packed_logs_is_read() -> None:
    assert sum(1 for _ in records("clean")) == 1571
    assert all(raw("special", record)[4:7] == b"\xda\xa3\x20" for record in records("special"))
    assert MAGIC_BLANK & 0xFFFFFFFF == 0xCBD43194
