"""A job that is made once, without Spark."""

from __future__ import annotations

from unittest import mock

from penstock.spark.quirks.keptjobs import KeptJob


class Answers:
    """A Java list, which is slow to loop over."""

    def get(self, task: int) -> bytes:
        return b"answer %d" % task

    def __iter__(self) -> object:
        raise AssertionError("the end of a loop over a Java list is a Java exception, which takes PySpark long")


def test_a_job_is_made_once_and_its_answers_are_fetched_by_number() -> None:
    spark = mock.MagicMock()
    job = spark.sparkContext.parallelize().map()
    job._jrdd.collect.return_value = Answers()
    spark.reset_mock()
    kept = KeptJob(spark, lambda task: b"%d" % task, 2)
    assert kept.run() == kept.run() == [b"answer 0", b"answer 1"]
    spark.sparkContext.parallelize.assert_called_once_with(range(2), 2)
