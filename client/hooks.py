"""Hooks: what an application wants to know, or to forbid, about every message that it sends or consumes.

A hook is an object with any of the methods of `SendHook` or `ConsumeHook`. One that raises is logged and harms nothing;
only `check_forbidden` may stop a send. RocketMQ's SendMessageHook, CheckForbiddenHook and ConsumeMessageHook.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cometmq.client.message import Message, ReceivedMessage, SendReceipt
from cometmq.client.queues import MessageQueue

log = logging.getLogger(__name__)


class SendContext:
    """One attempt of a send, as hooks see it. `before_send` and `after_send` of an attempt get the same object."""

    __slots__ = (
        "address",
        "attempt",
        "body_size",
        "client_address",
        "error",
        "group",
        "is_batch",
        "is_oneway",
        "message",
        "namespace",
        "notes",
        "properties",
        "properties_text",
        "queue",
        "receipt",
        "seconds",
        "topic",
        "unique_key",
    )

    def __init__(
        self,
        *,
        group: str,
        topic: str,
        namespace: str,
        message: Message | None,
        unique_key: str,
        properties_text: str,
        body_size: int,
        queue: MessageQueue,
        address: str,
        client_address: str,
        attempt: int,
        is_oneway: bool = False,
        is_batch: bool = False,
    ) -> None:
        self.group = group
        self.topic = topic
        self.namespace = namespace
        #: As the user gave it; None for a batch, and for what the client sends by itself.
        self.message = message
        #: The message id; of a batch all of them, separated by commas.
        self.unique_key = unique_key
        #: All properties in RocketMQ's text form; see `cometmq.protocol.properties`.
        self.properties_text = properties_text
        #: Bytes of the body as it is sent, that is compressed.
        self.body_size = body_size
        self.queue = queue
        self.address = address
        self.client_address = client_address
        #: 0 for the first one.
        self.attempt = attempt
        self.is_oneway = is_oneway
        self.is_batch = is_batch
        #: Properties that a hook adds to this attempt in `before_send`. Not for batches.
        self.properties: dict[str, str] = {}
        #: How it ended, in `after_send`: a receipt or an error (a oneway message has neither), and the time it took.
        self.receipt: SendReceipt | None = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        #: For hooks to keep something from `before_send` to `after_send`.
        self.notes: dict[str, Any] = {}


class SendHook:
    """What a producer's hook may do; override what you need."""

    def check_forbidden(self, context: SendContext) -> None:
        """Raise to forbid this send. What is raised reaches the sender, and nothing is sent."""

    def before_send(self, context: SendContext) -> None:
        """An attempt begins."""

    def after_send(self, context: SendContext) -> None:
        """An attempt has ended."""


class ConsumeContext:
    """Messages that were handed to an application, as hooks see them."""

    __slots__ = ("error", "group", "is_success", "messages", "namespace", "notes", "queue", "seconds")

    def __init__(self, *, group: str, namespace: str, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> None:
        self.group = group
        self.namespace = namespace
        self.queue = queue
        self.messages = messages
        #: How it ended, in `after_consume`.
        self.is_success = False
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.notes: dict[str, Any] = {}


class ConsumeHook:
    """What a consumer's hook may do; override what you need."""

    def before_consume(self, context: ConsumeContext) -> None:
        """Messages are about to be processed."""

    def after_consume(self, context: ConsumeContext) -> None:
        """They have been, well or not."""


class Hooks:
    """The hooks of one producer or consumer, found once by the names of their methods."""

    def __init__(self, hooks: Iterable[object] = ()) -> None:
        given = list(hooks)
        self._checks = _methods(given, "check_forbidden", SendHook)
        self._before_send = _methods(given, "before_send", SendHook)
        self._after_send = _methods(given, "after_send", SendHook)
        self._before_consume = _methods(given, "before_consume", ConsumeHook)
        self._after_consume = _methods(given, "after_consume", ConsumeHook)
        self.sends = bool(self._checks or self._before_send or self._after_send)
        self.consumes = bool(self._before_consume or self._after_consume)

    def check(self, context: SendContext) -> None:
        for check in self._checks:
            check(context)

    def before_send(self, context: SendContext) -> None:
        _call(self._before_send, context)

    def after_send(self, context: SendContext) -> None:
        _call(self._after_send, context)

    def before_consume(self, context: ConsumeContext) -> None:
        _call(self._before_consume, context)

    def after_consume(self, context: ConsumeContext) -> None:
        _call(self._after_consume, context)


def _methods(hooks: list[object], name: str, base: type) -> list[Callable[[Any], None]]:
    """The bound methods of that name, without those that do nothing."""
    return [
        getattr(hook, name)
        for hook in hooks
        if callable(getattr(hook, name, None)) and getattr(type(hook), name, None) is not getattr(base, name)
    ]


def _call(methods: list[Callable[[Any], None]], context: object) -> None:
    for method in methods:
        try:
            method(context)
        except Exception:
            log.exception("the hook %s failed", getattr(method, "__qualname__", method))
