import pytest
from tests.spark.test_failures import *
def test_x(spark, tmp_path):
    write_files(tmp_path / "in", numbered(100, 2))
    for k, o in enumerate(({"parallelism": 2, "epoch_retries": 1},{"parallelism": 1, "epoch_retries": 0})):
        try:
            finish(numbering(spark, tmp_path, AlwaysDies), checkpoint=tmp_path / str(k), **o)
        except BaseException as e:
            with open("/tmp/te/msg", "a") as f: f.write(repr(type(e)) + str(e) + "\n\n")
