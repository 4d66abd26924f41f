"""How a command of `mqadmin` is made: its options, the session it runs in, and how mistakes and failures are told.

A command is a coroutine that gets a `Session`. Everything that talks is imported when a command runs, so that help and
wrong usage are answered at once.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from cometmq.admin.output import Form, Output
from cometmq.daemon import SystemProperties, UsageError, tls_settings
from cometmq.protocol import names
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.errors import CometMQError

if TYPE_CHECKING:
    from cometmq.client import Client, Credentials
    from cometmq.client.admin import Admin

PROGRAM = "mqadmin"

#: Seconds for one request of an administrator.
REQUEST_TIMEOUT = 5.0

_NO_TOPIC = int(ResponseCode.TOPIC_NOT_EXIST)
NO_NAMESERVER = "give -n host:port, set NAMESRV_ADDR, or name an HTTP address server by ROCKETMQ_NAMESRV_DOMAIN"


class Session:
    """What a command works with: the admin client, the client it stands on, and the output."""

    def __init__(self, client: "Client", admin: "Admin", out: Output) -> None:
        self.client = client
        self.admin = admin
        self.out = out


Body = Callable[..., Awaitable[None]]


def option(*names: str, **settings: Any) -> click.Option:
    """An option: RocketMQ's names, then the name of the parameter."""
    settings.setdefault("metavar", None if settings.get("is_flag") else "<arg>")
    return click.Option(list(names), **settings)


def common_options() -> list[click.Parameter]:
    """What every command takes, and `mqadmin` itself before the command."""
    return [
        option("-n", "--namesrvAddr", "common_nameservers", help="Name server address list: 'host:9876;host2:9876'"),
        option("--plain", "common_plain", is_flag=True, help="RocketMQ's text, also on a terminal"),
        option("--json", "common_json", is_flag=True, help="One JSON document"),
        option("-D", "common_definitions", multiple=True, metavar="KEY=VALUE", help="A system property"),
        option("--access-key", "common_access_key", help="The user, where the brokers want one"),
        option("--secret-key", "common_secret_key", help="The user's secret"),
    ]


class AdminCommand(click.Command):
    """A command. Its callback gets the values of its options; the common ones are taken out before."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _two_dashes(args, self.get_params(ctx)))


def _two_dashes(args: Iterable[str], params: Iterable[click.Parameter]) -> list[str]:
    """Java's parser takes long options with one dash too: `-topic orders`."""
    known = {name for param in params for name in param.opts if name.startswith("--")}
    return [f"-{arg}" if f"-{arg.partition('=')[0]}" in known and not arg.startswith("--") else arg for arg in args]


def command(name: str, *options: click.Option | click.Argument, help: str) -> Callable[[Body], AdminCommand]:
    """Makes a coroutine `async def body(session, *, ...)` a command of `mqadmin`."""

    def make(body: Body) -> AdminCommand:
        @click.pass_context
        def callback(ctx: click.Context, /, **values: Any) -> None:
            settings = {key: values.pop(key) for key in list(values) if key.startswith("common_")}
            outer = ctx.find_root().params
            run(body, values, {key: value or outer.get(key) for key, value in settings.items()})

        return AdminCommand(
            name,
            params=[*options, *common_options()],
            callback=callback,
            help=help,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
        )

    return make


# Running one


def run(body: Body, values: dict[str, Any], settings: dict[str, Any]) -> None:
    """Run the body of a command in a session."""
    try:
        properties = SystemProperties(settings["common_definitions"] or ())
        out = Output(Form.choose(plain=settings["common_plain"], json=settings["common_json"]))
        given = settings["common_nameservers"] or properties.get("rocketmq.namesrv.addr")
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    with _exported(properties.defined):
        asyncio.run(_run(body, values, out, given, settings, properties))
    out.close()


@contextlib.contextmanager
def _exported(definitions: dict[str, str]) -> Iterator[None]:
    """The SDK reads system properties from the environment: `-D` puts them there while a command runs."""
    names = {key.upper().replace(".", "_"): value for key, value in definitions.items()}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


async def _run(
    body: Body,
    values: dict[str, Any],
    out: Output,
    nameservers: str | None,
    settings: dict[str, Any],
    properties: SystemProperties,
) -> None:
    from cometmq.client import connect
    from cometmq.client.addresses import configured_addresses
    from cometmq.remoting.errors import BadAddress
    from cometmq.remoting.tls import ClientTlsOptions

    task = asyncio.current_task()
    in_main = threading.current_thread() is threading.main_thread()
    if sys.platform != "win32" and in_main and task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        addresses = configured_addresses(nameservers)
    except BadAddress as error:
        raise click.UsageError(f"-n: {error}; {error.remedy}") from error
    client = connect(
        addresses,
        credentials=_credentials(settings, os.environ.get("ROCKETMQ_HOME", "")),
        tls=ClientTlsOptions.from_properties(tls_settings(properties)),
        request_timeout=REQUEST_TIMEOUT,
    )
    async with client:
        await body(Session(client, client.admin(request_timeout=REQUEST_TIMEOUT), out), **values)


def _credentials(settings: dict[str, Any], home: str) -> "Credentials | None":
    """The user by options, by environment, or by RocketMQ's file of its tools."""
    from cometmq.client import Credentials

    file = _tools_file(os.path.join(home, "conf", "tools.yml")) if home else {}
    environ = os.environ
    access = settings["common_access_key"] or environ.get("ROCKETMQ_ACCESS_KEY") or file.get("accessKey")
    secret = settings["common_secret_key"] or environ.get("ROCKETMQ_SECRET_KEY") or file.get("secretKey")
    if bool(access) != bool(secret):
        raise click.UsageError("a user needs both: --access-key and --secret-key")
    return Credentials(access, secret) if access and secret else None


def _tools_file(path: str) -> dict[str, str]:
    """The `key: value` lines of RocketMQ's tools.yml; nothing when it is not there."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.partition(":") for line in lines if not line.lstrip().startswith("#"))
    return {key.strip(): value.strip().strip("'\"") for key, colon, value in pairs if colon}


async def repeat(session: Session, seconds: float | None, show: Callable[[], Awaitable[None]]) -> None:
    """Show something once, or again and again until the process is told to stop."""
    task = asyncio.current_task()
    while True:
        try:
            await show()
            if seconds is None:
                return
            session.out.close()
            # A cancellation that comes together with an answer may be lost on the way here; that it was asked for, not.
            is_asked_to_end = task is not None and task.cancelling() > 0
            await asyncio.sleep(0 if is_asked_to_end else seconds)
            if is_asked_to_end:
                return
        except asyncio.CancelledError:
            return


# Telling what went wrong


def failure_line(name: str, error: CometMQError | OSError) -> str:
    """One line: what, why, what to do. Servers' answers with code and words, as RocketMQ's tools tell them."""
    from cometmq.client.errors import BrokerError, NoNameserver

    remedy = getattr(error, "remedy", "")
    code = getattr(error, "code", None)
    text = str(error)
    if isinstance(error, BrokerError):
        text = error.remark.partition("\n")[0] or "no remark"
        if error.address != "the nameserver":
            text += f" BROKER: {error.address}"
        if names.RETRY_PREFIX in text and error.code == _NO_TOPIC:
            remedy = "check the name of the group: it gets this topic when its first consumer starts"
    elif isinstance(error, NoNameserver):
        remedy = (
            NO_NAMESERVER if "no nameserver was given" in text else "check the addresses, and that one of them runs"
        )
    what = f"CODE: {code}  DESC: {text}" if isinstance(code, int) else text
    return f"{PROGRAM} {name}: {what}{'; ' if remedy else ''}{remedy}".replace("\n", " ")


def tell_failure(name: str, error: CometMQError | OSError) -> None:
    """Say on stderr what is missing in a list that goes on without it."""
    print(failure_line(name, error), file=sys.stderr)
