"""`format("rostra")`. Spark finds it by itself, through the module `pyspark_rostra`.

Every worker that has to do with any Python source imports this, so it imports little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rostra.errors import InvalidSetting
from rostra.spark.source.options import NEVER_NULL, STAGE, ReadOptions, parse_options

if TYPE_CHECKING:
    from rostra.spark.sink.options import WriteOptions
    from rostra.spark.sink.writer import RostraBatchWriter, RostraStreamWriter
    from rostra.spark.source.batch_reader import RostraReader
    from rostra.spark.source.stream_reader import RostraStreamReader

TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def spark_schema(columns: tuple[str, ...]) -> StructType:
    return StructType([StructField(name, TYPES[name], nullable=name not in NEVER_NULL) for name in columns])


def declared(options: ReadOptions, schema: StructType) -> ReadOptions:
    """The columns of a declared schema; InvalidSetting unless they are of the source and of its types."""
    for field in schema.fields:
        if field.name not in options.columns:
            raise InvalidSetting("schema", f"there is no column {field.name} in {', '.join(options.columns)}")
        if field.dataType != TYPES[field.name]:
            kind = TYPES[field.name].simpleString()
            raise InvalidSetting("schema", f"column {field.name} is {kind}, not {field.dataType.simpleString()}")
    if not schema.fields or len(set(schema.names)) < len(schema.names):
        raise InvalidSetting("schema", "it must name columns, each once")
    nullable = tuple(field.name for field in schema.fields if field.nullable and field.name in NEVER_NULL)
    return msgspec.structs.replace(options, columns=tuple(schema.names), nullable=nullable)


STAGED = StructType(
    [
        StructField("file", StringType(), False),
        StructField("records", LongType(), False),
        StructField("topic", StringType(), False),
        StructField("topic_id", LongType(), False),
        StructField("partition", IntegerType(), False),
        StructField("first", LongType(), False),
        StructField("end", LongType(), False),
    ]
)
"""What is read when tasks write the records to files by themselves."""


class RostraSource(DataSource):
    """Topics of a Rostra cluster.

    >>> spark.read.format("rostra").option("subscribe", "orders").load()  # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        return "rostra"

    def schema(self) -> StructType:
        return STAGED if STAGE in self.options else spark_schema(self._columns())

    def reader(self, schema: StructType) -> RostraReader:
        from rostra.spark.source.batch_reader import RostraReader

        return RostraReader(self._options(schema, streaming=False))

    def streamReader(self, schema: StructType) -> RostraStreamReader:  # noqa: N802 (the name is Spark's)
        from rostra.spark.source.stream_reader import RostraStreamReader

        return RostraStreamReader(self._options(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> RostraBatchWriter:
        from rostra.spark.sink.writer import RostraBatchWriter

        return RostraBatchWriter(self._write_options(schema, overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> RostraStreamWriter:  # noqa: N802
        from rostra.spark.sink.writer import RostraStreamWriter

        return RostraStreamWriter(self._write_options(schema, overwrite, streaming=True))

    def _write_options(self, schema: StructType, overwrite: bool, *, streaming: bool) -> WriteOptions:
        from rostra.spark.sink.options import parse_options as parse_write_options

        if overwrite:
            raise InvalidSetting("mode", "a topic is appended to, not overwritten; use mode append")
        return parse_write_options(dict(self.options), tuple(schema.names), streaming=streaming)

    def _options(self, schema: StructType, *, streaming: bool) -> ReadOptions:
        """With the columns that the reader declares: `.schema(...)` may choose some of them, in any order."""
        options = parse_options(dict(self.options), streaming=streaming)
        return options if options.stage else declared(options, schema)

    def _columns(self) -> tuple[str, ...]:
        """The columns of the schema, which Spark asks for before it says whether the read is a batch or a stream."""
        choice = ("columns", "includeheaders")
        written = {name: value for name, value in dict(self.options).items() if name.lower() in choice}
        return parse_options({**written, "subscribe": "any"}, streaming=False).columns
