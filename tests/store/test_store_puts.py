"""Puts: turns, offsets, files, limits, and the kinds of messages. See `puts_refused` for what is not taken."""

import errno

import msgspec
import pytest

from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.message import Message, PutStatus, Refusal
from cometmq.broker.store.tickets import Ticket
from cometmq.broker.store.transforms import SimpleTopics
from cometmq.protocol import sysflag
from cometmq.protocol.checksum import verify_property_crc
from cometmq.protocol.message_id import pack_host
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import MAGIC_BLANK, MAGIC_V2
from support.store_kit import StoreKit, batch, bodies, message, read_queue, record_at

FILE = 16384


def log_writes(disk: FakeDisk, since: int = 0) -> list[tuple[str, int, int]]:
    """Path, position and length of the writes to the commit log."""
    return [
        (operation.path[-20:], operation.offset, len(operation.data))
        for operation in disk.operations[since:]
        if operation.kind == "write" and "/commitlog/" in operation.path
    ]


# Turns


def test_what_is_put_in_a_turn_is_written_with_one_call() -> None:
    kit = StoreKit()
    store = kit.opened()
    before = len(kit.fake.operations)
    tickets = [store.put(message("T", number % 3, b"%d" % number)) for number in range(30)]
    assert all(ticket.status is None for ticket in tickets)
    assert log_writes(kit.fake, before) == [], "nothing before the turn"
    kit.runner.run()
    assert {ticket.status for ticket in tickets} == {PutStatus.PUT_OK}
    assert [(position, length) for _, position, length in log_writes(kit.fake, before)] == [
        (0, store.watermarks.appended)
    ]
    assert store.watermarks.dispatched == store.watermarks.appended


def test_offsets_follow_each_other() -> None:
    kit = StoreKit()
    store = kit.opened()
    tickets = [store.put(message("T", number % 2, b"%d" % number)) for number in range(6)]
    kit.runner.run()
    assert [ticket.queue_offset for ticket in tickets] == [0, 0, 1, 1, 2, 2]
    place = 0
    for number, ticket in enumerate(tickets):
        assert ticket.physical_offset == place
        record = record_at(store, place)
        assert (record.body, record.queue_offset, record.physical_offset) == (b"%d" % number, number // 2, place)
        place += record.size
        assert ticket.end_offset == place
    assert bodies(store, "T", 1) == [b"1", b"3", b"5"]


def test_records_hold_what_was_put() -> None:
    kit = StoreKit()
    store = kit.opened()
    own = pack_host("198.51.100.9", 10_911)
    put = Message(
        "Topic",
        4,
        b"body",
        encode_properties({"TAGS": "a"}),
        flag=77,
        sys_flag=sysflag.COMPRESSED | sysflag.BORN_HOST_V6,
        born_timestamp=123,
        born_host=pack_host("2001:db8::5", 1234),
        store_host=own,
        reconsume_times=3,
        prepared_transaction_offset=0,
    )
    ticket = kit.put(store, put)
    record = record_at(store, ticket.physical_offset)
    assert (record.topic, record.queue_id, record.flag) == ("Topic", 4, 77)
    assert record.sys_flag == sysflag.COMPRESSED | sysflag.BORN_HOST_V6
    assert (record.born_timestamp, record.born_address) == (123, ("2001:db8::5", 1234))
    assert record.store_timestamp == ticket.store_timestamp == kit.clock.wall()
    assert record.store_host == own
    assert record.reconsume_times == 3
    assert record.message_id == ticket.message_id
    plain = kit.put(store, message("Topic", 4, b""))
    assert record_at(store, plain.physical_offset).store_address == ("127.0.0.1", 10911)


def test_tickets_are_settled_in_order_and_never_inside_the_put() -> None:
    kit = StoreKit()
    store = kit.opened()
    settled: list[Ticket] = []
    tickets = [
        store.put(message("T", 0, b"a"), settled.append),
        store.put(message("x" * 200, 0, b"b"), settled.append),
        store.put(message("T", 0, b"c"), settled.append),
        store.put_batch(batch((b"d", "")), settled.append),
        store.put_batch(Message("T", 0, b"rubbish"), settled.append),
        store.put(message("T", 0, b"e"), settled.append),
    ]
    assert settled == []
    kit.runner.run()
    assert settled == tickets
    illegal, ok = PutStatus.MESSAGE_ILLEGAL, PutStatus.PUT_OK
    assert [ticket.status for ticket in tickets] == [ok, illegal, ok, ok, illegal, ok]
    assert bodies(store, "T", 0) == [b"a", b"c", b"d", b"e"]


def test_what_is_put_by_a_callback_goes_with_the_next_turn() -> None:
    kit = StoreKit()
    store = kit.opened()
    store.put(message("T", 0, b"a"), lambda _: store.put(message("T", 0, b"b")) and None)
    kit.runner.run()
    assert bodies(store, "T", 0) == [b"a", b"b"]


def test_a_large_turn_is_written_in_parts() -> None:
    kit = StoreKit(mappedFileSizeCommitLog=str(64 << 20))
    store = kit.opened()
    tickets = [store.put(message("T", 0, bytes(1 << 20))) for _ in range(10)]
    kit.runner.run()
    assert {ticket.status for ticket in tickets} == {PutStatus.PUT_OK}
    assert [ticket.queue_offset for ticket in tickets] == list(range(10))
    assert len(log_writes(kit.fake)) >= 3
    assert [record.queue_offset for record in read_queue(store, "T", 0)] == list(range(10))


def test_store_times_do_not_go_back_with_small_steps_of_the_clock() -> None:
    kit = StoreKit()
    store = kit.opened()
    first = kit.put(store, message("T", 0, b"a")).store_timestamp
    kit.clock.set_wall(first - 400)
    assert kit.put(store, message("T", 0, b"b")).store_timestamp == first
    kit.clock.set_wall(first - 400_000)
    assert kit.put(store, message("T", 0, b"c")).store_timestamp == first - 400_000, "somebody meant it"


# Files


def test_a_file_ends_with_a_blank_record_and_the_next_one_goes_on() -> None:
    kit = StoreKit()
    store = kit.opened()
    tickets = kit.fill(store, 300, size=150)
    assert {ticket.status for ticket in tickets} == {PutStatus.PUT_OK}
    files = store.commit_log.files.files
    assert len(files) >= 4
    assert [file.start for file in files] == [number * FILE for number in range(len(files))]
    for file in files[:-1]:
        inside = [ticket for ticket in tickets if file.start <= ticket.physical_offset < file.end]
        end = max(ticket.end_offset for ticket in inside) - file.start
        assert end <= FILE - 8, "a blank record always finds room"
        blank = file.read(end, 8)
        assert int.from_bytes(blank[:4], "big") == FILE - end
        assert int.from_bytes(blank[4:], "big", signed=True) == MAGIC_BLANK
    assert sum(len(bodies(store, "T", queue)) for queue in (0, 1)) == 300


def test_a_record_may_fill_a_file_up_to_the_blank_one() -> None:
    kit = StoreKit()
    store = kit.opened()
    exactly = kit.put(store, message("T", 0, bytes(FILE - 8 - 92)))
    assert exactly.status is PutStatus.PUT_OK
    assert exactly.end_offset == FILE - 8
    following = kit.put(store, message("T", 0, b"x"))
    assert following.physical_offset == FILE
    too_large = kit.put(store, message("T", 0, bytes(FILE - 8 - 91)))
    assert too_large.status is PutStatus.MESSAGE_ILLEGAL
    assert str(FILE - 8) in too_large.remark


def test_the_next_file_is_made_ahead() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 15, size=300)
    assert store.commit_log.files.prepared is None, "not before the half"
    kit.fill(store, 10, size=300)
    prepared = store.commit_log.files.prepared
    assert prepared is not None
    assert prepared.start == FILE
    store.close()
    assert not kit.disk.exists(prepared.path), "a clean stop takes it away"


def test_blocks_are_reserved_in_steps_ahead_of_the_writer() -> None:
    kit = StoreKit(mappedFileSizeCommitLog=str(64 << 20), commitLogReserveStep=str(4 << 20))
    store = kit.opened()
    kit.put(store, message("T", 0, bytes(1000)))
    reserved = [operation for operation in kit.fake.operations if operation.kind == "reserve"]
    assert sum(operation.size for operation in reserved) <= 1 << 20, "an idle store takes little"
    for _ in range(40):
        kit.put(store, message("T", 0, bytes(1 << 20)))
    reserved = [operation for operation in kit.fake.operations if operation.kind == "reserve"]
    assert reserved[-1].size == 4 << 20
    assert reserved[-1].offset + reserved[-1].size >= store.watermarks.appended


def test_without_a_next_file_messages_are_refused_and_those_before_are_kept() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 10, size=100)
    end = store.watermarks.appended
    kit.fake.fail_next("open", errno.EMFILE, path="/commitlog/", times=100)
    small = store.put(message("T", 0, b"small"))
    large = [store.put(message("T", 0, bytes(FILE - 300))) for _ in range(2)]
    kit.runner.run()
    assert small.status is PutStatus.PUT_OK
    assert {ticket.status for ticket in large} == {PutStatus.CREATE_MAPPED_FILE_FAILED}
    assert small.end_offset == store.watermarks.appended > end
    kit.fake.heal()
    again = kit.put(store, message("T", 0, bytes(FILE - 300)))
    assert again.status is PutStatus.PUT_OK
    assert again.queue_offset == small.queue_offset + 1


# Limits


def test_a_body_may_have_max_message_size() -> None:
    kit = StoreKit(maxMessageSize="1000")
    store = kit.opened()
    assert kit.put(store, message("T", 0, bytes(1000))).status is PutStatus.PUT_OK
    refused = kit.put(store, message("T", 0, bytes(1001)))
    assert refused.status is PutStatus.MESSAGE_ILLEGAL
    assert "1001" in refused.remark
    assert "1000" in refused.remark
    store.configure(store.options.updated({"maxMessageSize": "2000"}))
    assert kit.put(store, message("T", 0, bytes(1001))).status is PutStatus.PUT_OK


def test_properties_may_have_32767_bytes() -> None:
    kit = StoreKit(mappedFileSizeCommitLog=str(1 << 20))
    store = kit.opened()
    for length, status in ((32_767, PutStatus.PUT_OK), (32_768, PutStatus.PROPERTIES_SIZE_EXCEEDED)):
        text = b"a\x01" + b"v" * (length - 3) + b"\x02"
        assert kit.put(store, Message("T", 0, b"", text)).status is status
        # The second time the queue is known, and the shape of the text too.
        text = b"UNIQ_KEY\x01" + b"v" * (length - 10) + b"\x02"
        assert kit.put(store, Message("T", 0, b"", text)).status is status
        assert kit.put(store, Message("T", 0, b"", text)).status is status


def test_the_checksum_of_the_record_counts_as_a_property() -> None:
    kit = StoreKit(mappedFileSizeCommitLog=str(1 << 20), enabledAppendPropCRC="true")
    store = kit.opened()
    for length, status in ((32_747, PutStatus.PUT_OK), (32_748, PutStatus.PROPERTIES_SIZE_EXCEEDED)):
        text = b"a\x01" + b"v" * (length - 3) + b"\x02"
        assert kit.put(store, Message("T", 0, b"", text)).status is status


def test_a_record_may_be_64_kib_larger_than_a_body() -> None:
    kit = StoreKit(maxMessageSize=str(1 << 16), mappedFileSizeCommitLog=str(1 << 20))
    store = kit.opened()
    text = b"a\x01" + b"v" * 32_700 + b"\x02"
    assert kit.put(store, Message("T", 0, bytes(1 << 16), text)).status is PutStatus.PUT_OK


def test_no_body_is_refused_and_an_empty_one_is_not() -> None:
    kit = StoreKit()
    store = kit.opened()
    assert kit.put(store, Message("T", 0, None)).status is PutStatus.MESSAGE_ILLEGAL
    assert kit.put(store, Message("T", 0, b"")).status is PutStatus.PUT_OK
    assert kit.put(store, Message("T", 0, None)).status is PutStatus.MESSAGE_ILLEGAL


def test_a_long_retry_topic_becomes_a_v2_record() -> None:
    kit = StoreKit()
    store = kit.opened()
    topic = "%RETRY%" + "g" * 200
    ticket = kit.put(store, message(topic, 0, b"x"))
    assert ticket.status is PutStatus.PUT_OK
    record = record_at(store, ticket.physical_offset)
    assert (record.magic, record.topic) == (MAGIC_V2, topic)
    assert bodies(store, topic, 0) == [b"x"]


def test_numbers_that_do_not_fit_their_fields_are_refused() -> None:
    kit = StoreKit()
    store = kit.opened()
    assert kit.put(store, message("T", 0, b"a")).status is PutStatus.PUT_OK
    for wrong in ({"flag": 1 << 31}, {"born_timestamp": 1 << 63}, {"reconsume_times": -(1 << 31) - 1}):
        bad = msgspec.structs.replace(message("T", 0, b"bad"), **wrong)
        first, second = store.put(bad), store.put(msgspec.structs.replace(bad, topic="New"))
        kit.runner.run()
        assert first.status is second.status is PutStatus.MESSAGE_ILLEGAL
    assert kit.put(store, message("T", 0, b"b")).queue_offset == 1
    assert bodies(store, "T", 0) == [b"a", b"b"]


# Kinds of messages


def test_half_and_rollback_records_take_no_queue_offset() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.put(store, message("T", 0, b"a"))
    for state in (sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK):
        half = msgspec.structs.replace(message("T", 0, b"half", UNIQ_KEY=f"H{state}"), sys_flag=state)
        ticket = kit.put(store, half)
        assert ticket.queue_offset == 0
        assert record_at(store, ticket.physical_offset).queue_offset == 0
    committed = msgspec.structs.replace(message("T", 0, b"c"), sys_flag=sysflag.TRANSACTION_COMMIT)
    assert kit.put(store, committed).queue_offset == 1
    assert bodies(store, "T", 0) == [b"a", b"c"]
    # A prepared record is indexed, a rolled back one is not.
    assert len(store.query("T", f"H{sysflag.TRANSACTION_PREPARED}", 9).ranges) == 1
    assert len(store.query("T", f"H{sysflag.TRANSACTION_ROLLBACK}", 9).ranges) == 0


def test_a_batch_becomes_records_in_a_row() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.put(store, message("T", 0, b"first"))
    put = batch(
        (b"a", "UNIQ_KEY\x01A\x02KEYS\x01ka\x02"),
        (b"b", "UNIQ_KEY\x01B\x02KEYS\x01kb\x02"),
        (b"c", "TAGS\x01own\x02"),
        wrapper="UNIQ_KEY\x01W\x02TAGS\x01wrapped\x02CLUSTER\x01c\x02",
        reconsume_times=2,
        born_timestamp=9,
    )
    ticket = kit.put(store, message("T", 0, b"second"))
    ticket = store.put_batch(put)
    kit.runner.run()
    assert ticket.status is PutStatus.PUT_OK
    assert (ticket.count, ticket.queue_offset, len(ticket.offsets)) == (3, 2, 3)
    records = [record_at(store, offset) for offset in ticket.offsets]
    assert [record.body for record in records] == [b"a", b"b", b"c"]
    assert [record.flag for record in records] == [0, 1, 2]
    assert [record.queue_offset for record in records] == [2, 3, 4]
    assert {record.store_timestamp for record in records} == {ticket.store_timestamp}
    assert {(record.reconsume_times, record.born_timestamp) for record in records} == {(2, 9)}
    assert [record.property_map() for record in records] == [
        {"UNIQ_KEY": "A", "KEYS": "ka", "TAGS": "wrapped", "CLUSTER": "c"},
        {"UNIQ_KEY": "B", "KEYS": "kb", "TAGS": "wrapped", "CLUSTER": "c"},
        {"UNIQ_KEY": "W", "TAGS": "own", "CLUSTER": "c"},
    ]
    assert ticket.physical_offset == records[0].physical_offset
    assert ticket.end_offset == records[-1].physical_offset + records[-1].size
    assert ticket.message_id == ",".join(record.message_id for record in records)
    assert [record.body for record in read_queue(store, "T", 0)] == [b"first", b"second", b"a", b"b", b"c"]
    for key in ("A", "B", "W", "ka", "kb"):
        assert len(store.query("T", key, 9).ranges) == 1, key


def test_a_batch_never_spans_two_files() -> None:
    kit = StoreKit()
    store = kit.opened()
    kit.put(store, message("T", 0, bytes(FILE - 1000)))
    end = store.watermarks.appended
    ticket = store.put_batch(batch(*[(bytes(100), "")] * 6))
    kit.runner.run()
    assert ticket.offsets[0] == FILE
    blank = store.commit_log.files.files[0].read(end, 8)
    assert int.from_bytes(blank[:4], "big") == FILE - end
    assert len(bodies(store, "T", 0)) == 7


@pytest.mark.parametrize(
    ("put", "status"),
    [
        (batch((b"a", ""), sys_flag=sysflag.TRANSACTION_PREPARED), PutStatus.MESSAGE_ILLEGAL),
        (batch((b"a", ""), sys_flag=sysflag.TRANSACTION_COMMIT), PutStatus.MESSAGE_ILLEGAL),
        (batch((b"a", ""), wrapper="DELAY\x011\x02"), PutStatus.MESSAGE_ILLEGAL),
        (batch((b"a", ""), sys_flag=sysflag.INNER_BATCH), PutStatus.MESSAGE_ILLEGAL),
        (batch((b"a", ""), wrapper="TIMER_DELAY_SEC\x015\x02"), PutStatus.WHEEL_TIMER_MSG_ILLEGAL),
        (batch((b"a", ""), (b"b", "TAGS\x01t\x02TIMER_DELAY_MS\x015\x02")), PutStatus.WHEEL_TIMER_MSG_ILLEGAL),
        (batch((b"a", "TIMER_DELIVER_MS\x011\x02")), PutStatus.WHEEL_TIMER_MSG_ILLEGAL),
        (batch(), PutStatus.MESSAGE_ILLEGAL),
        (Message("T", 0, None), PutStatus.MESSAGE_ILLEGAL),
        (Message("T", 0, b"\0\0\0\x08rest"), PutStatus.MESSAGE_ILLEGAL),
        (batch((bytes(3000), "")), PutStatus.UNKNOWN_ERROR),
        (batch((b"a", ""), topic="x" * 128), PutStatus.MESSAGE_ILLEGAL),
        (batch((b"a", ""), wrapper="a\x01" + "v" * 32_766), PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
)
def test_batches_that_cannot_be_stored(put: Message, status: PutStatus) -> None:
    kit = StoreKit(maxMessageSize="2000", mappedFileSizeCommitLog=str(1 << 20))
    store = kit.opened()
    ticket = store.put_batch(put)
    kit.runner.run()
    assert ticket.status is status
    assert ticket.remark
    assert store.watermarks.appended == 0
    assert kit.put(store, message("T", 0, b"a")).queue_offset == 0


def test_a_batch_that_only_speaks_of_timers_is_stored() -> None:
    kit = StoreKit()
    store = kit.opened()
    ticket = store.put_batch(batch((b"TIMER_DELAY_SEC\x015\x02", "MY_TIMER_DELAY_SEC\x01TIMER_DELAY_MS\x02")))
    kit.runner.advance(1)
    assert ticket.status is PutStatus.PUT_OK


def test_a_batch_that_grows_too_large_is_refused_whole() -> None:
    kit = StoreKit(maxMessageSize="2000", mappedFileSizeCommitLog=str(1 << 20))
    store = kit.opened()
    wrapper = "a\x01" + "v" * 2_000 + "\x02"
    ticket = store.put_batch(batch(*[(b"", "")] * 60, wrapper=wrapper))
    kit.runner.run()
    assert ticket.status is PutStatus.UNKNOWN_ERROR
    assert store.watermarks.appended == 0


def test_inner_batches_are_one_record_and_several_offsets() -> None:
    kit = StoreKit()
    kit.topics = SimpleTopics(frozenset({"B"}))
    store = kit.opened()
    flag = sysflag.INNER_BATCH | sysflag.NEED_UNWRAP
    inner = msgspec.structs.replace(message("B", 0, b"raw", UNIQ_KEY="U", INNER_NUM="5"), sys_flag=flag)
    first = kit.put(store, inner)
    second = kit.put(store, inner)
    single = kit.put(store, message("B", 0, b"single", UNIQ_KEY="S"))
    assert [first.queue_offset, second.queue_offset, single.queue_offset] == [0, 5, 10]
    assert (first.count, single.count) == (5, 1)
    assert record_at(store, second.physical_offset).property_map()["INNER_BASE"] == "5"
    assert store.max_offset("B", 0) == 11
    result = store.get_message("g", "B", 0, 7, 32)
    assert result is not None
    assert (result.message_count, result.next_begin_offset) == (6, 11)
    assert [part.start for part in result.ranges] == [second.physical_offset]
    result.release()


def test_light_queues_get_offsets_of_their_own() -> None:
    kit = StoreKit(enableLmq="true", enableMultiDispatch="true")
    store = kit.opened()
    targets = ["%LMQ%a", "%LMQ%a,%LMQ%b", "%LMQ%b,other", "%LMQ%a"]
    written = []
    for number, names in enumerate(targets):
        ticket = kit.put(store, message("T", 0, b"%d" % number, INNER_MULTI_DISPATCH=names, WAIT="true"))
        written.append(record_at(store, ticket.physical_offset).property_map()["INNER_MULTI_QUEUE_OFFSET"])
    assert written == ["0", "1,0", "1,", "2"]
    assert bodies(store, "%LMQ%a", 0) == [b"0", b"1", b"3"]
    assert bodies(store, "%LMQ%b", 0) == [b"1", b"2"]
    assert bodies(store, "T", 0) == [b"0", b"1", b"2", b"3"]
    retry = kit.put(store, message("%RETRY%g", 0, b"r", INNER_MULTI_DISPATCH="%LMQ%a"))
    assert "INNER_MULTI_QUEUE_OFFSET" not in record_at(store, retry.physical_offset).property_map()
    assert store.max_offset("%LMQ%a", 0) == 3


def test_a_light_message_may_have_max_message_size_as_a_whole() -> None:
    kit = StoreKit(enableLmq="true", maxMessageSize="1000")
    store = kit.opened()
    assert kit.put(store, message("T", 0, bytes(950))).status is PutStatus.PUT_OK
    refused = kit.put(store, message("T", 0, bytes(950), INNER_MULTI_DISPATCH="%LMQ%a"))
    assert refused.status is PutStatus.MESSAGE_ILLEGAL
    ticket = kit.put(store, message("T", 0, b"", INNER_MULTI_DISPATCH="%LMQ%a"))
    assert record_at(store, ticket.physical_offset).property_map()["INNER_MULTI_QUEUE_OFFSET"] == "0"


def test_every_record_can_carry_a_checksum_of_its_own() -> None:
    kit = StoreKit(enabledAppendPropCRC="true")
    store = kit.opened()
    tickets = [
        kit.put(store, Message("T", 0, b"a", b"TAGS\x01x\x02")),
        kit.put(store, Message("T", 0, b"b", b"TAGS\x01x")),
        kit.put(store, Message("T", 0, b"c", b"__CRC32#\x011234567890\x02TAGS\x01x\x02")),
        kit.put(store, Message("T", 0, b"d")),
    ]
    batched = store.put_batch(batch((b"e", "TAGS\x01x"), (b"f", "")))
    kit.runner.run()
    for offset in [*(ticket.physical_offset for ticket in tickets), *batched.offsets]:
        found = store.message_at(offset)
        assert found is not None
        data = found.read()
        assert verify_property_crc(data, 0, len(data))
        properties = record_at(store, offset).property_map()
        assert properties.pop("__CRC32#")
        assert properties in ({"TAGS": "x"}, {})


class _RefuseSecrets:
    """A transform of a later day."""

    wakes_on: tuple[bytes, ...] = (b"SECRET\x01",)

    def __call__(self, message: Message) -> Message | Refusal:
        return Refusal(PutStatus.MESSAGE_ILLEGAL, "no secrets")


def test_a_transform_that_joins_later_sees_texts_of_a_known_shape() -> None:
    kit = StoreKit()
    store = kit.opened()
    for number in range(3):
        assert kit.put(store, message("T", 0, b"a", SECRET="x", UNIQ_KEY=f"U{number}")).status is PutStatus.PUT_OK
    store.transforms.append(_RefuseSecrets())
    refused = kit.put(store, message("T", 0, b"a", SECRET="x", UNIQ_KEY="U3"))
    assert (refused.status, refused.remark) == (PutStatus.MESSAGE_ILLEGAL, "no secrets")
    assert kit.put(store, message("T", 0, b"a", UNIQ_KEY="U4")).status is PutStatus.PUT_OK
