"""The data source `holdfast`, in a module where Spark finds it: it imports every module named `pyspark_…`."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from holdfast.spark.data_source import StateView


class DefaultSource(DataSource):
    """The states of a checkpoint or savepoint as a DataFrame; `holdfast.spark.data_source` implements it."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        return self._view().spark_schema

    def reader(self, schema: StructType) -> DataSourceReader:
        from holdfast.spark.data_source import StateReader  # noqa: PLC0415

        return StateReader(self._view(), schema)

    def _view(self) -> "StateView":
        # Not at the top: every session that looks for a data source imports this module.
        from holdfast.spark.data_source import StateView  # noqa: PLC0415

        return StateView.of(self.options)
