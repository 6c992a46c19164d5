import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.URI;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.MonthDay;
import java.time.OffsetDateTime;
import java.time.Period;
import java.time.Year;
import java.time.YearMonth;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.util.AbstractMap;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.Currency;
import java.util.Date;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.IdentityHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.PriorityQueue;
import java.util.Properties;
import java.util.Set;
import java.util.TimeZone;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Pattern;
import org.apache.flink.api.common.ExecutionConfig;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.tuple.Tuple11;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.core.memory.DataOutputSerializer;

/** Prints objects of the JDK as Kryo stores them in Flink: the JSON that they are, and their bytes in hexadecimal digits. */
public class KryoObjects {
    static final TypeSerializer<Object> KRYO =
            Types.GENERIC(Object.class).createSerializer(new ExecutionConfig().getSerializerConfig());

    public static void main(String[] arguments) throws Exception {
        print("\"1970-01-01T00:00:01.123456789+00:00\"", sqlTimestamp());
        print("\"1970-01-04T00:00:00+00:00\"", new java.sql.Date(86400000L * 3L));
        print("\"1970-01-01T00:00:03+00:00\"", new java.sql.Time(1000L * 3L));
        print("\"a+b\"", Pattern.compile("a+b", 2));
        print("\"EUR\"", Currency.getInstance("EUR"));
        print("\"sb3\"", new StringBuilder("sb" + 3L));
        print("\"sb3\"", new StringBuffer("sb" + 3L));
        print("\"1970-01-01T00:00:03.000000005+00:00\"", Instant.ofEpochSecond(3L, 5));
        print("\"01:02:03.000000004\"", LocalTime.of(1, 2, 3, 4));
        print("\"2024-01-02T03:04:00\"", LocalDateTime.of(2024, 1, 2, 3, 4));
        print("\"2024-01-02\"", LocalDate.of(2024, 1, 2));
        print(
                "\"2024-01-02T03:04:05.000000006[Europe/Berlin]\"",
                ZonedDateTime.of(2024, 1, 2, 3, 4, 5, 6, ZoneId.of("Europe/Berlin")));
        print(
                "\"2024-01-02T03:04:05.000000006+02:00\"",
                OffsetDateTime.of(2024, 1, 2, 3, 4, 5, 6, ZoneOffset.ofHours(2)));
        print("2024", Year.of(2024));
        print("\"2024-05\"", YearMonth.of(2024, 5));
        print("\"--05-06\"", MonthDay.of(5, 6));
        print("\"P1Y2M3D\"", Period.of(1, 2, 3));
        print("\"Europe/Berlin\"", ZoneId.of("Europe/Berlin"));
        print("\"-03:00\"", ZoneOffset.ofHours(-3));
        print("\"PT-1.5S\"", Duration.ofMillis(-1500));
        print("\"Europe/Berlin\"", TimeZone.getTimeZone("Europe/Berlin"));
        print("[1, -2]", new int[] {1, -2});
        print("[3, -2]", new long[] {3L, -2});
        print("[1, -2]", new byte[] {1, -2});
        print("[1.5]", new double[] {1.5});
        print("[1.5]", new float[] {1.5f});
        print("[true, false]", new boolean[] {true, false});
        print("[\"a\", \"é\"]", new char[] {'a', 'é'});
        print("[1, -2]", new short[] {1, -2});
        print("[\"a\", null, \"a\"]", new String[] {"a", null, "a"});
        print("[1, \"x\", null, 2.5]", new Object[] {1L, "x", null, 2.5});
        print("[1, null]", new Long[] {1L, null});
        print("\"x\"", Optional.of("x"));
        print("None", Optional.empty());
        print("-5", new AtomicInteger(-5));
        print("3", new AtomicLong(3L));
        print("true", new AtomicBoolean(true));
        print("[3, 70]", BitSet.valueOf(new long[] {8, 64}));
        print(
                "[\"1970-01-01T00:00:00.003000000+00:00\", \"1970-01-01T00:00:00.003000+00:00\"]",
                new ArrayList<>(Arrays.asList(new java.sql.Timestamp(3L), new Date(3L))));
        print("[\"u\", 3]", Collections.unmodifiableList(new ArrayList<>(Arrays.asList("u", 3L))));
        print("[\"u\", 3]", Collections.synchronizedList(new ArrayList<>(Arrays.asList("u", 3L))));
        print("{\"u\": 3}", Collections.unmodifiableMap(new HashMap<>(Collections.singletonMap("u", 3L))));
        print("[\"u\", \"v\"]", Arrays.asList("u", "v"));
        print("[\"a\", 3]", List.of("a", 3L));
        print("{\"a\": 3}", Map.of("a", 3L));
        print("[3]", Set.of(3L));
        print("[[3, \"x\"]]", new TreeMap<>(Collections.singletonMap(3L, "x")) );
        print("[\"k\", 3]", new AbstractMap.SimpleEntry<>("k", 3L));
        print("[\"k\", 3]", Tuple2.of("k", 3L));
        print(
                "[[\"k\", 3], [\"l\", 2]]",
                new ArrayList<>(Arrays.asList(Tuple2.of("k", 3L), Tuple2.of("l", 2))));
        print("\"1000000000000000000000000000000\"", BigInteger.TEN.pow(30));
        print("\"-1.25\"", new BigDecimal("-1.25"));
        print("2.5", 2.5);
        print("2.5", 2.5f);
        print("true", true);
        print("\"é\"", 'é');
        print("-3", (short) -3);
        print("-3", (byte) -3);
        print("\"00000000-0000-0001-0000-000000000003\"", new UUID(1, 3L));
        print("\"http://a\"", java.net.URI.create("http://a"));
        print("[3, 3]", new PriorityQueue<>(Arrays.asList(3L, 3L)));
        print("\"s3\"", "s" + 3L);
        print("[\"x\", 3]", new LinkedHashSet<>(Arrays.asList("x", 3L)));
        print("[\"x\"]", new CopyOnWriteArrayList<>(Arrays.asList("x")));
        print("{\"x\": 3}", new ConcurrentSkipListMap<>(Collections.singletonMap("x", 3L)));
        print("{\"x\": 3}", new IdentityHashMap<>(Collections.singletonMap("x", 3L)));
        print("{\"a\": \"b\"}", properties());
        print("[\"x\"]", new ConcurrentLinkedQueue<>(Arrays.asList("x")));
        print("[\"x\"]", new ConcurrentLinkedDeque<>(Arrays.asList("x")));
        print("[\"x\"]", concurrentSet());
        print("[1, 2]", new ArrayList<>(Arrays.asList(1, 2, 3)).subList(0, 2));
        print("[]", Collections.emptyList());
        print("[\"x\", \"x\"]", Collections.nCopies(2, "x"));
        print("{\"list\": [1, 2], \"ts\": \"1970-01-01T00:00:03+00:00\"}", nested());
        print("-9223372036854775808", Long.MIN_VALUE);
        print("9223372036854775807", Long.MAX_VALUE);
        print("-2147483648", Integer.MIN_VALUE);
        print("\"ffeeddcc-bbaa-9988-7766-554433221100\"", new UUID(0xffeeddccbbaa9988L, 0x7766554433221100L));
        print("\"1900-01-01T00:00:00+00:00\"", new Date(-2208988800000L));
        print("\"1969-12-31T23:59:58.000000001+00:00\"", Instant.ofEpochSecond(-2, 1));
        print("\"P0Y-2M-3D\"", Period.of(0, -2, -3));
        print("\"+05:45\"", ZoneOffset.ofHoursMinutes(5, 45));
        print("\"+00:00:01\"", ZoneOffset.ofTotalSeconds(1));
        print(
                "[\"k0\", 1, 2, 3, 4, 5, 6, 7, 8, 9, \"k10\"]",
                Tuple11.of("k0", 1, 2, 3, 4, 5, 6, 7, 8, 9, "k10"));
        print(
                "[{\"a\": [1.5]}, \"é中😀\"]",
                new ArrayList<Object>(Arrays.asList(Map.of("a", new double[] {1.5}), "é中😀")));
    }

    static void print(String json, Object value) throws Exception {
        DataOutputSerializer output = new DataOutputSerializer(64);
        KRYO.serialize(value, output);
        System.out.println(json + "\t" + HexFormat.of().formatHex(output.getCopyOfBuffer()));
    }

    static Object sqlTimestamp() {
        java.sql.Timestamp time = new java.sql.Timestamp(1503);
        time.setNanos(123456789);
        return time;
    }

    static Object properties() {
        Properties properties = new Properties();
        properties.put("a", "b");
        return properties;
    }

    static Object concurrentSet() {
        Set<Object> set = ConcurrentHashMap.newKeySet();
        set.add("x");
        return set;
    }

    static Object nested() {
        Map<String, Object> map = new HashMap<>();
        map.put("list", new ArrayList<>(Arrays.asList(1, 2)));
        map.put("ts", Instant.ofEpochSecond(3));
        return map;
    }
}
