import java.util.HexFormat;
import java.util.Optional;
import org.apache.flink.connector.kafka.source.split.KafkaPartitionSplit;
import org.apache.flink.connector.kafka.source.split.KafkaPartitionSplitSerializer;
import org.apache.flink.core.io.SimpleVersionedSerialization;
import org.apache.kafka.common.TopicPartition;

/** Prints splits of a `KafkaSource` as its readers keep them in state: topic, partition, offset, and bytes in hexadecimal digits. */
public class KafkaSplits {
    public static void main(String[] arguments) throws Exception {
        print("orders", 0, 17, Optional.empty());
        print("orders", 1, 4_000_000_000_000L, Optional.of(5_000_000_000_000L));
        print("clicks.of-all_2", 0, KafkaPartitionSplit.EARLIEST_OFFSET, Optional.empty());
        print("clicks.of-all_2", 31, KafkaPartitionSplit.LATEST_OFFSET, Optional.empty());
        print("idle", 0, -3, Optional.empty()); // the committed offset
    }

    static void print(String topic, int partition, long offset, Optional<Long> stop)
            throws Exception {
        KafkaPartitionSplit split =
                new KafkaPartitionSplit(
                        new TopicPartition(topic, partition),
                        offset,
                        stop.orElse(KafkaPartitionSplit.NO_STOPPING_OFFSET));
        byte[] bytes =
                SimpleVersionedSerialization.writeVersionAndSerialize(
                        new KafkaPartitionSplitSerializer(), split);
        String hex = HexFormat.of().formatHex(bytes);
        System.out.println(topic + " " + partition + " " + offset + " " + hex);
    }
}
