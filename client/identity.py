"""Who a client is: its address and its id. RocketMQ's ClientConfig.buildMQClientId and NetworkUtil.getLocalAddress."""

import os
import socket
import time

#: Where a probe for the local address points; nothing is sent there (TEST-NET-1, and its IPv6 twin).
_ANYWHERE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))


def local_address() -> str:
    """The address of this machine that others would see; the loopback address when it has no other."""
    for target, family in _ANYWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))  # chooses a route, sends nothing
                address: str = probe.getsockname()[0]
        except OSError:
            continue
        if not address.startswith("127."):
            return address
    return "127.0.0.1"


def own_instance_name() -> str:
    """A name that no other client of this machine has: process and time."""
    return f"{os.getpid()}#{time.monotonic_ns()}"


def client_id(address: str, instance_name: str, unit_name: str = "", *, stream: bool = False) -> str:
    """The id that a client has on brokers. `stream` marks clients that pull by themselves."""
    host = f"[{address}]" if ":" in address else address
    return f"{host}@{instance_name}{f'@{unit_name}' if unit_name else ''}{'@STREAM' if stream else ''}"
