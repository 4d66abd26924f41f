"""A first message: sends, and consumes what it sent. Needs a broker (`./scripts/run`).

    python examples/quick_start.py

`NAMESRV_ADDR` names the nameservers.
"""

import asyncio
import os

import cometmq


async def main() -> None:
    async with cometmq.connect(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")) as mq:
        async with mq.producer("greetings-producer") as producer:
            receipt = await producer.send("Greetings", b"hello from Python", tag="python")
            print(f"sent {receipt.message_id}")
        async with mq.push_consumer("greetings-consumer", {"Greetings": "python"}, start_from="first") as consumer:
            async for message in consumer:
                async with message.process():
                    print(f"received {message.message_id}: {message.body.decode()}")
                if message.message_id == receipt.message_id:
                    break


if __name__ == "__main__":
    asyncio.run(main())
