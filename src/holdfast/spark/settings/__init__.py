"""The settings of a query under `spark.holdfast.*`: what there is, what is set, the stores that follow."""

from holdfast.spark.settings._configure import SettingArguments, configure
from holdfast.spark.settings._s3_settings import s3_settings
from holdfast.spark.settings._setting import PREFIX, Setting
from holdfast.spark.settings._settings import Settings, check_known, settings_table
from holdfast.spark.settings._stores import Stores, is_of_stores

__all__ = [
    "PREFIX",
    "Setting",
    "SettingArguments",
    "Settings",
    "Stores",
    "check_known",
    "configure",
    "is_of_stores",
    "s3_settings",
    "settings_table",
]
