"""Delay levels under load: how late messages come when many are due each second.

A broker of its own on a temporary store; puts go in at an even rate with the level of one second, as sends do, and what
arrives in the topic is looked at: its time of arrival against the time at which it was due.

    scripts/bench delay [--rate 10000] [--seconds 10]
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence

from cometmq.broker.broker import Broker
from cometmq.broker.config import BrokerConfig
from cometmq.broker.store.dispatch import TellArrivals
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.message import Message
from cometmq.daemon import loop_factory
from cometmq.protocol.properties import encode_properties

TOPIC, LEVEL, DELAY = "Delayed", 1, 1000
BODY = b"x" * 1024


class Lateness:
    """How late each message came, in milliseconds."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def arrived(self, requests: Sequence[DispatchRequest]) -> None:
        now = time.time_ns() // 1_000_000
        for request in requests:
            if request.topic == TOPIC and request.keys is not None:
                self.values.append(now - int(request.keys) - DELAY)

    def at(self, share: float) -> int:
        return sorted(self.values)[min(int(len(self.values) * share), len(self.values) - 1)]


async def measure(rate: int, seconds: int) -> None:
    lateness = Lateness()
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as folder:
        settings = {"storePathRootDir": folder, "listenPort": "0", "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1"}
        async with Broker(BrokerConfig().with_properties(settings)) as broker:
            store = broker.state.store
            store.dispatch.append(TellArrivals(lateness.arrived))
            cpu = time.process_time()
            began = asyncio.get_running_loop().time()
            sent = 0
            while sent < rate * seconds:
                due = int((asyncio.get_running_loop().time() - began) * rate)
                for _ in range(min(due, rate * seconds) - sent):
                    now = time.time_ns() // 1_000_000
                    text = encode_properties({"DELAY": str(LEVEL), "KEYS": str(now), "UNIQ_KEY": f"{sent:032X}"})
                    store.put(Message(TOPIC, sent % 8, BODY, text, born_timestamp=now))
                    sent += 1
                await asyncio.sleep(0.002)
            deadline = asyncio.get_running_loop().time() + 60
            while len(lateness.values) < sent and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            cpu = time.process_time() - cpu
            took = asyncio.get_running_loop().time() - began
    print(f"{sent} messages at {rate}/s, due after {DELAY / 1000:g} s; {len(lateness.values)} came within {took:.1f} s")
    print(f"late by (ms): p50 {lateness.at(0.5)}, p99 {lateness.at(0.99)}, most {lateness.at(1.0)}")
    print(f"CPU: {cpu / sent * 1e6:.1f} us a message, put and delivery together")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=10_000, help="messages a second")
    parser.add_argument("--seconds", type=int, default=10)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(measure(arguments.rate, arguments.seconds))


if __name__ == "__main__":
    main()
