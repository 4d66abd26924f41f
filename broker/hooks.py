"""Plug-ins of the broker: they see requests, answers, and messages that are sent and consumed.

A plug-in is a `BrokerHook` that an installed package names under the entry point `cometmq.broker_hooks`. One that
raises is logged and counted, and the request goes on as if it had not been there; only `HookRefused` refuses. Without
plug-ins nothing of this is on the way of a request: the handlers are wrapped only for those that there are. Mirrors
RocketMQ's RPCHook, SendMessageHook and ConsumeMessageHook.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from importlib import metadata
from typing import Any, Literal

from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import ProtocolError
from cometmq.remoting.dispatch import LATER, NO_ANSWER, Entry, Handler, Outcome, Request, Response, Result

ENTRY_POINT = "cometmq.broker_hooks"

SENDS = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})

log = logging.getLogger(__name__)


class HookRefused(ProtocolError):
    """Raised by a plug-in that wants a request to fail; the client gets the code and the text."""

    def __init__(self, remark: str, code: int = int(ResponseCode.NO_PERMISSION)) -> None:
        self.refusal = Response(code, remark=remark)
        super().__init__(remark)


class BrokerHook:
    """The base of a plug-in: override what you need. Every method runs on the event loop, so it must not block."""

    def before_request(self, request: Request[Any]) -> None:
        """A request has come and was not looked at yet. Raise `HookRefused` to answer it with an error."""

    def after_request(self, request: Request[Any], response: Response) -> None:
        """The answer to a request is known and will go out now; oneway requests have one too."""

    def on_send(self, request: Request[Any]) -> None:
        """A message or a batch is about to be stored: `request.header` has its topic, group and properties, and
        `request.body` its bytes. Raise `HookRefused` to keep it out."""

    def on_consume(self, request: Request[Any], response: Response) -> None:
        """A pull has found messages: `request.header` has group, topic and queue, `response.body` the records. Raise
        `HookRefused` to give the client an error instead of them."""


class Hooks:
    """The plug-ins of one broker, and how often each of them failed."""

    def __init__(self, hooks: Iterable[BrokerHook] = ()) -> None:
        self.hooks = tuple(hooks)
        #: (class of the plug-in, method) -> how often it raised something else than `HookRefused`.
        self.failures: Counter[tuple[str, str]] = Counter()

    @classmethod
    def installed(cls) -> "Hooks":
        """Those that installed packages name. One that cannot be loaded is logged and left out."""
        found = []
        for entry in metadata.entry_points(group=ENTRY_POINT):
            try:
                hook = entry.load()()
                if not isinstance(hook, BrokerHook):
                    raise TypeError(f"{entry.value} makes a {type(hook).__name__}, not a BrokerHook")
            except Exception:
                log.exception("the plug-in %s cannot be used; the broker goes on without it", entry.name)
            else:
                log.info("plug-in %s: %s", entry.name, entry.value)
                found.append(hook)
        return cls(found)

    def before(self) -> "Callable[[Request[Any], Entry], Response | None] | None":
        """What to put before the handlers; None without plug-ins that want it."""
        hooks = self._with("before_request")
        if not hooks:
            return None

        def before(request: Request[Any], entry: Entry) -> Response | None:
            return self._call(hooks, "before_request", request)

        return before

    def wrap(self, code: RequestCode, handler: Handler) -> Handler:
        """The handler of a code with the plug-ins around it; the handler itself where none wants that code."""
        before = self._with("on_send") if code in SENDS else []
        after = self._with("after_request")
        consume = self._with("on_consume") if code in PULLS else []
        if not (before or after or consume):
            return handler

        def answered(request: Request[Any], response: Response) -> Response:
            if consume and response.code == 0:
                response = self._call(consume, "on_consume", request, response) or response
            self._call(after, "after_request", request, response, may_refuse=False)
            return response

        async def awaited(request: Request[Any], work: Awaitable[Result]) -> Result:
            result = await work
            return answered(request, result) if isinstance(result, Response) else result

        def handle(request: Request[Any]) -> Result | Awaitable[Result]:
            refusal = self._call(before, "on_send", request)
            if refusal is not None:
                return answered(request, refusal)
            result = handler(_Watched.of(request, answered))
            if isinstance(result, Response):
                return answered(request, result)
            if result is LATER or result is NO_ANSWER:
                return result
            return awaited(request, result)

        return handle

    def _with(self, method: str) -> list[BrokerHook]:
        return [hook for hook in self.hooks if getattr(type(hook), method) is not getattr(BrokerHook, method)]

    def _call(
        self, hooks: Iterable[BrokerHook], method: str, *arguments: Any, may_refuse: bool = True
    ) -> Response | None:
        """Calls a method of the plug-ins; the refusal of the first one that refuses."""
        for hook in hooks:
            try:
                getattr(hook, method)(*arguments)
            except HookRefused as refusal:
                if may_refuse:
                    return refusal.refusal
                self._failed(hook, method)
            except Exception:
                self._failed(hook, method)
        return None

    def _failed(self, hook: BrokerHook, method: str) -> None:
        name = type(hook).__name__
        self.failures[name, method] += 1
        log.exception("%s of the plug-in %s failed (%d times)", method, name, self.failures[name, method])


class _Watched(Request[Any]):
    """A request whose answer is seen on its way out, whoever gives it and whenever."""

    original: Request[Any] | None = None
    answered: Callable[[Request[Any], Response], Response] | None = None

    @classmethod
    def of(cls, request: Request[Any], answered: Callable[[Request[Any], Response], Response]) -> "_Watched":
        return cls(
            request.connection,
            request.command,
            request.header,
            request.kind,
            request.raw_header,
            request.body,
            request.received,
            original=request,
            answered=answered,
        )

    @property
    def is_answered(self) -> bool:
        return self.original is not None and self.original.is_answered

    def reply(self, response: Response | Literal[Outcome.NO_ANSWER]) -> None:
        assert self.original is not None
        assert self.answered is not None
        if isinstance(response, Response):
            response = self.answered(self.original, response)
        self.original.reply(response)
