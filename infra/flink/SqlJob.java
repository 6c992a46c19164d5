import java.math.BigDecimal;
import java.time.LocalDateTime;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.StatementSet;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;

/**
 * Queries of SQL over 20 rows: an aggregation with COUNT(DISTINCT), the two rows of the highest price, a join, what was
 * collected, and the last row with columns of many types, each by k. Row n has k = n % 5, the name "name-" + n + "é", the price
 * n + ".25" and the time 2024-01-01 and n seconds.
 *
 * <pre>
 *   java -cp 'classes:jars/*' SqlJob BACKEND FORMAT PARALLELISM DIRECTORY   prints the savepoint's URI
 * </pre>
 */
public class SqlJob {
    static final long ROWS = 20;
    static final String NESTED_COLUMNS =
            "k BIGINT, n INT, longs ARRAY<BIGINT>, names ARRAY<STRING>, bits ARRAY<BOOLEAN>, "
                    + "prices MAP<STRING, DECIMAL(30, 2)>, pair ROW<a INT, b ROW<c STRING, d ARRAY<ROW<e DOUBLE>>>>, "
                    + "lists MAP<INT, ARRAY<STRING>>, born DATE, at_time TIME(0), seen TIMESTAMP_LTZ(3), "
                    + "times ARRAY<TIMESTAMP(6)>, nothing ARRAY<INT>, utf8 VARBINARY, dates ARRAY<DATE>";
    static final String NESTED =
            "SELECT k, n, ARRAY[k, CAST(NULL AS BIGINT), k * 1000000000000], ARRAY[name, CAST(NULL AS STRING), CAST('é' AS STRING)], "
                    + "ARRAY[n > 16, TRUE], MAP[name, CAST(price AS DECIMAL(30, 2)), CAST('none' AS STRING), CAST(NULL AS DECIMAL(30, 2))], "
                    + "CAST(ROW(n, ROW(name, ARRAY[ROW(n / 2.0)])) AS ROW<a INT, b ROW<c STRING, d ARRAY<ROW<e DOUBLE>>>>), "
                    + "MAP[n, ARRAY[name, CAST('more than seven' AS STRING)]], CAST(ts AS DATE), CAST(ts AS TIME(0)), "
                    + "CAST(ts AS TIMESTAMP_LTZ(3)), ARRAY[CAST(ts AS TIMESTAMP(6))], CAST(NULL AS ARRAY<INT>), "
                    + "CAST(name AS VARBINARY), ARRAY[CAST(ts AS DATE)] "
                    + "FROM (SELECT *, CAST(price AS INT) AS n FROM t)";
    static volatile boolean isDone;

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", arguments[0]);
        configuration.setString("rest.bind-port", "0");
        configuration.setString("rest.port", "0");
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment.setParallelism(Integer.parseInt(arguments[2]));
        environment.setMaxParallelism(128);
        TypeInformation<Row> type =
                Types.ROW_NAMED(
                        new String[] {"k", "name", "price", "ts"},
                        Types.LONG,
                        Types.STRING,
                        Types.BIG_DEC,
                        Types.LOCAL_DATE_TIME);
        DataStream<Row> rows =
                environment
                        .fromSequence(0, Long.MAX_VALUE - 1)
                        .setParallelism(1)
                        .uid("sequence")
                        .filter(SqlJob::isRow)
                        .setParallelism(1)
                        .map(SqlJob::row)
                        .returns(type)
                        .setParallelism(1);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        Schema schema =
                Schema.newBuilder()
                        .column("k", "BIGINT")
                        .column("name", "STRING")
                        .column("price", "DECIMAL(12, 2)")
                        .column("ts", "TIMESTAMP(3)")
                        .build();
        tables.createTemporaryView("t", rows, schema);
        StatementSet statements = tables.createStatementSet();
        String into = ") WITH ('connector' = 'blackhole')";
        tables.executeSql(
                "CREATE TABLE sums (k BIGINT, n BIGINT, d BIGINT, s DECIMAL(38, 2), m STRING" + into);
        tables.executeSql(
                "CREATE TABLE most (k BIGINT, name STRING, price DECIMAL(12, 2), ts TIMESTAMP(3), r BIGINT"
                        + into);
        tables.executeSql("CREATE TABLE pairs (k BIGINT, a STRING, b STRING" + into);
        tables.executeSql(
                "CREATE TABLE collected (k BIGINT, c MULTISET<STRING>, a ARRAY<DECIMAL(12, 2)>" + into);
        tables.executeSql("CREATE TABLE nested (" + NESTED_COLUMNS + ", r BIGINT" + into);
        statements.addInsertSql(
                "INSERT INTO sums SELECT k, COUNT(*), COUNT(DISTINCT name), SUM(price), MAX(name) "
                        + "FROM t GROUP BY k");
        statements.addInsertSql(
                "INSERT INTO most SELECT * FROM (SELECT *, ROW_NUMBER() OVER "
                        + "(PARTITION BY k ORDER BY price DESC) AS r FROM t) WHERE r <= 2");
        statements.addInsertSql(
                "INSERT INTO pairs SELECT a.k, a.name, b.name FROM t a JOIN t b ON a.k = b.k");
        statements.addInsertSql(
                "INSERT INTO collected SELECT k, COLLECT(name), ARRAY_AGG(price) FROM t GROUP BY k");
        statements.addInsertSql(
                "INSERT INTO nested SELECT * FROM (SELECT *, ROW_NUMBER() OVER "
                        + "(PARTITION BY k ORDER BY n DESC) AS r FROM (" + NESTED + ")) WHERE r <= 1");
        JobClient client = statements.execute().getJobClient().orElseThrow();
        while (!isDone) {
            Thread.sleep(20);
        }
        System.out.println("@savepoint\t" + Savepoints.stopped(client, arguments[3], arguments[1]));
    }

    /** Lets the rows through, and then waits for the savepoint. */
    static boolean isRow(long number) throws Exception {
        if (number >= ROWS) {
            isDone = true;
            Thread.sleep(5);
        }
        return number < ROWS;
    }

    static Row row(long number) {
        LocalDateTime time = LocalDateTime.of(2024, 1, 1, 0, 0).plusSeconds(number);
        return Row.of(number % 5, "name-" + number + "é", new BigDecimal(number + ".25"), time);
    }
}
