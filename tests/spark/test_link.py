"""The link of a process: one for each access, whole after a fork, and nothing of it left when tests close it."""

import asyncio
import os
import pickle
import subprocess
import sys
import threading

import pytest

from cometmq.remoting.errors import Timeout
from cometmq.spark.access import Access
from cometmq.spark.link import KEPT, close_links, link_to
from cometmq.testing import EmbeddedBroker
from support.spark_queries import wait_until

pytestmark = pytest.mark.spark


def test_one_link_for_each_access(broker: EmbeddedBroker) -> None:
    access = Access(name_servers=(broker.nameserver,))
    link = link_to(access)
    assert link_to(pickle.loads(pickle.dumps(access))) is link
    other = link_to(Access(name_servers=(broker.nameserver,), group="another"))
    assert other is not link

    async def topics() -> list[str]:
        return await link.client.admin().topics()

    assert link.run(topics(), timeout=20)


def test_work_that_takes_too_long_is_ended(broker: EmbeddedBroker) -> None:
    link = link_to(Access(name_servers=(broker.nameserver,)))
    ended = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(Timeout, match=f"the cluster at {broker.nameserver} did not answer within 0.05 s"):
        link.run(hang(), timeout=0.05)
    assert ended.wait(10)


def test_closing_leaves_no_thread() -> None:
    close_links()  # those of other tests; who needs one makes a new one
    before = threading.active_count()
    link_to(Access(name_servers=("127.0.0.1:1",)))
    assert threading.active_count() == before + 1
    close_links()
    assert threading.active_count() == before


def short_lived(number: int) -> Access:
    return Access(name_servers=("127.0.0.1:1",), access_key="me", secret_key="secret", security_token=f"{number}")


def links() -> int:
    return sum(each.name == "cometmq link" for each in threading.enumerate())


def test_links_that_nobody_uses_any_more_end() -> None:
    close_links()
    for number in range(3 * KEPT):
        link_to(short_lived(number))
    wait_until(lambda: links() <= KEPT)
    assert links() == KEPT
    kept = {number: link_to(short_lived(number)) for number in range(2 * KEPT, 3 * KEPT)}
    assert links() == KEPT
    assert all(link.run(_answer(number), timeout=20) == number for number, link in kept.items())
    close_links()
    assert links() == 0


def test_a_link_in_use_stays(broker: EmbeddedBroker) -> None:
    close_links()
    access = Access(name_servers=(broker.nameserver,))
    link = link_to(access)

    for number in range(2 * KEPT):
        link_to(short_lived(number))
        assert link.run(link.client.admin().topics(), timeout=20)
    wait_until(lambda: links() == KEPT + 1)
    assert link_to(access) is link
    del link
    for number in range(KEPT):
        link_to(short_lived(number))
    wait_until(lambda: links() == KEPT)


async def _answer(number: int) -> int:
    return number


FORKED = """
import os, sys
from cometmq.spark.access import Access
from cometmq.spark.link import link_to
access = Access(name_servers=(sys.argv[1],))

def names(link):
    async def asked():
        return sorted(await link.client.admin().topics())
    return link.run(asked(), timeout=20)

parent = link_to(access)
known = names(parent)
child = os.fork()
if child == 0:
    own = link_to(access)
    os._exit(0 if own is not parent and names(own) == known else 1)
assert os.waitpid(child, 0)[1] == 0
assert names(parent) == known
print("both", end="")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_child_has_links_of_its_own(broker: EmbeddedBroker) -> None:
    """Spark's daemon forks its workers."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, broker.nameserver], capture_output=True, text=True, check=False
    )
    assert done.stdout == "both", done.stderr


def test_secrets_are_not_shown() -> None:
    access = Access(name_servers=("a:1",), access_key="me", secret_key="hidden", security_token="hidden too")
    assert "hidden" not in repr(access)
    assert pickle.loads(pickle.dumps(access)) == access
