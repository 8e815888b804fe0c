"""A batch over one of the bounds of what it holds is rejected before it is written."""

from __future__ import annotations

import pytest

from rostra.broker.settings import BrokerSettings
from rostra.errors import BatchRejected
from rostra.fabric.api import Append
from rostra.model.batch import Codec, Reason
from rostra.model.encode import encode
from rostra.wire.messages import Publish
from tests.unit.broker.broker_driver import WALL_US, BrokerDriver


@pytest.mark.parametrize(
    ("settings", "values", "reason"),
    [
        pytest.param(
            BrokerSettings(batch_records_max=3),
            [b"x"] * 4,
            Reason.TOO_MANY_RECORDS,
            marks=pytest.mark.requirement("CM-19:batch-records"),
            id="records",
        ),
        pytest.param(
            BrokerSettings(batch_inflated_bytes_max=10_000),
            [bytes(20_000)],
            Reason.TOO_LARGE,
            marks=pytest.mark.requirement("CM-19:batch-inflated"),
            id="inflated",
        ),
    ],
)
def test_a_batch_that_holds_more_than_the_bound_is_rejected(
    settings: BrokerSettings, values: list[bytes], reason: Reason
) -> None:
    driver = BrokerDriver(settings).start()
    driver.connect(1)
    topic = driver.make_topic(1)
    driver.effects.clear()
    batch = encode(values, timestamp_us=WALL_US, codec=Codec.ZSTD)
    assert len(batch) < 10_000
    driver.send(1, Publish(7, topic, 0, "all"), bytes(batch))
    error = driver.error(1)
    assert isinstance(error, BatchRejected) and error.reason == reason
    assert driver.of(Append) == []
