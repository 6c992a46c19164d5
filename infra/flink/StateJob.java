import java.math.BigDecimal;
import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.AggregatingState;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.BroadcastState;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingState;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * A job with state of all kinds, whose content follows formulas of the keys 0 to 19.
 *
 * <pre>
 *   java -cp 'jars/*' StateJob.java write BACKEND FORMAT PARALLELISM DIRECTORY [KEY=VALUE]...   prints the savepoint's URI
 *   java -cp 'jars/*' StateJob.java read  BACKEND -      PARALLELISM POINTER   [KEY=VALUE]...   prints what was restored
 * </pre>
 *
 * BACKEND is hashmap or rocksdb, FORMAT canonical, native or checkpoint, a retained one; the pairs are settings of Flink. What
 * is printed begins with "@".
 */
public class StateJob {
    static final int KEYS = 20;
    static final AtomicInteger DONE = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        boolean writes = arguments[0].equals("write");
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", arguments[1]);
        configuration.setString("rest.bind-port", "0");
        configuration.setString("rest.port", "0");
        int parallelism = Integer.parseInt(arguments[3]);
        boolean retains = arguments[2].equals("checkpoint");
        if (!writes) {
            configuration.setString("execution.state-recovery.path", arguments[4]);
        } else if (retains) {
            configuration.setString("execution.checkpointing.interval", "200ms");
            configuration.setString("execution.checkpointing.dir", arguments[4]);
            configuration.setString(
                    "execution.checkpointing.externalized-checkpoint-retention",
                    "RETAIN_ON_CANCELLATION");
        }
        for (int index = 5; index < arguments.length; index++) {
            String[] setting = arguments[index].split("=", 2);
            configuration.setString(setting[0], setting[1]);
        }
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment.setParallelism(parallelism);
        environment.setMaxParallelism(128);
        DataStream<Long> numbers =
                environment
                        .fromSequence(0, writes ? Long.MAX_VALUE - 1 : KEYS - 1)
                        .uid("sequence")
                        .map(new Numbers(writes))
                        .returns(Types.LONG)
                        .uid("numbers");
        numbers.keyBy(number -> number % KEYS, Types.LONG)
                .process(new ByLong(writes))
                .returns(Types.LONG)
                .uid("by-long")
                .sinkTo(new DiscardingSink<>());
        numbers.keyBy(StateJob::pair, Types.TUPLE(Types.STRING, Types.LONG))
                .process(new ByPair(writes))
                .returns(Types.LONG)
                .uid("by-pair")
                .sinkTo(new DiscardingSink<>());
        if (!writes) {
            environment.execute();
            return;
        }
        JobClient client = environment.executeAsync();
        while (DONE.get() < 2 * KEYS) {
            Thread.sleep(20);
        }
        if (retains) {
            print("checkpoint", Savepoints.retained(client, Path.of(URI.create(arguments[4]))));
            return;
        }
        SavepointFormatType format = SavepointFormatType.valueOf(arguments[2].toUpperCase());
        print("savepoint", client.stopWithSavepoint(false, arguments[4], format).get());
    }

    static Tuple2<String, Long> pair(long number) {
        long key = number % KEYS;
        return Tuple2.of("é" + key % 3, key);
    }

    static synchronized void print(Object... parts) {
        StringBuilder line = new StringBuilder("@");
        for (Object part : parts) {
            line.append(line.length() > 1 ? "\t" : "").append(part);
        }
        System.out.println(line);
    }

    /** Passes numbers on, one after the other, and has operator state. */
    static class Numbers extends RichMapFunction<Long, Long> implements CheckpointedFunction {
        private final boolean writes;
        private ListState<Long> longs;
        private ListState<String> union;
        private BroadcastState<String, Long> rules;

        Numbers(boolean writes) {
            this.writes = writes;
        }

        @Override
        public Long map(Long number) throws Exception {
            if (writes && number >= KEYS) {
                Thread.sleep(5);
            }
            return number;
        }

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            var store = context.getOperatorStateStore();
            longs = store.getListState(new ListStateDescriptor<>("longs", Types.LONG));
            union = store.getUnionListState(new ListStateDescriptor<>("union", Types.STRING));
            rules =
                    store.getBroadcastState(
                            new MapStateDescriptor<>("rules", Types.STRING, Types.LONG));
            int subtask = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            if (writes) {
                for (long number = 0; number < 5; number++) {
                    longs.add(100 * subtask + number);
                }
                union.add("u" + subtask);
                rules.put("one", 1L);
                rules.put("two", 2L);
                return;
            }
            for (long number : longs.get()) {
                print("longs", number);
            }
            for (String text : union.get()) {
                print("union", subtask, text);
            }
            for (Map.Entry<String, Long> rule : rules.entries()) {
                print("rules", subtask, rule.getKey(), rule.getValue());
            }
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) {}
    }

    static class ByLong extends KeyedProcessFunction<Long, Long, Long> {
        private final boolean writes;
        private ValueState<Long> value;
        private ListState<Long> list;
        private MapState<String, Long> map;
        private ReducingState<Long> reducing;
        private AggregatingState<Long, String> aggregating;
        private ValueState<Tuple4<Boolean, Integer, Double, List<String>>> mixed;
        private ValueState<Long> seen;
        private ValueState<Tuple4<LocalDate, LocalTime, LocalDateTime, Instant>> times;
        private ValueState<BigDecimal> price;

        ByLong(boolean writes) {
            this.writes = writes;
        }

        @Override
        public void open(OpenContext context) {
            var states = getRuntimeContext();
            value = states.getState(new ValueStateDescriptor<>("value", Types.LONG));
            list = states.getListState(new ListStateDescriptor<>("list", Types.LONG));
            map = states.getMapState(new MapStateDescriptor<>("map", Types.STRING, Types.LONG));
            reducing =
                    states.getReducingState(
                            new ReducingStateDescriptor<>("reducing", Long::sum, Types.LONG));
            aggregating =
                    states.getAggregatingState(
                            new AggregatingStateDescriptor<>(
                                    "aggregating",
                                    new SumAndCount(),
                                    Types.TUPLE(Types.LONG, Types.LONG)));
            TypeInformation<Tuple4<Boolean, Integer, Double, List<String>>> types =
                    Types.TUPLE(
                            Types.BOOLEAN, Types.INT, Types.DOUBLE, Types.LIST(Types.STRING));
            mixed = states.getState(new ValueStateDescriptor<>("mixed", types));
            times =
                    states.getState(
                            new ValueStateDescriptor<>(
                                    "times",
                                    Types.TUPLE(
                                            Types.LOCAL_DATE,
                                            Types.LOCAL_TIME,
                                            Types.LOCAL_DATE_TIME,
                                            Types.INSTANT)));
            if (!writes) { // what a query of Holdfast has added
                price = states.getState(new ValueStateDescriptor<>("price", Types.BIG_DEC));
            }
            ValueStateDescriptor<Long> forgotten = new ValueStateDescriptor<>("seen", Types.LONG);
            forgotten.enableTimeToLive(StateTtlConfig.newBuilder(Duration.ofDays(3650)).build());
            seen = states.getState(forgotten);
        }

        @Override
        public void processElement(Long number, Context context, Collector<Long> out)
                throws Exception {
            if (!writes) {
                long key = context.getCurrentKey();
                print("value", key, value.value());
                List<Long> elements = new ArrayList<>();
                list.get().forEach(elements::add);
                print("list", key, elements);
                Map<String, Long> entries = new TreeMap<>();
                map.entries().forEach(entry -> entries.put(entry.getKey(), entry.getValue()));
                print("map", key, entries);
                print("reducing", key, reducing.get());
                print("aggregating", key, aggregating.get());
                print("mixed", key, mixed.value());
                print("seen", key, seen.value());
                print("times", key, times.value());
                print("price", key, price.value());
                return;
            }
            if (number >= KEYS) {
                return;
            }
            value.update(10 * number);
            list.add(number);
            list.add(44L);
            map.put("a", number);
            map.put("b" + number, 2 * number);
            reducing.add(number);
            reducing.add(5L);
            aggregating.add(number);
            aggregating.add(number + 1);
            mixed.update(
                    Tuple4.of(
                            number % 2 == 0,
                            (int) -number,
                            number / 8.0,
                            List.of("x" + number, "é中\uD83D\uDE00")));
            seen.update(number);
            LocalDate day = LocalDate.of(1900, 2, 28).plusDays(900 * number);
            LocalTime time = LocalTime.of(number.intValue(), 59, 1, number.intValue() * 1_000_001);
            times.update(
                    Tuple4.of(
                            day,
                            time,
                            LocalDateTime.of(day, time),
                            Instant.ofEpochSecond(-number, number * 1_000)));
            context.timerService().registerEventTimeTimer(1_000_000 + number);
            context.timerService().registerProcessingTimeTimer(4_102_444_800_000L + number);
            DONE.incrementAndGet();
        }

        @Override
        public void onTimer(long timestamp, OnTimerContext context, Collector<Long> out) {
            if (!writes) {
                print("timer", context.getCurrentKey(), timestamp);
            }
        }
    }

    static class ByPair extends KeyedProcessFunction<Tuple2<String, Long>, Long, Long> {
        private final boolean writes;
        private ValueState<Long> count;

        ByPair(boolean writes) {
            this.writes = writes;
        }

        @Override
        public void open(OpenContext context) {
            count =
                    getRuntimeContext()
                            .getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(Long number, Context context, Collector<Long> out)
                throws Exception {
            if (!writes) {
                print("count", context.getCurrentKey().f1, count.value());
            } else if (number < KEYS) {
                count.update(number + 1);
                DONE.incrementAndGet();
            }
        }
    }

    static class SumAndCount implements AggregateFunction<Long, Tuple2<Long, Long>, String> {
        @Override
        public Tuple2<Long, Long> createAccumulator() {
            return Tuple2.of(0L, 0L);
        }

        @Override
        public Tuple2<Long, Long> add(Long number, Tuple2<Long, Long> accumulator) {
            return Tuple2.of(accumulator.f0 + number, accumulator.f1 + 1);
        }

        @Override
        public String getResult(Tuple2<Long, Long> accumulator) {
            return accumulator.f0 + "/" + accumulator.f1;
        }

        @Override
        public Tuple2<Long, Long> merge(Tuple2<Long, Long> first, Tuple2<Long, Long> second) {
            return Tuple2.of(first.f0 + second.f0, first.f1 + second.f1);
        }
    }
}
