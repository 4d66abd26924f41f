"""What a listener gets: the arguments of a user's function, made of a message by their annotations.

No I/O. A function that no message could be given to is refused where it is declared; a body that does not fit raises
`BodyMismatch` when it comes, and its message goes the way of every failed one.
"""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import msgspec.inspect

from cometmq.client.errors import ClientError
from cometmq.client.message import ReceivedMessage

Convert = Callable[[ReceivedMessage], Any]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class BodyMismatch(ClientError, ValueError):
    """Raised when a body is not what the annotation of its handler says."""

    remedy = "correct the sender, or annotate the handler's argument with what really comes"


class HandlerCall:
    """A user's function, called with a message. What it gives is a coroutine if the function is one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        self._function = function
        self._arguments = [self._converter(parameter) for parameter in self._parameters()]
        call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        self.is_coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)

    def __call__(self, message: ReceivedMessage) -> Any:
        return self._function(*[convert(message) for convert in self._arguments])

    def _parameters(self) -> list[inspect.Parameter]:
        """Those that have to be given: one, or two of which one takes the whole message."""
        try:
            signature = inspect.signature(self._function, eval_str=True)
        except NameError as error:
            raise TypeError(f"an annotation of {self.name} cannot be found: {error}") from error
        needed = [each for each in signature.parameters.values() if each.default is inspect.Parameter.empty]
        needed = [each for each in needed if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        whole = sum(each.annotation is ReceivedMessage for each in needed)
        if any(each.kind not in _POSITIONAL for each in needed) or not (
            len(needed) == 1 or (len(needed) == 2 and whole == 1)
        ):
            raise TypeError(
                f"{self.name} takes the body, the ReceivedMessage, or both: "
                f"def {self.name.rpartition('.')[2]}(body: dict, message: ReceivedMessage)"
            )
        return needed

    def _converter(self, parameter: inspect.Parameter) -> Convert:
        wanted = parameter.annotation
        if wanted is ReceivedMessage:
            return lambda message: message
        if wanted in (bytes, Any, inspect.Parameter.empty):
            return lambda message: message.body
        if wanted is str:
            return self._checked(lambda body: body.decode("utf-8"), "UTF-8 text")
        what = f"JSON of {getattr(wanted, '__name__', wanted)}"
        if callable(from_json := getattr(wanted, "model_validate_json", None)):  # pydantic's models
            return self._checked(from_json, what)
        try:
            if isinstance(msgspec.inspect.type_info(wanted), msgspec.inspect.CustomType):
                raise TypeError("it is none of the types that msgspec knows")
            return self._checked(msgspec.json.Decoder(wanted).decode, what)
        except TypeError as error:
            raise TypeError(f"{self.name} wants its body as {wanted!r}, which JSON cannot give: {error}") from error

    def _checked(self, convert: Callable[[bytes], Any], what: str) -> Convert:
        def checked(message: ReceivedMessage) -> Any:
            try:
                return convert(message.body)
            except (ValueError, msgspec.DecodeError) as error:
                # The texts of other libraries may quote the body, which belongs into no log.
                why = str(error) if isinstance(error, msgspec.MsgspecError) else type(error).__name__
                text = f"the body of {message!r} is no {what}, as {self.name} wants it: {why}"
                raise BodyMismatch(text) from None

        return checked
