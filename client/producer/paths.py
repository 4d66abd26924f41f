"""The short way to a topic: for each of its queues everything of a send request that is the same for all messages.

A send that needs nothing out of the ordinary is written by it in one step: choose a queue, fill the header's gaps, hand
head and body to the connection. Sends always have JSON headers: they are made from a template in 1 us, and both brokers
read them by their fastest way. Budget of a whole send, awaited, with 1 KiB: 12 us (bench/client.py).
"""

import random
from json.encoder import encode_basestring as quote
from struct import Struct
from typing import Final

from cometmq.client.errors import InvalidMessage
from cometmq.client.producer.batch import Batch
from cometmq.client.producer.outgoing import SEND, SEND_BATCH, Outgoing
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import TopicRoute
from cometmq.protocol.codes import CURRENT_VERSION, LanguageCode
from cometmq.protocol.command import SerializeType
from cometmq.protocol.frame import MAX_FRAME, PREFIX_SIZE, frame_head

_PREFIX: Final = Struct(">II")
_LIMIT: Final = MAX_FRAME - PREFIX_SIZE
_TAIL: Final = f',"serializeTypeCurrentRPC":"JSON","version":{CURRENT_VERSION}}}'


class QueuePath:
    """The way to one queue."""

    __slots__ = ("_parts", "address", "queue")

    def __init__(
        self, queue: MessageQueue, address: str, group: str, topic: str, template: str, template_queues: int
    ) -> None:
        """`queue` as its user sees it; `topic` as it goes on the wire."""
        self.queue = queue
        self.address = address
        start = (
            f'"a":{quote(group)},"b":{quote(topic)},"c":{quote(template)},"d":"{template_queues}",'
            f'"e":"{queue.queue_id}","f":"'
        )
        end = f',"n":{quote(queue.broker_name)}}},"flag":0,"language":"{LanguageCode.PYTHON.name}","opaque":'
        self._parts = {
            code: (f'{{"code":{code},"extFields":{{{start}', f',"j":"0","k":"false","m":"{batch}"{end}')
            for code, batch in ((SEND, "false"), (SEND_BATCH, "true"))
        }

    def head(self, opaque: int, outgoing: Outgoing, body_length: int) -> bytes:
        """The head of the frame; the body follows."""
        start, end = self._parts[outgoing.code]
        try:
            data = (
                f'{start}{outgoing.sys_flag}","g":"{outgoing.born}","h":"{outgoing.flag}",'
                f'"i":{quote(outgoing.properties)}{end}{opaque}{_TAIL}'
            ).encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"tag, keys or a property cannot be written as UTF-8: {error}") from None
        size = len(data)
        if size + body_length > _LIMIT:
            return frame_head(SerializeType.JSON, data, body_length)  # says what is too large
        return _PREFIX.pack(4 + size + body_length, size) + data


class TopicPath:
    """The ways to the queues of a topic, in turns. Valid as long as its route is."""

    __slots__ = ("_turns", "by_queue", "filling", "paths", "route", "topic")

    def __init__(self, topic: str, route: TopicRoute, paths: list[QueuePath], turns: dict[str, int]) -> None:
        """`turns` are the counters of the round robin, by topic: those of `QueueChoice`."""
        self.topic = topic
        self.route = route
        self.paths = paths
        #: By the queues of the route.
        self.by_queue = dict(zip(route.publish, paths, strict=True))
        #: With accumulation: the batch that the next plain message joins.
        self.filling: Batch | None = None
        self._turns = turns
        turns.setdefault(topic, random.randrange(1 << 16))

    def next(self) -> QueuePath:
        turns, topic = self._turns, self.topic
        turns[topic] = turn = turns[topic] + 1
        paths = self.paths
        return paths[turn % len(paths)]
