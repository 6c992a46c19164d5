"""The settings of a query under `spark.holdfast.*`.

    setting    a setting: key, type, default, documentation, Flink's name; types of values
    settings   `Settings`, the values of a query, with the declarations of most
    rocksdb    the RocksDB settings
    metrics    the settings of metrics, spans and the log
    stores     the settings of S3 and HDFS, also Hadoop's
    clouds     the settings of Google Cloud Storage and Azure Storage, also Hadoop's
    builder    `configure`: settings as arguments, for a session's builder

A new setting is one declaration and an argument in `builder`.
"""

from holdfast.spark.settings.builder import SettingArguments, configure
from holdfast.spark.settings.clouds import cloud_settings_table
from holdfast.spark.settings.metrics import LogFormat, MetricsSettings
from holdfast.spark.settings.setting import PREFIX, Setting, nearest
from holdfast.spark.settings.settings import Settings, StateSettings, check_settings, settings_table
from holdfast.spark.settings.stores import Stores, is_of_stores, s3_settings, s3_settings_table
