"""The settings of a query under `spark.holdfast.*`: the table of all, the values that are set, and the stores that follow from them.

`table` has them all; a new setting is a line there. Start with `setting`.
"""

from holdfast.spark.settings.configuring import SettingArguments, configure
from holdfast.spark.settings.setting import PREFIX, Setting
from holdfast.spark.settings.settings_of_s3 import s3_settings, s3_settings_table
from holdfast.spark.settings.stores import Stores, is_of_stores
from holdfast.spark.settings.table import Settings, check_known, check_settings, settings_table

__all__ = [
    "PREFIX",
    "Setting",
    "SettingArguments",
    "Settings",
    "Stores",
    "check_known",
    "check_settings",
    "configure",
    "is_of_stores",
    "s3_settings",
    "s3_settings_table",
    "settings_table",
]
