"""What of Spark's configuration reaches the stores."""

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


def test_hadoops_options_go_to_hdfs_without_those_of_others() -> None:
    expected = {
        "dfs.nameservices": "cluster",
        "fs.defaultFS": "hdfs://cluster",
        "fs.viewfs.mounttable.all.link./a": "hdfs://cluster/a",
    }
    for directory in ("hdfs://cluster/a", "HDFS:///a", "viewfs://all/a"):
        assert hdfs(directory) == expected


def test_they_go_nowhere_where_checkpoints_are_elsewhere() -> None:
    for directory in ("file:///a", "s3://bucket/a", "hdfsx://cluster/a"):
        assert hdfs(directory) == {}
