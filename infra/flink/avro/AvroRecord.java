import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.formats.avro.typeutils.AvroSerializer;

/** Prints what a savepoint says of a serializer of Avro, and a record as it is stored, in hexadecimal digits. */
public class AvroRecord {
    static final String SCHEMA =
            "{\"type\":\"record\",\"name\":\"Order\",\"namespace\":\"shop\",\"fields\":[{\"name\":\"id\",\"type\":\"long\"},"
                    + "{\"name\":\"n\",\"type\":\"int\"},"
                    + "{\"name\":\"name\",\"type\":[\"null\",\"string\"]},"
                    + "{\"name\":\"any\",\"type\":[\"null\",\"int\",\"string\"]},"
                    + "{\"name\":\"tags\",\"type\":{\"type\":\"array\",\"items\":\"string\"}},"
                    + "{\"name\":\"m\",\"type\":{\"type\":\"map\",\"values\":\"double\"}},"
                    + "{\"name\":\"k\",\"type\":{\"type\":\"enum\",\"name\":\"Kind\",\"symbols\":[\"A\",\"B\"]}},"
                    + "{\"name\":\"k2\",\"type\":\"Kind\"},"
                    + "{\"name\":\"fx\",\"type\":{\"type\":\"fixed\",\"name\":\"F\",\"size\":3}},"
                    + "{\"name\":\"b\",\"type\":\"bytes\"},"
                    + "{\"name\":\"at\",\"type\":{\"type\":\"long\",\"logicalType\":\"timestamp-millis\"}},"
                    + "{\"name\":\"price\",\"type\":{\"type\":\"bytes\",\"logicalType\":\"decimal\",\"precision\":10,\"scale\":2}},"
                    + "{\"name\":\"in\",\"type\":{\"type\":\"record\",\"name\":\"In\",\"fields\":[{\"name\":\"x\",\"type\":\"boolean\"},"
                    + "{\"name\":\"f\",\"type\":\"float\"}]}}]}";

    public static void main(String[] arguments) throws Exception {
        Schema schema = new Schema.Parser().parse(SCHEMA);
        Schema kind = schema.getField("k").schema();
        GenericData.Record inner = new GenericData.Record(schema.getField("in").schema());
        inner.put("x", true);
        inner.put("f", 0.5f);
        GenericData.Record record = new GenericData.Record(schema);
        record.put("id", 7L);
        record.put("n", -3);
        record.put("name", "é");
        record.put("any", "x");
        record.put("tags", Arrays.asList("a", "bb"));
        record.put("m", Map.of("q", 1.5));
        record.put("k", new GenericData.EnumSymbol(kind, "B"));
        record.put("k2", new GenericData.EnumSymbol(kind, "A"));
        record.put("fx", new GenericData.Fixed(schema.getField("fx").schema(), new byte[] {1, 2, 3}));
        record.put("b", ByteBuffer.wrap(new byte[] {9, 8}));
        record.put("at", 1700000000000L);
        byte[] price = new BigDecimal("-12.34").unscaledValue().toByteArray();
        record.put("price", ByteBuffer.wrap(price));
        record.put("in", inner);
        AvroSerializer<GenericRecord> serializer = new AvroSerializer<>(GenericRecord.class, schema);
        DataOutputSerializer snapshot = new DataOutputSerializer(64);
        TypeSerializerSnapshot.writeVersionedSnapshot(snapshot, serializer.snapshotConfiguration());
        DataOutputSerializer value = new DataOutputSerializer(64);
        serializer.serialize(record, value);
        for (DataOutputSerializer output : new DataOutputSerializer[] {snapshot, value}) {
            System.out.println(HexFormat.of().formatHex(output.getCopyOfBuffer()));
        }
    }
}
