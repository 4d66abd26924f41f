"""Addresses as text: `ip:port`, as routes, registrations and `namesrvAddr` carry them.

Nothing is resolved here. An IPv6 address is written in brackets; without them the last colon splits off the port, as
RocketMQ does.
"""

from cometmq.remoting.errors import BadAddress

MAX_PORT = 65535


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[v6]:port` or `v6:port`."""
    host, colon, port_text = text.strip().rpartition(":")
    if not colon or not host:
        raise BadAddress(f"address {text!r} is not of the form host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or any(c in host for c in "[]/,; \t\r\n\0"):
        raise BadAddress(f"address {text!r} has no valid host")
    if not (port_text.isascii() and port_text.isdigit()) or len(port_text) > 5 or int(port_text) > MAX_PORT:
        raise BadAddress(f"address {text!r} has no port between 0 and {MAX_PORT}")
    return host, int(port_text)


def format_address(host: str, port: int) -> str:
    """`host:port`, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """All addresses of a list like `namesrvAddr`: `a:1;b:2`. Empty entries are skipped."""
    return [parse_address(entry) for entry in text.split(";") if entry.strip()]
