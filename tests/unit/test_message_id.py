"""Packed hosts, offset message ids and unique keys."""

import threading
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import IPv4Address, IPv6Address
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.errors import RecordError
from cometmq.protocol.message_id import (
    MessageId,
    UniqueKey,
    UniqueKeyGenerator,
    decode_message_id,
    decode_unique_key,
    encode_message_id,
    pack_host,
    unpack_host,
    wall_millis,
)

IPV4 = st.integers(0, 2**32 - 1).map(lambda number: str(IPv4Address(number)))
IPV6 = st.integers(2**64, 2**128 - 1).map(lambda number: str(IPv6Address(number)))
IPS = st.one_of(IPV4, IPV6)
PORTS = st.integers(0, 65_535)
SHANGHAI = timezone(timedelta(hours=8))


def millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


class TestHosts:
    def test_port_takes_four_bytes(self) -> None:
        assert pack_host("127.0.0.1", 10911).hex() == "7f00000100002a9f"
        assert pack_host("fd00::2", 10911).hex() == "fd000000000000000000000000000002" + "00002a9f"

    def test_ipv4_inside_ipv6_is_ipv4(self) -> None:
        assert pack_host("::ffff:10.0.0.1", 1) == pack_host("10.0.0.1", 1)

    def test_scope_is_left_out(self) -> None:
        assert pack_host("fe80::1%eth0", 1) == pack_host("fe80::1", 1)

    @given(IPS, PORTS)
    def test_round_trip(self, ip: str, port: int) -> None:
        assert unpack_host(pack_host(ip, port)) == (ip, port)

    @pytest.mark.parametrize(("ip", "port"), [("localhost", 1), ("", 1), ("1.2.3", 1), ("1.2.3.4", -1), ("::1", 65536)])
    def test_what_is_no_host(self, ip: str, port: int) -> None:
        with pytest.raises(RecordError):
            pack_host(ip, port)

    @pytest.mark.parametrize("length", [0, 4, 7, 9, 16, 21])
    def test_wrong_length(self, length: int) -> None:
        with pytest.raises(RecordError, match=f"not {length}"):
            unpack_host(bytes(length))


class TestMessageId:
    @pytest.mark.parametrize(
        ("ip", "port", "offset", "text"),
        [
            ("10.0.0.1", 10911, 4096, "0A00000100002A9F0000000000001000"),
            ("127.0.0.1", 10911, 4096, "7F00000100002A9F0000000000001000"),
            ("fd00::2", 10911, 255, "FD00000000000000000000000000000200002A9F00000000000000FF"),
        ],
    )
    def test_known_ids(self, ip: str, port: int, offset: int, text: str) -> None:
        assert encode_message_id(pack_host(ip, port), offset) == text
        assert decode_message_id(text) == MessageId(ip, port, offset)
        assert decode_message_id(text.lower()) == MessageId(ip, port, offset)

    @given(IPS, PORTS, st.integers(0, 2**63 - 1))
    def test_round_trip(self, ip: str, port: int, offset: int) -> None:
        text = encode_message_id(pack_host(ip, port), offset)
        assert len(text) == (56 if ":" in ip else 32)
        assert decode_message_id(text) == MessageId(ip, port, offset)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "0",
            "0A00000100002A9F000000000000100",
            "0A00000100002A9F00000000000010000",
            "0A00000100002A9F000000000000100G",
            "0A000001 0002A9F 000000000001000",  # fromhex() would pass over the blanks
            "0A00000100002A9F8000000000000000",  # a negative offset
            "0A000001000100000000000000001000",  # a port above 65,535
            "7F000001162A18B4AAC2A8A5B5C30000",  # a unique key
        ],
    )
    def test_what_is_no_id(self, text: str) -> None:
        with pytest.raises(RecordError, match="is not an offset message id"):
            decode_message_id(text)

    @given(st.one_of(st.text(max_size=60), st.text("0123456789abcdefABCDEF ", min_size=32, max_size=32)))
    def test_any_text_is_an_id_or_refused(self, text: str) -> None:
        for decode in (decode_message_id, decode_unique_key):
            try:
                decode(text)
            except RecordError:
                continue
            assert len(text) in (32, 56)


class TestUniqueKey:
    def test_layout(self) -> None:
        moment = datetime(2024, 5, 3, 1, 2, 3, 456_000, UTC)
        keys = UniqueKeyGenerator("192.0.2.2", 0x12345, 0x18B4AAC2, clock=lambda: millis(moment), zone=UTC)
        span = ((2 * 24 + 1) * 3600 + 2 * 60 + 3) * 1000 + 456
        assert keys() == f"C0000202234518B4AAC2{span:08X}0000"
        assert keys() == f"C0000202234518B4AAC2{span:08X}0001"

    def test_ipv6_takes_56_digits(self) -> None:
        keys = UniqueKeyGenerator("fd00::2", 1, -1, clock=lambda: 0, zone=UTC)
        assert keys() == "FD0000000000000000000000000000020001FFFFFFFF000000000000"

    def test_counter_wraps(self) -> None:
        keys = UniqueKeyGenerator("192.0.2.2", 1, 0, clock=lambda: 0, zone=UTC)
        made = [keys() for _ in range(65_537)]
        assert made[65_535].endswith("FFFF")
        assert made[65_536] == made[0]
        assert len(set(made)) == 65_536

    @pytest.mark.parametrize("zone", [UTC, SHANGHAI, ZoneInfo("Europe/Berlin")])
    def test_month_begins_in_the_zone(self, zone: timezone | ZoneInfo) -> None:
        now = millis(datetime(2024, 10, 31, 23, 59, 59, 999_000, zone))
        keys = UniqueKeyGenerator("192.0.2.2", 1, 0, clock=lambda: now, zone=zone)
        # October of Berlin has 31 days and an hour.
        hours = 31 * 24 + (1 if isinstance(zone, ZoneInfo) else 0)
        assert decode_unique_key(keys()).month_millis == hours * 3_600_000 - 1
        now += 1
        assert decode_unique_key(keys()).month_millis == 0
        # A clock that is set back finds its month again.
        now -= 1
        assert decode_unique_key(keys()).month_millis == hours * 3_600_000 - 1

    def test_local_zone_by_default(self) -> None:
        keys = UniqueKeyGenerator("192.0.2.2", 1, 0)
        before = wall_millis()
        key = decode_unique_key(keys())
        sent = key.sent_at(datetime.now())  # naive: the local zone is meant
        assert before <= millis(sent) <= wall_millis()

    def test_many_at_once_are_as_one_by_one(self) -> None:
        """Also over the end of the counter's 16 bits."""
        one, many = (UniqueKeyGenerator("192.0.2.2", 1, 7, clock=lambda: 0, zone=UTC) for _ in range(2))
        for count in (0, 1, 2, 65_000, 1_000, 30):
            assert many.many(5_000, count) == [one.at(5_000) for _ in range(count)]
        assert many.at(5_001) == one.at(5_001)

    def test_threads_share_a_generator(self) -> None:
        keys = UniqueKeyGenerator("192.0.2.2", 1, 0, clock=lambda: 0, zone=UTC)
        made: list[str] = []

        def make() -> None:
            for _ in range(50):
                made.extend(keys.many(0, 50))
                made.extend([keys() for _ in range(50)])

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(made)) == 20_000

    @given(
        IPS,
        st.integers(0, 2**16 - 1),
        st.integers(0, 2**32 - 1),
        st.datetimes(datetime(2000, 2, 1), datetime(2100, 1, 1), timezones=st.sampled_from([UTC, SHANGHAI])),
    )
    def test_round_trip(self, ip: str, pid: int, hash_code: int, moment: datetime) -> None:
        moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
        keys = UniqueKeyGenerator(ip, pid, hash_code, clock=lambda: millis(moment), zone=moment.tzinfo)
        keys()
        key = decode_unique_key(keys())
        assert (key.host, key.pid, key.hash_code, key.counter) == (ip, pid, hash_code, 1)
        assert key.sent_at(moment) == moment
        assert key.sent_at(moment + timedelta(days=27)) == moment

    def test_go_writes_its_tail_in_lower_case(self) -> None:
        span = 1_234_567_000
        key = decode_unique_key(f"C0A80001ABCD00000000{span:08x}00ff")
        assert key == UniqueKey("192.168.0.1", 0xABCD, 0, span, 255)

    @pytest.mark.parametrize(
        ("now", "days", "sent"),
        [
            (datetime(2024, 3, 5, tzinfo=UTC), 2, datetime(2024, 3, 3, tzinfo=UTC)),
            # The 11th of this month is not here yet: last month.
            (datetime(2024, 3, 5, tzinfo=UTC), 10, datetime(2024, 2, 11, tzinfo=UTC)),
            # February has no 31st: January.
            (datetime(2024, 3, 5, tzinfo=UTC), 30, datetime(2024, 1, 31, tzinfo=UTC)),
            (datetime(2024, 1, 1, tzinfo=UTC), 30, datetime(2023, 12, 31, tzinfo=UTC)),
            # The very moment, and a sender whose clock is a little ahead.
            (datetime(2024, 3, 5, tzinfo=UTC), 4, datetime(2024, 3, 5, tzinfo=UTC)),
            (datetime(2024, 3, 4, 23, 59, 30, tzinfo=UTC), 4, datetime(2024, 3, 5, tzinfo=UTC)),
            (datetime(2024, 3, 4, 23, 58, 30, tzinfo=UTC), 4, datetime(2024, 2, 5, tzinfo=UTC)),
        ],
    )
    def test_month_is_found_by_now(self, now: datetime, days: int, sent: datetime) -> None:
        assert UniqueKey("1.2.3.4", 1, 0, days * 86_400_000, 0).sent_at(now) == sent

    def test_a_time_that_fits_no_month(self) -> None:
        with pytest.raises(RecordError, match="do not fit into a month"):
            UniqueKey("1.2.3.4", 1, 0, 0xFFFFFFFF, 0).sent_at(datetime(2024, 3, 5, tzinfo=UTC))
