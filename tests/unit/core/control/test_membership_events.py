"""What the membership is told, and what it asks for, are values."""

from dataclasses import fields

from penstock.core.control import membership_events
from penstock.core.control.membership_events import MembershipEffect, MembershipEvent


def test_every_effect_carries_its_cause_and_events_are_values() -> None:
    for kind in MembershipEffect.__args__:  # type: ignore[attr-defined]
        assert fields(kind)[0].name == "cause", kind
    for kind in (*MembershipEffect.__args__, *MembershipEvent.__args__):  # type: ignore[attr-defined]
        assert kind.__dataclass_params__.frozen, kind
        assert kind.__name__ in membership_events.__all__
