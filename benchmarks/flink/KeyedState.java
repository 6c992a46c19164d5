import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.LongFunction;
import org.apache.flink.api.common.ExecutionConfig;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.core.fs.CloseableRegistry;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.memory.OpaqueMemoryResource;
import org.apache.flink.runtime.metrics.groups.UnregisteredMetricGroups;
import org.apache.flink.runtime.state.AbstractKeyedStateBackend;
import org.apache.flink.runtime.state.CheckpointStorageAccess;
import org.apache.flink.runtime.state.CheckpointStreamFactory;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupRangeAssignment;
import org.apache.flink.runtime.state.KeyGroupedInternalPriorityQueue;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.LocalRecoveryConfig;
import org.apache.flink.runtime.state.SharedStateRegistry;
import org.apache.flink.runtime.state.SharedStateRegistryImpl;
import org.apache.flink.runtime.state.UncompressedStreamCompressionDecorator;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.runtime.state.heap.HeapKeyedStateBackendBuilder;
import org.apache.flink.runtime.state.heap.HeapPriorityQueueSetFactory;
import org.apache.flink.runtime.state.metrics.LatencyTrackingStateConfig;
import org.apache.flink.runtime.state.metrics.SizeTrackingStateConfig;
import org.apache.flink.runtime.state.storage.FileSystemCheckpointStorage;
import org.apache.flink.runtime.state.ttl.TtlTimeProvider;
import org.apache.flink.state.rocksdb.EmbeddedRocksDBStateBackend.PriorityQueueStateType;
import org.apache.flink.state.rocksdb.PredefinedOptions;
import org.apache.flink.state.rocksdb.RocksDBKeyedStateBackendBuilder;
import org.apache.flink.state.rocksdb.RocksDBMemoryControllerUtils;
import org.apache.flink.state.rocksdb.RocksDBPriorityQueueConfig;
import org.apache.flink.state.rocksdb.RocksDBResourceContainer;
import org.apache.flink.streaming.api.operators.TimerHeapInternalTimer;
import org.apache.flink.streaming.api.operators.TimerSerializer;
import org.rocksdb.NativeLibraryLoader;
import org.rocksdb.RocksDB;

/**
 * Flink's part of benchmarks.keyed: its own keyed backends.
 *
 * <p>Arguments: "heap" or "rocksdb", a directory, and bytes of managed memory for RocksDB. Each line of
 * standard input is a command with its arguments, see main. The answer is one line: "ok", nanoseconds
 * by the clock, and figures, "name=value"; or "failed" and why.
 */
public class KeyedState<K> {
    static final ClassLoader LOADER = KeyedState.class.getClassLoader();
    static final int GROUPS = 128;

    final boolean onHeap;
    final Path directory;
    final long managedBytes;
    final TypeSerializer<K> keys;
    final LongFunction<K> keyOf;
    final CheckpointStorageAccess access;

    final SharedStateRegistry registry = new SharedStateRegistryImpl();
    final List<Part> parts = new ArrayList<>();
    long checkpoint = 0;
    List<K> batchKeys;
    long[] batchValues;

    KeyedState(
            boolean onHeap, Path directory, long managedBytes, TypeSerializer<K> keys, LongFunction<K> keyOf)
            throws Exception {
        this.onHeap = onHeap;
        this.directory = directory;
        this.managedBytes = managedBytes;
        this.keys = keys;
        this.keyOf = keyOf;
        access =
                new FileSystemCheckpointStorage(directory.resolve("checkpoints").toUri())
                        .createCheckpointStorage(new JobID());
        access.initializeBaseLocationsForCheckpoint();
    }

    public static void main(String[] args) throws Exception {
        boolean onHeap = args[0].equals("heap");
        Path directory = Path.of(args[1]);
        long managedBytes = Long.parseLong(args[2]);
        if (!onHeap) {
            Path libraries = Files.createDirectories(directory.resolve("native"));
            NativeLibraryLoader.getInstance().loadLibrary(libraries.toString());
            RocksDB.loadLibrary();
        }
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        KeyedState<?> engine = null;
        for (String line; (line = commands.readLine()) != null; ) {
            try {
                String[] words = line.split(" ");
                Map<String, Double> figures = new LinkedHashMap<>();
                long begin = System.nanoTime();
                if (words[0].equals("begin")) {
                    engine =
                            words[1].equals("integers")
                                    ? new KeyedState<Long>(
                                            onHeap, directory, managedBytes, LongSerializer.INSTANCE, Long::valueOf)
                                    : new KeyedState<String>(
                                            onHeap, directory, managedBytes, StringSerializer.INSTANCE, KeyedState::text);
                } else {
                    engine.run(words, figures);
                }
                StringBuilder answer = new StringBuilder("ok " + (System.nanoTime() - begin));
                figures.forEach((name, value) -> answer.append(' ').append(name).append('=').append(value));
                System.out.println(answer);
            } catch (Throwable error) {
                Throwable cause = error;
                while (cause.getCause() != null) {
                    cause = cause.getCause();
                }
                System.out.println(("failed " + error + " " + cause).lines().findFirst().get());
            }
        }
    }

    void run(String[] words, Map<String, Double> figures) throws Exception {
        switch (words[0]) {
            case "fill":
                fill(Long.parseLong(words[1]), Integer.parseInt(words[2]));
                break;
            case "load":
                load(Path.of(words[1]));
                break;
            case "count":
                count();
                break;
            case "access":
                access();
                break;
            case "sums":
                figures.put("sum", sums());
                break;
            case "snapshot":
                snapshot();
                break;
            case "reopen":
                reopen(Integer.parseInt(words[1]));
                break;
            case "look":
                look(figures);
                break;
            case "put_entries":
                for (int row = 0; row < batchValues.length; row++) {
                    entriesOf(batchKeys.get(row)).put(batchValues[row], batchValues[row]);
                }
                break;
            case "get_entries":
                getEntries(figures);
                break;
            case "list_entries":
                listEntries(figures);
                break;
            case "register":
                register();
                break;
            case "fire":
                figures.put("fired", (double) fire(Long.parseLong(words[1])));
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** Sixteen letters that differ for different numbers. */
    static String text(long id) {
        long mixed = id * 0x9E3779B97F4A7C15L;
        byte[] letters = new byte[16];
        for (int i = 15; i >= 0; i--) {
            letters[i] = (byte) ('a' + (mixed & 15));
            mixed >>>= 4;
        }
        return new String(letters, java.nio.charset.StandardCharsets.ISO_8859_1);
    }

    /** A backend for a range of key groups, its state and its timers. */
    class Part {
        final KeyGroupRange range;
        final AbstractKeyedStateBackend<K> backend;
        final ValueState<Tuple2<Long, Long>> state;
        final KeyGroupedInternalPriorityQueue<TimerHeapInternalTimer<K, VoidNamespace>> timers;
        ValueState<Long> sum;
        MapState<Long, Long> entries;
        KeyedStateHandle handle;

        Part(KeyGroupRange range, Collection<KeyedStateHandle> handles) throws Exception {
            this.range = range;
            backend = onHeap ? heap(range, handles) : rocksDb(range, handles);
            state =
                    backend.getPartitionedState(
                            VoidNamespace.INSTANCE,
                            VoidNamespaceSerializer.INSTANCE,
                            new ValueStateDescriptor<>("totals", Types.TUPLE(Types.LONG, Types.LONG)));
            timers =
                    backend.create(
                            "timers", new TimerSerializer<>(keys, VoidNamespaceSerializer.INSTANCE));
        }

        void add(K key, long value) throws Exception {
            backend.setCurrentKey(key);
            Tuple2<Long, Long> totals = state.value();
            if (totals == null) {
                totals = Tuple2.of(1L, value);
            } else {
                totals.f0 += 1;
                totals.f1 += value;
            }
            state.update(totals);
        }

        void snapshot(long id, CheckpointStreamFactory factory) throws Exception {
            CheckpointOptions options = CheckpointOptions.forCheckpointWithDefaultLocation();
            var snapshot = backend.snapshot(id, 0, factory, options);
            snapshot.run();
            if (onHeap && handle != null) {
                handle.discardState();
            }
            handle = snapshot.get().getJobManagerOwnedSnapshot();
            handle.registerSharedStates(registry, id);
        }
    }

    AbstractKeyedStateBackend<K> heap(KeyGroupRange range, Collection<KeyedStateHandle> handles)
            throws Exception {
        return new HeapKeyedStateBackendBuilder<>(
                        null,
                        keys,
                        LOADER,
                        GROUPS,
                        range,
                        new ExecutionConfig(),
                        TtlTimeProvider.DEFAULT,
                        LatencyTrackingStateConfig.disabled(),
                        SizeTrackingStateConfig.disabled(),
                        handles,
                        UncompressedStreamCompressionDecorator.INSTANCE,
                        LocalRecoveryConfig.BACKUP_AND_RECOVERY_DISABLED,
                        new HeapPriorityQueueSetFactory(range, GROUPS, 128),
                        true,
                        new CloseableRegistry())
                .build();
    }

    AbstractKeyedStateBackend<K> rocksDb(KeyGroupRange range, Collection<KeyedStateHandle> handles)
            throws Exception {
        var shared =
                RocksDBMemoryControllerUtils.allocateRocksDBSharedResources(
                        managedBytes,
                        0.5,
                        0.1,
                        false,
                        RocksDBMemoryControllerUtils.RocksDBMemoryFactory.DEFAULT);
        var resource = new OpaqueMemoryResource<>(shared, managedBytes, () -> {});
        var container = new RocksDBResourceContainer(PredefinedOptions.DEFAULT, null, resource);
        File base = Files.createTempDirectory(directory, "rocksdb").toFile();
        RocksDBKeyedStateBackendBuilder<K> builder =
                new RocksDBKeyedStateBackendBuilder<>(
                        "rows",
                        LOADER,
                        base,
                        container,
                        name -> container.getColumnOptions(),
                        null,
                        keys,
                        GROUPS,
                        range,
                        new ExecutionConfig(),
                        LocalRecoveryConfig.BACKUP_AND_RECOVERY_DISABLED,
                        RocksDBPriorityQueueConfig.buildWithPriorityQueueType(
                                PriorityQueueStateType.ROCKSDB),
                        TtlTimeProvider.DEFAULT,
                        LatencyTrackingStateConfig.disabled(),
                        SizeTrackingStateConfig.disabled(),
                        UnregisteredMetricGroups.createUnregisteredOperatorMetricGroup(),
                        (name, value) -> {},
                        handles,
                        UncompressedStreamCompressionDecorator.INSTANCE,
                        new CloseableRegistry());
        setIncremental(builder);
        return builder.build();
    }

    /** What Flink's own backend sets on its builder; the setter is for its package alone. */
    static void setIncremental(RocksDBKeyedStateBackendBuilder<?> builder) throws Exception {
        var setter =
                RocksDBKeyedStateBackendBuilder.class.getDeclaredMethod(
                        "setEnableIncrementalCheckpointing", boolean.class);
        setter.setAccessible(true);
        setter.invoke(builder, true);
    }

    static KeyGroupRange range(int parallelism, int index) {
        return KeyGroupRangeAssignment.computeKeyGroupRangeForOperatorIndex(
                GROUPS, parallelism, index);
    }

    Part partOf(K key) {
        if (parts.size() == 1) {
            return parts.get(0);
        }
        return parts.get(
                KeyGroupRangeAssignment.assignKeyToParallelOperator(key, GROUPS, parts.size()));
    }

    void fill(long count, int parallelism) throws Exception {
        for (int i = 0; i < parallelism; i++) {
            parts.add(new Part(range(parallelism, i), List.of()));
        }
        for (long id = 0; id < count; id++) {
            K key = keyOf.apply(id);
            Part part = partOf(key);
            part.backend.setCurrentKey(key);
            part.state.update(Tuple2.of(1L, id));
        }
    }

    void load(Path path) throws Exception {
        registry.unregisterUnusedState(checkpoint); // the coordinator's business
        LongBuffer numbers =
                ByteBuffer.wrap(Files.readAllBytes(path)).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
        int rows = numbers.remaining() / 2;
        batchKeys = new ArrayList<>(rows);
        batchValues = new long[rows];
        for (int row = 0; row < rows; row++) {
            batchKeys.add(keyOf.apply(numbers.get(row)));
            batchValues[row] = numbers.get(rows + row);
        }
    }

    void count() throws Exception {
        for (int row = 0; row < batchValues.length; row++) {
            K key = batchKeys.get(row);
            partOf(key).add(key, batchValues[row]);
        }
    }

    /** The sum of values alone, in a state of its own. */
    ValueState<Long> sumOf(K key) throws Exception {
        Part part = partOf(key);
        part.backend.setCurrentKey(key);
        if (part.sum == null) {
            part.sum =
                    part.backend.getPartitionedState(
                            VoidNamespace.INSTANCE,
                            VoidNamespaceSerializer.INSTANCE,
                            new ValueStateDescriptor<>("sum", Types.LONG));
        }
        return part.sum;
    }

    void access() throws Exception {
        for (int row = 0; row < batchValues.length; row++) {
            ValueState<Long> sum = sumOf(batchKeys.get(row));
            Long before = sum.value();
            sum.update(before == null ? batchValues[row] : before + batchValues[row]);
        }
    }

    double sums() throws Exception {
        double sum = 0;
        for (K key : batchKeys) {
            sum += sumOf(key).value();
        }
        return sum;
    }

    void snapshot() throws Exception {
        long id = ++checkpoint;
        CheckpointStreamFactory factory = access.initializeLocationForCheckpoint(id);
        for (Part part : parts) {
            part.snapshot(id, factory);
        }
        for (Part part : parts) {
            part.backend.notifyCheckpointComplete(id);
        }
    }

    /** Backends anew, of the last snapshots, at any parallelism. */
    void reopen(int parallelism) throws Exception {
        List<KeyedStateHandle> handles = new ArrayList<>();
        for (Part part : parts) {
            part.backend.dispose();
            handles.add(part.handle);
        }
        parts.clear();
        for (int i = 0; i < parallelism; i++) {
            KeyGroupRange range = range(parallelism, i);
            List<KeyedStateHandle> mine = new ArrayList<>();
            for (KeyedStateHandle handle : handles) {
                KeyedStateHandle share = handle.getIntersection(range);
                if (share != null) {
                    mine.add(share);
                }
            }
            parts.add(new Part(range, mine));
        }
    }

    /** Totals of all rows of the batch, to be compared. */
    void look(Map<String, Double> figures) throws Exception {
        double count = 0;
        double sum = 0;
        for (K key : batchKeys) {
            Part part = partOf(key);
            part.backend.setCurrentKey(key);
            Tuple2<Long, Long> totals = part.state.value();
            count += totals == null ? 0 : totals.f0;
            sum += totals == null ? 0 : totals.f1;
        }
        figures.put("count", count);
        figures.put("sum", sum);
    }

    MapState<Long, Long> entriesOf(K key) throws Exception {
        Part part = partOf(key);
        part.backend.setCurrentKey(key);
        if (part.entries == null) {
            part.entries =
                    part.backend.getPartitionedState(
                            VoidNamespace.INSTANCE,
                            VoidNamespaceSerializer.INSTANCE,
                            new MapStateDescriptor<>("entries", Types.LONG, Types.LONG));
        }
        return part.entries;
    }

    void getEntries(Map<String, Double> figures) throws Exception {
        double sum = 0;
        for (int row = 0; row < batchValues.length; row++) {
            Long value = entriesOf(batchKeys.get(row)).get(batchValues[row]);
            sum += value == null ? 0 : value;
        }
        figures.put("sum", sum);
    }

    void listEntries(Map<String, Double> figures) throws Exception {
        double entries = 0;
        double sum = 0;
        for (K key : batchKeys) {
            for (Map.Entry<Long, Long> entry : entriesOf(key).entries()) {
                entries++;
                sum += entry.getValue();
            }
        }
        figures.put("entries", entries);
        figures.put("sum", sum);
    }

    void register() {
        for (int row = 0; row < batchValues.length; row++) {
            K key = batchKeys.get(row);
            partOf(key).timers.add(
                    new TimerHeapInternalTimer<>(batchValues[row], key, VoidNamespace.INSTANCE));
        }
    }

    long fire(long untilMs) {
        long fired = 0;
        for (Part part : parts) {
            for (var timer = part.timers.peek();
                    timer != null && timer.getTimestamp() <= untilMs;
                    timer = part.timers.peek()) {
                part.timers.poll();
                part.backend.setCurrentKey(timer.getKey());
                fired++;
            }
        }
        return fired;
    }
}
