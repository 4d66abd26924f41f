"""A worker process: consumes orders until Ctrl-C or SIGTERM. Needs a broker (`./scripts/run`).

    python examples/worker.py

`NAMESRV_ADDR` names the nameservers. Send it something: `{"id": "o-1", "amount": 42}` to the topic `orders`.
"""

import os
from dataclasses import dataclass

import cometmq

app = cometmq.App(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))


@dataclass
class Order:
    id: str
    amount: int


@app.listener("orders", group="billing", subscription="paid || refunded", ordered=True, start_from="first")
async def bill(order: Order, message: cometmq.ReceivedMessage) -> None:
    print(f"{message.tag} {order.id}: {order.amount}", flush=True)


if __name__ == "__main__":
    app.run()
