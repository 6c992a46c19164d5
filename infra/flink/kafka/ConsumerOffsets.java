import java.lang.reflect.Method;
import java.util.HexFormat;
import org.apache.flink.api.common.ExecutionConfig;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshotSerializationUtil;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.streaming.connectors.kafka.FlinkKafkaConsumerBase;
import org.apache.flink.streaming.connectors.kafka.internals.KafkaTopicPartition;

/**
 * Prints offsets of the old `FlinkKafkaConsumer` as it keeps them in state: first the snapshot of their serializer, then topic,
 * partition, offset, and bytes of each; in hexadecimal digits.
 */
public class ConsumerOffsets {
    public static void main(String[] arguments) throws Exception {
        Method method =
                FlinkKafkaConsumerBase.class.getDeclaredMethod(
                        "createStateSerializer", ExecutionConfig.class);
        method.setAccessible(true);
        @SuppressWarnings("unchecked")
        TypeSerializer<Tuple2<KafkaTopicPartition, Long>> serializer =
                (TypeSerializer<Tuple2<KafkaTopicPartition, Long>>)
                        method.invoke(null, new ExecutionConfig());
        DataOutputSerializer out = new DataOutputSerializer(64);
        TypeSerializerSnapshotSerializationUtil.writeSerializerSnapshot(
                out, serializer.snapshotConfiguration());
        System.out.println(HexFormat.of().formatHex(out.getCopyOfBuffer()));
        print(serializer, "orders", 0, 17);
        print(serializer, "orders", 1, 4_000_000_000_000L);
        print(serializer, "clicks.of-all_2", 31, -915623761775L); // the earliest
        print(serializer, "q", 70_000, -915623761773L); // what the consumer group has committed
    }

    static void print(
            TypeSerializer<Tuple2<KafkaTopicPartition, Long>> serializer,
            String topic,
            int partition,
            long offset)
            throws Exception {
        DataOutputSerializer out = new DataOutputSerializer(64);
        serializer.serialize(Tuple2.of(new KafkaTopicPartition(topic, partition), offset), out);
        String hex = HexFormat.of().formatHex(out.getCopyOfBuffer());
        System.out.println(topic + " " + partition + " " + offset + " " + hex);
    }
}
