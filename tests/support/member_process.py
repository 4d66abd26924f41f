"""A consumer as a process of its own, which a test may kill.

    python member_process.py push NAMESERVER GROUP TOPIC   prints each body
    python member_process.py pull NAMESERVER GROUP TOPIC   prints each body, and commits by hand after each batch

Prints "ready" when it has queues. It runs until it is ended.
"""

import asyncio
import sys
from pathlib import Path

from support.server_process import ServerProcess

#: Seconds that a start may take on a busy machine.
PATIENCE = 60.0


class MemberProcess(ServerProcess):
    """The consumer, as the test sees it."""

    def __init__(self, folder: Path, kind: str, nameserver: str, group: str, topic: str) -> None:
        argv = [sys.executable, "-u", __file__, kind, nameserver, group, topic]
        super().__init__(f"{kind} consumer", argv, folder, {"PYTHONPATH": ":".join(sys.path)})

    def ready(self) -> None:
        self.wait_ready("ready", PATIENCE, lambda: "ready\n" in self.stdout)

    @property
    def bodies(self) -> list[bytes]:
        """What it has printed so far, whole lines only."""
        lines = self.stdout.rpartition("\n")[0].splitlines()
        return [line.encode() for line in lines if line not in ("", "ready")]


async def run(kind: str, nameserver: str, group: str, topic: str) -> None:
    import cometmq

    async with cometmq.connect(nameserver) as mq:
        if kind == "push":
            consumer = mq.push_consumer(group, {topic: "*"}, start_from="first")
            async with consumer:
                while not any(queue.topic == topic for queue in consumer.assignments):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                print("ready")
                async for message in consumer:
                    print(message.body.decode())
                    await message.ack()
        else:
            pulled = mq.pull_consumer(group, start_from="first", auto_commit=False, batch_size=4).subscribe(topic)
            async with pulled:
                print("ready")
                while True:
                    messages = await pulled.poll(1.0)
                    for message in messages:
                        print(message.body.decode())
                    if messages:
                        await pulled.commit()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
