"""How a query's driver and tasks reach its stores."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.locations.file_systems import S3Settings, use_hdfs, use_s3
from holdfast.spark.settings.setting import PREFIX
from holdfast.spark.settings.settings_of_s3 import s3_settings

_HADOOP = "spark.hadoop."

_HDFS_OPTIONS = ("dfs.", "fs.defaultFS", "fs.viewfs.", "hadoop.security.authentication")
"""Beginnings of the options that an HDFS client heeds."""


def is_of_stores(key: str) -> bool:
    """Whether a key of Spark's configuration says how to reach a store."""
    of_hdfs = tuple(_HADOOP + option for option in _HDFS_OPTIONS)
    return key.startswith((f"{PREFIX}s3.", f"{_HADOOP}fs.s3a.", *of_hdfs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """How to reach the stores of a query; values only, so that they compare and pickle.

    Attributes:
        s3: How to reach S3, for each bucket in which the query keeps anything.
        hdfs: Options for HDFS, which win over those in Hadoop's files.
    """

    s3: Mapping[str, S3Settings] = field(default_factory=dict)
    hdfs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, configuration: Mapping[str, str], *uris: str | None) -> "Stores":
        """How to reach the stores of some URIs by Spark's configuration.

        Raises:
            InvalidRequestError: A setting of S3 is of another kind, or some don't go together.
        """
        is_hdfs = any((uri or "").lower().startswith(("hdfs:", "viewfs:")) for uri in uris)
        hadoop = {
            key.removeprefix(_HADOOP): text
            for key, text in configuration.items()
            if key.startswith(_HADOOP)
        }
        hdfs = {key: text for key, text in hadoop.items() if key.startswith(_HDFS_OPTIONS)}
        return cls(s3=s3_settings(configuration, *uris), hdfs=hdfs if is_hdfs else {})

    def use(self) -> None:
        """Reach the stores this way from now on, in this process."""
        for bucket, settings in self.s3.items():
            use_s3(settings, bucket)
        if self.hdfs:
            use_hdfs(self.hdfs)
