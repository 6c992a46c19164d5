import java.time.Duration;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * Sums up numbers in tumbling and sliding windows and in sessions. Number n has the key "k" + n % 3 and the second n, or n + 10
 * from 6 on.
 *
 * <pre>
 *   java -cp 'classes:jars/*' WindowJob write BACKEND FORMAT PARALLELISM DIRECTORY  numbers 0 to 11; prints the savepoint's URI
 *   java -cp 'classes:jars/*' WindowJob read  BACKEND -      PARALLELISM POINTER    numbers 12 to 17; prints the sums, a line each
 * </pre>
 *
 * There are no watermarks before the end, so that all windows are open in the savepoint.
 */
public class WindowJob {
    static final long STORED = 12;
    static final long ALL = 18;
    static final AtomicInteger SEEN = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        boolean writes = arguments[0].equals("write");
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", arguments[1]);
        configuration.setString("rest.bind-port", "0");
        configuration.setString("rest.port", "0");
        if (!writes) {
            configuration.setString("execution.state-recovery.path", arguments[4]);
        }
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment.setParallelism(Integer.parseInt(arguments[3]));
        environment.setMaxParallelism(128);
        WatermarkStrategy<Long> times =
                WatermarkStrategy.<Long>noWatermarks()
                        .withTimestampAssigner((number, before) -> second(number) * 1000);
        DataStream<Long> numbers =
                environment
                        .fromSequence(
                                writes ? 0 : STORED, writes ? Long.MAX_VALUE - 1 : ALL - 1)
                        .setParallelism(1)
                        .filter(number -> isNext(number, writes))
                        .setParallelism(1)
                        .assignTimestampsAndWatermarks(times)
                        .setParallelism(1);
        Duration five = Duration.ofSeconds(5);
        sum(numbers, "tumbling", TumblingEventTimeWindows.of(five));
        sum(numbers, "sliding", SlidingEventTimeWindows.of(Duration.ofSeconds(10), five));
        sum(numbers, "session", EventTimeSessionWindows.withGap(Duration.ofSeconds(4)));
        if (!writes) {
            environment.execute();
            return;
        }
        JobClient client = environment.executeAsync();
        while (SEEN.get() < STORED) {
            Thread.sleep(20);
        }
        System.out.println("@savepoint\t" + Savepoints.stopped(client, arguments[4], arguments[2]));
    }

    static long second(long number) {
        return number < 6 ? number : number + 10;
    }

    /** Lets numbers through that are to be stored, and then waits for the savepoint. */
    static boolean isNext(long number, boolean writes) throws Exception {
        if (writes && number >= STORED) {
            Thread.sleep(5);
            return false;
        }
        SEEN.incrementAndGet();
        return true;
    }

    static void sum(
            DataStream<Long> numbers, String uid, WindowAssigner<Object, TimeWindow> windows) {
        numbers.keyBy(WindowJob::keyOf, Types.STRING)
                .window(windows)
                .reduce(Long::sum, new Printed(uid))
                .returns(Types.LONG)
                .uid(uid)
                .sinkTo(new DiscardingSink<>());
    }

    static String keyOf(long number) {
        return "k" + number % 3;
    }

    static class Printed extends ProcessWindowFunction<Long, Long, String, TimeWindow> {
        private final String uid;

        Printed(String uid) {
            this.uid = uid;
        }

        @Override
        public void process(
                String key, Context context, Iterable<Long> sums, Collector<Long> out) {
            TimeWindow window = context.window();
            for (long sum : sums) {
                String span = window.getStart() + "\t" + window.getEnd();
                System.out.println("@" + uid + "\t" + key + "\t" + span + "\t" + sum);
            }
        }
    }
}
