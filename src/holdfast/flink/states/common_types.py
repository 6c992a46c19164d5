"""Types that the subtasks of an operator have in common, each of which may know a part of them."""

import pyarrow as pa


def common_columns(
    columns: tuple[tuple[str, pa.DataType], ...], others: tuple[tuple[str, pa.DataType], ...]
) -> tuple[tuple[str, pa.DataType], ...]:
    """The columns that both say: a subtask knows those subclasses of a POJO that it has met. Raises TypeError."""
    if [name for name, _ in columns] != [name for name, _ in others]:
        raise TypeError
    return tuple(
        (name, _merged_type(type, other))
        for (name, type), (_, other) in zip(columns, others, strict=True)
    )


def _merged_type(type: pa.DataType, other: pa.DataType) -> pa.DataType:
    if type == other:
        return type
    if pa.types.is_struct(type) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in type}
        for field in other:
            known = fields.get(field.name)
            fields[field.name] = field.type if known is None else _merged_type(known, field.type)
        return pa.struct(list(fields.items()))
    if pa.types.is_list(type) and pa.types.is_list(other):
        return pa.list_(_merged_type(type.value_type, other.value_type))
    if pa.types.is_map(type) and pa.types.is_map(other):
        return pa.map_(
            _merged_type(type.key_type, other.key_type),
            _merged_type(type.item_type, other.item_type),
        )
    raise TypeError


def of_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns that all subtasks have together."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else pa.array(column.to_pylist(), field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.record_batch(columns, schema=schema)
