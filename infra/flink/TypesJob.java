import java.io.Serializable;
import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.time.LocalDate;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.CoGroupFunction;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

/**
 * A job with values that Flink leaves to Kryo, POJOs with collections and subclasses, rows, and what joins keep. It runs with Flink
 * 1.20 to 2.3.
 *
 * <pre>
 *   java -cp 'classes:jars/*' TypesJob BACKEND FORMAT PARALLELISM DIRECTORY [KEY=VALUE]...   prints the savepoint's URI
 * </pre>
 *
 * BACKEND is hashmap, rocksdb or forst, FORMAT canonical, native or checkpoint, a retained one of a job whose last operator is
 * slower than its source; the pairs are settings of Flink.
 */
public class TypesJob {
    static final int KEYS = 8;
    static final AtomicInteger DONE = new AtomicInteger();

    /** What a parcel may be. */
    public enum Size {
        SMALL,
        LARGE
    }

    /** A POJO in another. */
    public static class Address implements Serializable {
        public String street;
        public Integer number;

        public Address() {}

        Address(String street, Integer number) {
            this.street = street;
            this.number = number;
        }
    }

    /** A POJO with collections, some of which Flink leaves to Kryo. */
    public static class Parcel implements Serializable {
        public long id;
        public Size size;
        public Address address;
        public List<String> tags;
        public Map<String, List<Integer>> counts;
        public LinkedList<String> stops;
        public double[] weights;
        public LocalDate sent;
        public UUID code;

        public Parcel() {}

        Parcel(long key) {
            id = key;
            size = key % 2 == 0 ? Size.SMALL : Size.LARGE;
            address = key % 3 == 0 ? null : new Address("é" + key, (int) key);
            tags = new ArrayList<>(Arrays.asList("a", "b" + key));
            counts = new LinkedHashMap<>();
            counts.put("c", new ArrayList<>(Arrays.asList(1, (int) key)));
            stops = new LinkedList<>(Arrays.asList("x", "y" + key));
            weights = new double[] {key / 2.0};
            sent = LocalDate.of(2024, 1, 1).plusDays(key);
            code = new UUID(key, -key);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend", arguments[0]);
        configuration.setString("state.backend.type", arguments[0]);
        configuration.setString("rest.bind-port", "0");
        configuration.setString("rest.port", "0");
        boolean retains = arguments[1].equals("checkpoint");
        if (retains) {
            configuration.setString("execution.checkpointing.interval", "300ms");
            configuration.setString("state.checkpoints.dir", arguments[3]);
            configuration.setString("execution.checkpointing.dir", arguments[3]);
            configuration.setString(
                    "execution.checkpointing.externalized-checkpoint-retention",
                    "RETAIN_ON_CANCELLATION");
        }
        for (int index = 4; index < arguments.length; index++) {
            String[] setting = arguments[index].split("=", 2);
            configuration.setString(setting[0], setting[1]);
        }
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment.setParallelism(Integer.parseInt(arguments[2]));
        environment.setMaxParallelism(128);
        DataStream<Long> numbers =
                environment
                        .fromSequence(0, Long.MAX_VALUE - 1)
                        .setParallelism(1)
                        .uid("sequence")
                        .filter(number -> isNext(number, retains))
                        .setParallelism(1)
                        .assignTimestampsAndWatermarks(
                                WatermarkStrategy.<Long>noWatermarks()
                                        .withTimestampAssigner((number, before) -> number * 1000))
                        .setParallelism(1);
        numbers.keyBy(number -> number % KEYS, Types.LONG)
                .process(new Kept(retains))
                .returns(Types.LONG)
                .uid("kept");
        if (!retains) {
            joins(numbers);
        }
        JobClient client = environment.executeAsync();
        while (DONE.get() < KEYS) {
            Thread.sleep(20);
        }
        if (retains) {
            Path directory = Path.of(URI.create(arguments[3]));
            System.out.println("@checkpoint\t" + Savepoints.retained(client, directory));
            return;
        }
        System.out.println("@savepoint\t" + Savepoints.stopped(client, arguments[3], arguments[1]));
    }

    /** Joins whose windows are all open in the savepoint. */
    static void joins(DataStream<Long> numbers) {
        DataStream<String> texts = numbers.map(number -> "t" + number).returns(Types.STRING);
        numbers.keyBy(number -> number % KEYS, Types.LONG)
                .intervalJoin(texts.keyBy(text -> Long.parseLong(text.substring(1)), Types.LONG))
                .between(Duration.ofSeconds(-5), Duration.ofSeconds(5))
                .process(
                        new ProcessJoinFunction<Long, String, String>() {
                            @Override
                            public void processElement(
                                    Long left, String right, Context context, Collector<String> out) {}
                        })
                .returns(Types.STRING)
                .uid("interval-join");
        numbers.coGroup(texts)
                .where(number -> number % KEYS, Types.LONG)
                .equalTo(text -> Long.parseLong(text.substring(1)), Types.LONG)
                .window(TumblingEventTimeWindows.of(Duration.ofSeconds(100)))
                .apply(
                        new CoGroupFunction<Long, String, String>() {
                            @Override
                            public void coGroup(
                                    Iterable<Long> left, Iterable<String> right, Collector<String> out) {}
                        },
                        Types.STRING);
    }

    /** Lets the first numbers through, and then waits for the savepoint, or goes on as fast as it can. */
    static boolean isNext(long number, boolean retains) throws Exception {
        if (number >= KEYS && !retains) {
            Thread.sleep(5);
            return false;
        }
        return true;
    }

    static class Kept extends KeyedProcessFunction<Long, Long, Long> implements CheckpointedFunction {
        private final boolean isSlow;
        private ValueState<Parcel> parcel;
        private ListState<Parcel> parcels;
        private MapState<Long, Object> kryo;
        private ValueState<Row> row;
        private ValueState<Map<String, Address>> addresses;

        Kept(boolean isSlow) {
            this.isSlow = isSlow;
        }

        @Override
        public void processElement(Long number, Context context, Collector<Long> out) throws Exception {
            long key = context.getCurrentKey();
            if (number >= KEYS) {
                Thread.sleep(isSlow ? 5 : 0);
                return;
            }
            parcel.update(new Parcel(key));
            parcels.add(new Parcel(key));
            parcels.add(new Parcel(key + 1));
            TreeMap<String, Integer> sorted = new TreeMap<>();
            sorted.put("b", 2);
            sorted.put("a", (int) key);
            Map<Object, Object> mixed = new LinkedHashMap<>();
            mixed.put("nothing", null);
            mixed.put("list", new ArrayList<>(Arrays.asList(1, "two", 3.5, true, key, null)));
            mixed.put("again", sorted);
            Object[] values = {
                new ArrayList<>(Arrays.asList("a", "b" + key)),
                new LinkedList<>(Arrays.asList(1L, key)),
                new ArrayDeque<>(Arrays.asList("é中😀", "x".repeat(70))),
                new HashSet<>(Collections.singleton((int) key)),
                sorted,
                mixed,
                new HashMap<>(),
                new ArrayList<>(Arrays.asList(null, key, null)),
                Arrays.asList("p", "q" + key),
                Collections.singletonList(key),
                new UUID(key, -1 - key),
                Collections.emptyList(),
                new ArrayList<>(),
                List.of("i", "j" + key),
                Map.of("k", key),
            };
            for (int index = 0; index < values.length; index++) {
                kryo.put((long) index, values[index]);
            }
            row.update(Row.of(key, key % 2 == 0 ? null : "r" + key));
            addresses.update(Collections.singletonMap("home", new Address("s" + key, null)));
            DONE.incrementAndGet();
        }

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            var store = context.getKeyedStateStore();
            TypeInformation<Parcel> type = TypeInformation.of(Parcel.class);
            parcel = store.getState(new ValueStateDescriptor<>("parcel", type));
            parcels = store.getListState(new ListStateDescriptor<>("parcels", type));
            kryo =
                    store.getMapState(
                            new MapStateDescriptor<>("kryo", Types.LONG, Types.GENERIC(Object.class)));
            row = store.getState(new ValueStateDescriptor<>("row", Types.ROW(Types.LONG, Types.STRING)));
            addresses =
                    store.getState(
                            new ValueStateDescriptor<>(
                                    "addresses",
                                    Types.MAP(Types.STRING, TypeInformation.of(Address.class))));
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) {}
    }
}
