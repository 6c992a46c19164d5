import java.io.File;
import java.time.Duration;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.TextLineInputFormat;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Sums up the orders of each customer, and of each product of a customer: lines of customer, product and amount.
 *
 * <pre>
 *   java -cp 'classes:jars/*' Orders SOURCE_DIRECTORY LINES SAVEPOINT_DIRECTORY [POINTER]
 * </pre>
 *
 * After so many lines it stops with a savepoint. Begins with the savepoint of POINTER, if there is one.
 */
public class Orders {
    static final AtomicInteger LINES = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("rest.bind-port", "0");
        configuration.setString("rest.port", "0");
        if (arguments.length > 3) {
            configuration.setString("execution.state-recovery.path", arguments[3]);
        }
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment.setParallelism(2);
        FileSource<String> source =
                FileSource.forRecordStreamFormat(
                                new TextLineInputFormat(),
                                org.apache.flink.core.fs.Path.fromLocalFile(new File(arguments[0])))
                        .monitorContinuously(Duration.ofMillis(50))
                        .build();
        environment
                .fromSource(source, WatermarkStrategy.noWatermarks(), "orders")
                .uid("orders")
                .map(line -> line.split(","))
                .returns(Types.OBJECT_ARRAY(Types.STRING))
                .map(parts -> Tuple3.of(parts[0], parts[1], Long.parseLong(parts[2])))
                .returns(Types.TUPLE(Types.STRING, Types.STRING, Types.LONG))
                .keyBy(order -> order.f0, Types.STRING)
                .process(new Totals())
                .returns(Types.STRING)
                .uid("totals")
                .sinkTo(new DiscardingSink<>());
        JobClient client = environment.executeAsync();
        while (LINES.get() < Integer.parseInt(arguments[1])) {
            Thread.sleep(20);
        }
        String savepoint =
                client.stopWithSavepoint(false, arguments[2], SavepointFormatType.CANONICAL).get();
        System.out.println("@savepoint\t" + savepoint);
    }

    /** What each customer has ordered, in all and of each product. */
    static class Totals extends KeyedProcessFunction<String, Tuple3<String, String, Long>, String> {
        private ValueState<Long> total;
        private MapState<String, Long> products;

        @Override
        public void open(OpenContext context) {
            total = getRuntimeContext().getState(new ValueStateDescriptor<>("total", Types.LONG));
            products =
                    getRuntimeContext()
                            .getMapState(
                                    new MapStateDescriptor<>(
                                            "products", Types.STRING, Types.LONG));
        }

        @Override
        public void processElement(
                Tuple3<String, String, Long> order, Context context, Collector<String> out)
                throws Exception {
            Long before = total.value();
            total.update((before == null ? 0 : before) + order.f2);
            Long ofProduct = products.get(order.f1);
            products.put(order.f1, (ofProduct == null ? 0 : ofProduct) + order.f2);
            TreeMap<String, Long> sorted = new TreeMap<>();
            products.entries().forEach(entry -> sorted.put(entry.getKey(), entry.getValue()));
            String line = order.f0 + "\t" + total.value() + "\t" + sorted;
            System.out.println("@" + line);
            out.collect(line);
            LINES.incrementAndGet();
        }
    }
}
