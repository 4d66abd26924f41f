"""A web application that sends and listens. Needs `pip install starlette uvicorn`, and a broker (`./scripts/run`).

    python examples/web_app.py            # or: uvicorn --app-dir examples web_app:web
    curl http://127.0.0.1:8000/warn/syncSend?msg=hello

`NAMESRV_ADDR` names the nameservers, `PORT` the port to listen on.
"""

import os

import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import cometmq

TOPIC = "warn"

app = cometmq.App(os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
producer = app.producer("warn-producer")


@app.listener(TOPIC, group="warn-listener", start_from="first")
async def received(text: str) -> None:
    print(f"Received message: {text}", flush=True)


def body_of(request: Request) -> bytes:
    return request.query_params.get("msg", "warning").encode()


async def sync_send(request: Request) -> PlainTextResponse:
    """The answer says where the message is stored."""
    receipt = await producer.send(TOPIC, body_of(request))
    return PlainTextResponse(str(receipt))


async def async_send(request: Request) -> PlainTextResponse:
    """The answer comes first, the message is sent behind it."""

    async def send() -> None:
        try:
            receipt = await producer.send(TOPIC, body_of(request))
        except cometmq.CometMQError as error:
            print(f"Not sent: {error}", flush=True)
        else:
            print(f"Sent: {receipt}", flush=True)

    return PlainTextResponse("accepted", status_code=202, background=BackgroundTask(send))


async def send_oneway(request: Request) -> PlainTextResponse:
    """Nobody answers for the message."""
    await producer.send_oneway(TOPIC, body_of(request))
    return PlainTextResponse("gone", status_code=202)


web = Starlette(
    routes=[
        Route("/warn/syncSend", sync_send),
        Route("/warn/asyncSend", async_send),
        Route("/warn/sendOnewayMsg", send_oneway),
    ],
    lifespan=app.lifespan,
)

if __name__ == "__main__":
    uvicorn.run(web, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
