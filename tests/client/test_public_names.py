"""The names that users import: pinned, all there, and loaded only when they are used."""

import subprocess
import sys

import cometmq

PUBLIC = """
AccessDenied App BrokerBusy BrokerError Client ClientError Closed CometMQError ConnectFailed ConnectionLost Credentials
GroupInUse InvalidMessage InvalidSubscription Message MessageQueue MessageRefused NoBroker NoNameserver NoRoute
Priorities Producer PullConsumer PushConsumer ReceivedMessage ReplyTimeout RetryFrom RetryLater SendFailed SendReceipt
SendStatus Sql StartFrom Tags Timeout TopicNotFound TransportError Unsupported __version__ connect
"""


def test_the_public_names_are_these() -> None:
    assert sorted(cometmq.__all__) == sorted(PUBLIC.split())
    assert sorted(cometmq._HOMES) == sorted(set(PUBLIC.split()) - {"__version__"})
    for name in cometmq.__all__:
        assert getattr(cometmq, name) is not None


def test_the_sync_facade_is_there_without_an_import_of_its_own() -> None:
    code = "import cometmq; print(cometmq.sync.connect.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "cometmq.client.sync"


def test_importing_the_package_loads_no_sdk() -> None:
    code = "import cometmq, sys; print([m for m in sys.modules if m.startswith('cometmq.')], hasattr(cometmq, 'nope'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['cometmq.lazy'] False"


def test_a_broker_loads_no_sdk() -> None:
    code = "import cometmq.broker.broker, sys; print([m for m in sys.modules if m.startswith('cometmq.client')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_client_loads_its_members_when_it_makes_them() -> None:
    code = (
        "import sys; from cometmq.client import connect;"
        "print([m for m in sys.modules if m.startswith(('cometmq.client.producer', 'cometmq.client.consumer'))]);"
        "from cometmq.client import Producer; print(Producer.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["[]", "cometmq.client.producer.producer"]
