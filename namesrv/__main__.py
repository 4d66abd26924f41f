"""The `mqnamesrv` command: options and files in, a running nameserver out.

Thin on purpose: what it starts is `NameServer`. The modules behind it are loaded after the command line was read, so
that a mistake there is answered at once. Options and words are those of RocketMQ's NamesrvStartup.
"""

import os
import sys
from typing import TYPE_CHECKING

import click

from cometmq.daemon import StartError, SystemProperties, UsageError, exit_with, read_properties
from cometmq.protocol.errors import CometMQError

if TYPE_CHECKING:
    import asyncio

    from cometmq.namesrv.config import NamesrvConfig

PROGRAM = "mqnamesrv"

#: Any key of the configuration file is also the system property with this in front of it, and so an environment
#: variable: `ROCKETMQ_NAMESRV_LISTENPORT`.
PREFIX = "rocketmq.namesrv."


@click.command(name=PROGRAM, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("-c", "--configFile", "config_file", metavar="FILE", help="Configuration file, in .properties form.")
@click.option("-p", "--printConfigItem", "print_config", is_flag=True, help="Print all config items and exit.")
@click.option("-n", "--namesrvAddr", "nameservers", metavar="LIST", help="Accepted, as RocketMQ does; has no effect.")
@click.option("-d", "--logDir", "log_dir", metavar="DIR", help="Log to rotated files here instead of stdout.")
@click.option("-D", "definitions", metavar="KEY=VALUE", multiple=True, help="A system property or config item.")
@click.option(
    "--address-server",
    "address_port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Also serve the list of nameservers over HTTP, as /rocketmq/nsaddr.",
)
@click.option("--addresses", metavar="LIST", help="The list that is served there, `ip:port;ip:port` [default: itself].")
def main(
    config_file: str | None,
    print_config: bool,
    nameservers: str | None,
    log_dir: str | None,
    definitions: tuple[str, ...],
    address_port: int | None,
    addresses: str | None,
) -> None:
    """Start a nameserver, compatible with Apache RocketMQ's."""
    try:
        if addresses is not None and address_port is None:
            raise UsageError("--addresses is the list of --address-server, which was not given")
        properties = SystemProperties(definitions)
        config = load_config(config_file, properties)
        if print_config:
            sys.stdout.write(config.to_text())
            return
        _serve(config, properties, log_dir, address_port, addresses)
    except (CometMQError, OSError) as error:
        exit_with(PROGRAM, error)


def load_config(config_file: str | None, properties: SystemProperties) -> "NamesrvConfig":
    """The settings of file, environment and command line; each stands above the ones before it."""
    from cometmq.namesrv.config import OPTIONS, ConfigError, from_sources

    file = read_properties(config_file) if config_file else {}
    overrides = properties.overrides(PREFIX, OPTIONS.keys())
    home = properties.get("rocketmq.home.dir") or os.environ.get("ROCKETMQ_HOME", "")
    try:
        path = os.path.abspath(config_file) if config_file else None
        return from_sources(file, overrides, path=path, rocketmq_home=home)
    except ConfigError as error:
        raise StartError(f"bad configuration: {error}", error.remedy) from error


def _serve(
    config: "NamesrvConfig",
    properties: SystemProperties,
    log_dir: str | None,
    address_port: int | None,
    addresses: str | None,
) -> None:
    from cometmq import daemon
    from cometmq.namesrv.address_server import AddressServer
    from cometmq.namesrv.server import NameServer
    from cometmq.remoting.address import format_address, parse_addresses
    from cometmq.remoting.errors import BadAddress
    from cometmq.remoting.tls import ClientTlsOptions, TlsOptions

    if addresses is not None:
        try:
            addresses = ";".join(format_address(*address) for address in parse_addresses(addresses))
        except BadAddress as error:
            raise UsageError(f"--addresses: {error}") from error
    log_dir = log_dir or properties.get("rocketmq.log.dir") or config.log_dir or None
    daemon.log_to(log_dir, "namesrv.log")
    tls = daemon.tls_settings(properties)
    frame_limit = daemon.frame_limit(properties)

    async def serve(stop: "asyncio.Event") -> None:
        server = NameServer(
            config,
            tls=TlsOptions.from_properties(tls),
            client_tls=ClientTlsOptions.from_properties(tls),
            frame_limit=frame_limit,
        )

        def listed(reached: str) -> str:
            """Who listens everywhere is where the client found it."""
            own = reached if config.bind_address in ("", "0.0.0.0", "::") else config.bind_address
            return addresses or format_address(own, server.port)

        directory = AddressServer(listed, host=config.bind_address, port=address_port or 0)
        try:
            await server.start()
            if address_port is not None:
                await directory.start()
            where = format_address(config.bind_address, server.port)
            daemon.announce(f"The Name Server boot success. serializeType=JSON, address {where}")
            await stop.wait()
        finally:
            await directory.close()
            await server.close()

    daemon.run(serve)


if __name__ == "__main__":
    main(prog_name=PROGRAM)
