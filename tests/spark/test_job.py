"""Who writes, and what time records carry: both must be the same when an epoch is run again."""

from pathlib import Path

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.spark.job import EpochTime, Job, epoch_time, plan_of, record_time_ms


def test_identity_is_of_query_and_partition() -> None:
    job = Job("q", 7, 2)
    assert job.producer_id(table=False) == Job("q", 8, 2).producer_id(table=False)
    assert job.producer_id(table=False) != Job("q", 7, 3).producer_id(table=False)
    assert job.producer_id(table=False) != Job("p", 7, 2).producer_id(table=False)


def test_ids_lie_in_their_class() -> None:
    for epoch in range(100):
        job = Job("q", epoch, 0)
        assert 1 << 62 <= job.producer_id(table=False) < 1 << 63
        assert 3 << 61 <= job.producer_id(table=True) < 1 << 63
        assert not job.producer_id(table=False) & 1 << 61


def test_a_new_identity_before_epochs_could_be_taken_for_older_ones() -> None:
    last, first = Job("q", (1 << 14) - 1, 0), Job("q", 1 << 14, 0)
    assert (last.producer_epoch, first.producer_epoch) == ((1 << 14) - 1, 0)
    assert last.producer_id(table=False) != first.producer_id(table=False)


def _offsets(checkpoint: Path, epoch: int, stamp: int) -> None:
    folder = checkpoint / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(epoch)).write_text(
        f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{stamp},"conf":{{}}}}\n{{}}'
    )


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_the_epochs_time_is_in_the_checkpoint(tmp_path: Path, prefix: str) -> None:
    for epoch in (8, 9, 10):
        _offsets(tmp_path, epoch, 1000 + epoch)
    (tmp_path / "offsets" / ".10.crc").write_text("x")
    found = epoch_time(f"{prefix}{tmp_path}")
    assert found == EpochTime(10, 1010)
    assert record_time_ms(found, Job("q", 10, 0)) == 1010


@pytest.mark.parametrize("text", ["", "v1", "v1\n[]", "v1\n{}", "v1\nnonsense"])
def test_a_checkpoint_that_cannot_be_read_is_refused_when_it_matters(tmp_path: Path, text: str) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(text)
    planned = epoch_time(str(tmp_path))
    with pytest.raises(InvalidRequestError, match="current_timestamp"):
        record_time_ms(planned, Job("q", 3, 0))


def test_another_epochs_time_is_not_used(tmp_path: Path) -> None:
    _offsets(tmp_path, 3, 1003)
    with pytest.raises(InvalidRequestError, match="epoch 4"):
        record_time_ms(epoch_time(str(tmp_path)), Job("q", 4, 0))


def test_no_checkpoint_means_now() -> None:
    planned = epoch_time(None)
    assert planned.time_ms > 1_600_000_000_000
    assert record_time_ms(planned, Job("q", 4, 0)) == planned.time_ms


def test_an_unreachable_checkpoint_is_no_accident(tmp_path: Path) -> None:
    assert epoch_time(str(tmp_path / "nothing")) == EpochTime(-1, 0)
    assert epoch_time("nosuchscheme://x/y") == EpochTime(-1, 0)


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_plan_is_what_spark_noted_of_the_epoch(tmp_path: Path, prefix: str) -> None:
    checkpoint = f"{prefix}{tmp_path}"
    _offsets(tmp_path, 8, 1008)
    _offsets(tmp_path, 9, 1009)
    assert plan_of(checkpoint, 8) == plan_of(checkpoint, 8) != plan_of(checkpoint, 9)
    planned = plan_of(checkpoint, 9)
    _offsets(tmp_path, 9, 2009)  # planned anew
    assert plan_of(checkpoint, 9) not in {planned, b""}


@pytest.mark.parametrize("checkpoint", [None, "nosuchscheme://x/y", "/nosuchfolder"])
def test_a_plan_that_cannot_be_read_is_unknown(checkpoint: str | None) -> None:
    assert plan_of(checkpoint, 3) == b""
