"""Values of Spark's types: as processors give them, as processors get them back, and as columns.

    type_choice     from a type of Spark's to the `ValueType` that has its values: `scalars`, `times`, `nested`
    value_type      what each of those can do
    column_objects  columns as lists of Python objects
    row_classes     rows of Spark, made fast
    garbage         no search for garbage while many objects are made

What a processor gives is made what it will get back at once (`canonical`): state that was written in this batch looks
like state of a batch before. Spark stores null, another number or half of a text where a value is of another type;
here it is refused.
"""

from holdfast.spark.processors.values.column_objects import objects_of
from holdfast.spark.processors.values.garbage import many_objects
from holdfast.spark.processors.values.nested import Structs
from holdfast.spark.processors.values.row_classes import row_maker
from holdfast.spark.processors.values.type_choice import struct_type
from holdfast.spark.processors.values.value_type import NoValueError

__all__ = [
    "NoValueError",
    "Structs",
    "many_objects",
    "objects_of",
    "row_maker",
    "struct_type",
]
