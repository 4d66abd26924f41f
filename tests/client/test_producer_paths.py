"""The short way of a send: its header is the one that the general way writes, and bad texts are refused on both."""

import asyncio
import struct
from collections.abc import Callable

import pytest

from cometmq.client import Client, Message, MessageQueue
from cometmq.client.errors import InvalidMessage
from cometmq.client.producer.outgoing import SEND, SEND_BATCH, Compression, Outgoing, Packer
from cometmq.client.producer.paths import QueuePath
from cometmq.client.producer.short_way import EARLY
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.codec import decode
from cometmq.protocol.errors import FrameError
from cometmq.protocol.message_id import UniqueKeyGenerator
from cometmq.protocol.properties import parse_properties
from cometmq.protocol.requests.send import SendMessageV2

Name = Callable[[str], str]
PATH = QueuePath(MessageQueue("T", 'broker "a"', 3), "127.0.0.1:1", "PG", "NS%T", "TBW102", 4)


def packer(**options: object) -> Packer:
    settings = {"compression": None, "max_message_size": 1000, **options}
    return Packer(UniqueKeyGenerator("127.0.0.1", 1, 2), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("code", "is_batch"), [(SEND, False), (SEND_BATCH, True)])
@pytest.mark.parametrize("text", ["", "a\x01b\x02", 'quotes " and \\ and ü 漢 \x01\x02'])
def test_the_header_by_template_is_the_usual_one(code: int, is_batch: bool, text: str) -> None:
    outgoing = Outgoing("NS%T", b"body", text, "K", 7, 9, code, 1_700_000_000_123)
    head = PATH.head(42, outgoing, 4)
    assert struct.unpack(">I", head[:4])[0] == len(head[4:] + b"body")
    command = decode(head[4:] + b"body").command
    assert (command.code, command.opaque, command.flag, command.language, command.version) == (
        code,
        42,
        0,
        "PYTHON",
        479,
    )
    assert command.header == SendMessageV2(
        "PG", "NS%T", "TBW102", 4, 3, 9, 1_700_000_000_123, 7, text, 0, False, None, is_batch, 'broker "a"'
    )


def test_a_frame_that_would_be_too_long_is_refused() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        PATH.head(1, Outgoing("T", b"", "", "K"), 17 * 1024 * 1024)


def test_plain_and_rich_messages_pack_alike() -> None:
    plain = packer().pack("T", b"x", "tag", ["k1", "k2"], {"mine": "1"}, 5)
    rich = packer().pack_message("T", Message(b"x", "tag", ["k1", "k2"], {"mine": "1"}, 5))
    left, right = parse_properties(plain.properties), parse_properties(rich.properties)
    assert left.pop("UNIQ_KEY") == plain.unique_key
    assert right.pop("UNIQ_KEY") == rich.unique_key
    assert left == right == {"WAIT": "true", "TAGS": "tag", "KEYS": "k1 k2", "mine": "1"}
    assert (plain.flag, plain.body, plain.born > 0) == (5, b"x", True)


def test_items_of_a_batch_say_what_single_messages_say() -> None:
    one = packer(instance_id="NS")
    for tag, keys in ((None, None), ("t", "k")):
        key, size, head, tail = one.item(b"body", tag, keys, None, 3)
        (item,) = decode_batch(head + b"body" + tail)
        assert len(head + b"body" + tail) == size
        pairs = parse_properties(item.properties.decode())
        assert (item.body, item.flag, pairs["UNIQ_KEY"], pairs["WAIT"]) == (b"body", 3, key, "true")
        assert (pairs.get("TAGS"), pairs.get("KEYS"), pairs["INSTANCE_ID"]) == (tag, keys, "NS")
    plain_key, _, head, tail = packer().item(b"body")
    (item,) = decode_batch(head + b"body" + tail)
    assert parse_properties(item.properties.decode()) == {"UNIQ_KEY": plain_key, "WAIT": "true"}


def test_bodies_are_compressed_on_the_short_way_too() -> None:
    outgoing = packer(compression=Compression(threshold=100)).pack("T", b"x" * 500)
    assert len(outgoing.body) < 100
    assert outgoing.sys_flag & 1


async def test_texts_that_no_reader_would_understand(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        for warm in (b"first", b"short"):
            await producer.send(name("T"), warm)
            with pytest.raises(InvalidMessage, match="0x02"):
                await producer.send(name("T"), b"x", tag="a\x02b")
            with pytest.raises(InvalidMessage, match="separate properties"):
                await producer.send(name("T"), b"x", properties={"a\x01": "b"})
            with pytest.raises(InvalidMessage, match="empty name or value"):
                await producer.send(name("T"), b"x", properties={"a": ""})
            with pytest.raises(InvalidMessage, match="meaning of its own"):
                await producer.send(name("T"), b"x", properties={"UNIQ_KEY": "mine"})
            with pytest.raises(InvalidMessage, match="UTF-8"):
                await producer.send(name("T"), b"x", tag="\ud800")
            with pytest.raises(TypeError, match="text"):
                await producer.send(name("T"), b"x", properties={"a": 1})  # type: ignore[dict-item]
        assert (await producer.send(name("T"), b"fine")).status == "SEND_OK"


async def test_much_output_does_not_wait_for_the_end_of_the_turn(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        await producer.send(name("T"), b"opens the short way")
        short, loop = producer._short, asyncio.get_running_loop()
        path = short.paths[name("T")]
        output = mq.remoting.connections[path.paths[0].address].output
        before = output.handed
        firsts = []
        for _ in range(3):
            outgoing = Outgoing(path.topic, bytes(EARLY // 2), "WAIT\x01true\x02", "K")
            firsts.append(short.begin(path, outgoing, loop.time(), 3.0))
        assert output.handed - before >= EARLY, "two of them have left"
        assert 0 < output.gathered < EARLY, "one waits for more"
        receipts = [await short.end(first) for first in firsts if first is not None]
        assert [receipt.status for receipt in receipts] == ["SEND_OK"] * 3
