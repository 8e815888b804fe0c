import msgspec
import pytest

from rostra.model.ids import Epoch, NodeId
from rostra.model.view import View


def test_members_stand_in_ascending_order_however_they_are_given() -> None:
    view = View.of(Epoch(4), [NodeId(9), NodeId(2)], joining=[NodeId(5)], missing=[NodeId(1)])
    assert view.active == (2, 9)
    assert view.members == (1, 2, 5, 9)


def test_a_node_has_one_role_in_a_view() -> None:
    with pytest.raises(ValueError, match="listed twice"):
        View.of(Epoch(1), [NodeId(1)], joining=[NodeId(1)])


def test_a_view_out_of_order_is_refused_from_the_wire_too() -> None:
    written = msgspec.msgpack.encode([1, [9, 2], [], []])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(written, type=View)
    view = View.of(Epoch(1), [NodeId(2), NodeId(9)])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(view), type=View) == view
