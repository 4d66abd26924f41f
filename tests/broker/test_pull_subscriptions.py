"""From the text of a subscription to its filter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker import subscriptions
from cometmq.broker.store.reading import MessageFilter
from cometmq.broker.subscriptions import LanguageUnknown, SubscriptionRefused, Subscriptions, build, parse_tags
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.hashing import tags_code

BLANKS = "".join(map(chr, range(0x21)))


def takes(wanted: MessageFilter | None, tag: str) -> bool:
    return wanted is None or wanted.matches_unit(tags_code(tag), None)


def test_texts_are_split_as_java_splits_them() -> None:
    assert parse_tags("a || b||  c\t||a") == ["a", "b", "c"]
    assert parse_tags("*") == parse_tags("") == parse_tags(None) == []


@pytest.mark.parametrize("text", ["||", " ", "|| ||", "\t||\n"])
def test_a_text_without_a_tag_is_refused(text: str) -> None:
    with pytest.raises(SubscriptionRefused) as caught:
        build("T", text, "TAG")
    assert caught.value.code == 23
    assert str(caught.value) == "parse the consumer's subscription failed"


def test_tags_with_one_hash_cannot_be_told_apart() -> None:
    wanted = Subscriptions().of_pull("T", "Aa", None).wanted
    assert takes(wanted, "Aa")
    assert takes(wanted, "BB")
    assert not takes(wanted, "CC")
    assert not takes(wanted, "")


@pytest.mark.parametrize("kind", [None, "", "TAG"])
def test_all_messages_need_no_filter(kind: str | None) -> None:
    for text in ("*", "", None):
        assert Subscriptions().of_pull("T", text, kind).wanted is None


def test_the_codes_of_a_client_are_not_believed() -> None:
    data = SubscriptionData(topic="T", sub_string="Tag", tags_set=["Tag"], code_set=[tags_code("Other")])
    wanted = Subscriptions().of_group("G", data)
    assert takes(wanted, "Tag")
    assert not takes(wanted, "Other")


def test_tags_beyond_ascii_are_hashed_as_java_does() -> None:
    tag = "主题\U0001f600"
    data = SubscriptionData(topic="T", sub_string=tag, tags_set=[tag], code_set=[-1])
    wanted = Subscriptions().of_group("G", data)
    # 0x4e3b 0x9898 0xd83d 0xde00 as UTF-16 units
    value = 0
    for unit in (0x4E3B, 0x9898, 0xD83D, 0xDE00):
        value = (31 * value + unit) & 0xFFFFFFFF
    assert wanted is not None
    assert wanted.matches_unit(value - (1 << 32) if value >> 31 else value, None)


def test_a_heartbeat_without_a_set_of_tags_is_read_by_its_text() -> None:
    wanted = Subscriptions().of_group("G", SubscriptionData(topic="T", sub_string="a || b"))
    assert [takes(wanted, tag) for tag in ("a", "b", "c")] == [True, True, False]
    assert Subscriptions().of_group("G", SubscriptionData(topic="T")) is None
    assert Subscriptions().of_group("G", SubscriptionData(topic="T", sub_string="x", class_filter_mode=True)) is None
    nothing = Subscriptions().of_group("G", SubscriptionData(topic="T", sub_string="||"))
    assert not takes(nothing, "")
    assert not takes(nothing, "x")


def test_a_filter_is_made_once_and_again_when_the_subscription_changes() -> None:
    made = Subscriptions()
    first = SubscriptionData(topic="T", sub_string="a", tags_set=["a"], sub_version=1)
    second = SubscriptionData(topic="T", sub_string="b", tags_set=["b"], sub_version=2)
    wanted = made.of_group("G", first)
    assert made.of_group("G", first) is wanted
    assert takes(made.of_group("G", second), "b")
    assert not takes(made.of_group("G", second), "a")
    assert made.of_pull("T", "a", "TAG") is made.of_pull("T", "a", "TAG")


def test_sql92_is_refused_until_it_exists() -> None:
    made = Subscriptions()
    for ask in (
        lambda: made.of_pull("T", "a > 3", "SQL92"),
        lambda: made.of_group("G", SubscriptionData(topic="T", sub_string="a > 3", expression_type="SQL92")),
    ):
        with pytest.raises(SubscriptionRefused) as caught:
            ask()
        assert caught.value.code == 23
        assert str(caught.value) == "this version filters by tag only"


def test_a_language_that_nobody_knows_is_refused_and_never_answered_unfiltered() -> None:
    with pytest.raises(LanguageUnknown) as caught:
        Subscriptions().of_pull("T", "*", "NOPE")
    assert caught.value.code == 1
    assert str(caught.value) == "The broker does not support consumer to filter message by NOPE"


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_KEPT", 10)
    made = Subscriptions()
    for number in range(100):
        made.of_pull("T", f"tag{number}", "TAG")
        made.of_group(f"G{number}", SubscriptionData(topic="T", sub_string="a"))
    assert len(made._of_pulls) <= 10
    assert len(made._of_groups) <= 10
    made.of_pull("T", "x" * 5000, "TAG")
    assert all(len(text or "") <= 1024 for _, text, _ in made._of_pulls)


@given(st.text(max_size=40), st.sampled_from([None, "", "TAG", "SQL92", "NOPE"]))
def test_any_text_is_served_or_refused(text: str, kind: str | None) -> None:
    served = kind in (None, "", "TAG") and (text in ("", "*") or text.replace("||", "").strip(BLANKS) != "")
    if not served:
        with pytest.raises(SubscriptionRefused):
            Subscriptions().of_pull("T", text, kind)
        return
    kept = Subscriptions().of_pull("T", text, kind)
    assert (kept.wanted is None) == (text in ("", "*"))
