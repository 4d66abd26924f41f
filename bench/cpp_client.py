"""The C++ client in a wheel (`rocketmq==0.4.4`) for bench/client.py: "SECTION NAMESERVER TOPIC COUNT" in, JSON out.

It blocks, so sends in flight need as many threads.
"""

import os
import sys
import threading
import time
from collections.abc import Callable

sys.path.insert(0, sys.argv[1])

from rocketmq.client import Message, Producer, PushConsumer  # type: ignore[import-not-found]

BODY = "x" * 1024


def figures(count: int, began: float, cpu: float) -> str:
    took, used = time.perf_counter() - began, time.process_time() - cpu
    return f'{{"rate": {count / took}, "cpu_us": {used / count * 1e6}}}'


class Client:
    """One producer for the life of the process; a consumer for each section."""

    def __init__(self) -> None:
        self._producer = None
        self._groups = 0
        self._failures: list[Exception] = []

    def run(self, section: str, nameserver: str, topic: str, count: int) -> str:
        if section == "push":
            return self.push(nameserver, topic, count)
        if self._producer is None:
            self._producer = Producer("PG_bench_cpp")
            self._producer.set_namesrv_addr(nameserver)
            self._producer.start()
            self._send(topic, 10)  # the route first: several threads at once would fail to find it
        workers = 4 if section == "batch" else int(section.partition("-")[2])
        send = self._send_batches if section == "batch" else self._send
        cpu, began = time.process_time(), time.perf_counter()
        threads = [threading.Thread(target=self._guarded, args=(send, topic, count // workers)) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            return f"failed: {self._failures.pop()}"
        return figures(count // workers * workers, began, cpu)

    def _guarded(self, send: Callable[[str, int], None], topic: str, count: int) -> None:
        try:
            send(topic, count)
        except Exception as error:
            self._failures.append(error)

    def _send(self, topic: str, count: int) -> None:
        assert self._producer is not None
        for _ in range(count):
            message = Message(topic)
            message.set_body(BODY)
            self._producer.send_sync(message)

    def _send_batches(self, topic: str, count: int) -> None:
        assert self._producer is not None
        for _ in range(count // 64):
            messages = [Message(topic) for _ in range(64)]
            for message in messages:
                message.set_body(BODY)
            self._producer.send_batch(messages)

    def push(self, nameserver: str, topic: str, count: int) -> str:
        self._groups += 1
        seen = 0
        start = [0.0, 0.0]
        result: list[str] = []
        done = threading.Event()

        def take(message: object) -> None:
            nonlocal seen
            seen += 1
            if seen == 1:
                start[:] = [time.perf_counter(), time.process_time()]
            elif seen == count:
                result.append(figures(count, *start))
                done.set()

        consumer = PushConsumer(f"CG_bench_cpp_{os.getpid()}_{self._groups}")
        consumer.set_namesrv_addr(nameserver)
        consumer.subscribe(topic, take)
        consumer.start()
        if not done.wait(60):
            return f"failed: {seen} of {count} messages came"
        consumer.shutdown()
        return result[0]


def main() -> None:
    client = Client()
    # The library prints to stdout; the answers have a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        section, nameserver, topic, count = line.split()
        try:
            text = client.run(section, nameserver, topic, int(count))
        except Exception as error:
            text = f"failed: {error}"
        print(text, file=answers, flush=True)


if __name__ == "__main__":
    main()
