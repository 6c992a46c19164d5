import java.io.Serializable;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.functions.PatternProcessFunction;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.conditions.SimpleCondition;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * A pattern over the numbers 0 to 7, of which those below 6 begin a match that never comes to its end, and values of a class that
 * only Kryo knows, beside others; by the keys k0 to k3.
 *
 * <pre>
 *   java -cp 'classes:jars/*' PatternJob BACKEND FORMAT PARALLELISM DIRECTORY   prints the savepoint's URI
 * </pre>
 */
public class PatternJob {
    static final int NUMBERS = 8;
    static final AtomicInteger DONE = new AtomicInteger();

    /** A class that is no POJO. */
    public static class Opaque implements Serializable {
        private final long number;

        Opaque(long number) {
            this.number = number;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", arguments[0]);
        configuration.setString("rest.bind-port", "0");
        configuration.setString("rest.port", "0");
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment.setParallelism(Integer.parseInt(arguments[2]));
        environment.setMaxParallelism(128);
        KeyedStream<Long, String> numbers =
                environment
                        .fromSequence(0, Long.MAX_VALUE - 1)
                        .setParallelism(1)
                        .filter(PatternJob::isNumber)
                        .setParallelism(1)
                        .assignTimestampsAndWatermarks(
                                WatermarkStrategy.<Long>forMonotonousTimestamps()
                                        .withTimestampAssigner((number, before) -> number * 1000))
                        .setParallelism(1)
                        .keyBy(number -> "k" + number % 4, Types.STRING);
        Pattern<Long, ?> pattern =
                Pattern.<Long>begin("first")
                        .where(SimpleCondition.of(number -> number < 6))
                        .followedBy("second")
                        .where(SimpleCondition.of(number -> number > 1000))
                        .within(Duration.ofHours(1));
        CEP.pattern(numbers, pattern)
                .process(
                        new PatternProcessFunction<Long, String>() {
                            @Override
                            public void processMatch(
                                    Map<String, List<Long>> match, Context context, Collector<String> out) {}
                        })
                .uid("pattern");
        numbers.process(new Kept()).returns(Types.LONG).uid("kept");
        JobClient client = environment.executeAsync();
        while (DONE.get() < NUMBERS) {
            Thread.sleep(20);
        }
        Thread.sleep(2000); // until watermarks, which come each 200 ms, have let the numbers into the pattern
        System.out.println("@savepoint\t" + Savepoints.stopped(client, arguments[3], arguments[1]));
    }

    /** Lets the numbers through, and then waits for the savepoint. */
    static boolean isNumber(long number) throws Exception {
        if (number >= NUMBERS) {
            Thread.sleep(5);
        }
        return number < NUMBERS;
    }

    static class Kept extends KeyedProcessFunction<String, Long, Long> {
        private transient ValueState<Opaque> opaque;
        private transient ValueState<Opaque> another;
        private transient ValueState<Duration> duration;
        private transient ValueState<Long> number;
        private transient ValueState<String> text;

        @Override
        public void open(OpenContext context) {
            var runtime = getRuntimeContext();
            TypeInformation<Opaque> type = TypeInformation.of(Opaque.class);
            opaque = runtime.getState(new ValueStateDescriptor<>("opaque", type));
            another = runtime.getState(new ValueStateDescriptor<>("another", type));
            duration =
                    runtime.getState(
                            new ValueStateDescriptor<>("duration", TypeInformation.of(Duration.class)));
            number = runtime.getState(new ValueStateDescriptor<>("number", Types.LONG));
            text = runtime.getState(new ValueStateDescriptor<>("text", Types.STRING));
        }

        @Override
        public void processElement(Long value, Context context, Collector<Long> out) throws Exception {
            opaque.update(new Opaque(value));
            another.update(new Opaque(-value));
            duration.update(Duration.ofMillis(1500 * (value - 5)));
            number.update(value);
            text.update("t" + value);
            context.timerService().registerEventTimeTimer(4102444800000L + value);
            DONE.incrementAndGet();
        }
    }
}
