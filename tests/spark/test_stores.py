"""Options of Spark's configuration that reach the stores."""

from holdfast.spark.settings import Settings

HADOOP = {
    "spark.hadoop.dfs.nameservices": "cluster",
    "spark.hadoop.fs.defaultFS": "hdfs://cluster",
    "spark.hadoop.fs.viewfs.mounttable.all.link./a": "hdfs://cluster/a",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "dfs.replication": "1",
}


def hdfs(directory: str) -> dict[str, str]:
    settings = Settings.parse(HADOOP | {"spark.holdfast.checkpoint.dir": directory})
    return dict(settings.stores.hdfs)


def test_hdfs_gets_its_options_of_hadoop() -> None:
    expected = {
        "dfs.nameservices": "cluster",
        "fs.defaultFS": "hdfs://cluster",
        "fs.viewfs.mounttable.all.link./a": "hdfs://cluster/a",
    }
    for directory in ("hdfs://cluster/a", "HDFS:///a", "viewfs://all/a"):
        assert hdfs(directory) == expected


def test_other_stores_get_no_options_of_hdfs() -> None:
    for directory in ("file:///a", "s3://bucket/a", "hdfsx://cluster/a"):
        assert hdfs(directory) == {}
