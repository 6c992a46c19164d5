import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.RunnableFuture;
import org.apache.flink.api.common.ExecutionConfig;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.state.BroadcastState;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.typeutils.PojoTypeInfo;
import org.apache.flink.core.fs.CloseableRegistry;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.checkpoint.Checkpoints;
import org.apache.flink.runtime.checkpoint.OperatorSubtaskState;
import org.apache.flink.runtime.checkpoint.metadata.CheckpointMetadata;
import org.apache.flink.runtime.jobgraph.OperatorID;
import org.apache.flink.runtime.state.CheckpointStorageAccess;
import org.apache.flink.runtime.state.CheckpointStorageLocation;
import org.apache.flink.runtime.state.CheckpointStreamFactory;
import org.apache.flink.runtime.state.CompletedCheckpointStorageLocation;
import org.apache.flink.runtime.state.DefaultOperatorStateBackend;
import org.apache.flink.runtime.state.DefaultOperatorStateBackendBuilder;
import org.apache.flink.runtime.state.OperatorStateHandle;
import org.apache.flink.runtime.state.SnapshotResult;
import org.apache.flink.runtime.state.memory.MemCheckpointStreamFactory;
import org.apache.flink.runtime.state.storage.FileSystemCheckpointStorage;

/**
 * Flink's part of operator_state: its own backend and storages, at their defaults.
 *
 * <p>Each line of standard input is the kind of elements, how many, and where snapshots go, "memory"
 * or "disk". The answer is one line: "ok" and what each action took, "name=nanoseconds by the
 * clock:nanoseconds of this thread", and sizes in bytes, "name=bytes"; or "failed" and why.
 */
public class OperatorState {
    static final ClassLoader LOADER = OperatorState.class.getClassLoader();

    static CheckpointStorageAccess access;
    static long checkpoint = 0;
    static String madeFor = "";
    static Elements<?> elements;

    /** The state that is being measured. */
    interface Elements<S> {
        S of(DefaultOperatorStateBackend backend) throws Exception;

        void addTo(S state) throws Exception;

        void check(S state) throws Exception;
    }

    public static class Reading {
        public long id;
        public long atMs;
        public double value;
        public String text;
    }

    public static void main(String[] args) throws Exception {
        access =
                new FileSystemCheckpointStorage(Path.of(args[0]).toUri())
                        .createCheckpointStorage(new JobID());
        access.initializeBaseLocationsForCheckpoint();
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = commands.readLine()) != null; ) {
            try {
                String[] words = line.split(" ");
                String wanted = words[0] + " " + words[1];
                if (!wanted.equals(madeFor)) {
                    elements = null; // one at a time fits into the heap
                    elements = elements(words[0], Integer.parseInt(words[1]));
                    madeFor = wanted;
                }
                Answer answer = new Answer();
                measure(elements, words[2].equals("disk"), answer);
                System.out.println("ok" + answer.text);
            } catch (Exception error) {
                System.out.println(("failed " + error).lines().findFirst().get());
            }
        }
    }

    static <S> void measure(Elements<S> elements, boolean onDisk, Answer answer) throws Exception {
        DefaultOperatorStateBackend backend = backend(List.of());
        S state = elements.of(backend);
        answer.timed("fill", () -> {
            elements.addTo(state);
            return null;
        });
        long id = ++checkpoint;
        CheckpointStorageLocation location =
                onDisk ? access.initializeLocationForCheckpoint(id) : null;
        CheckpointStreamFactory factory =
                onDisk ? location : new MemCheckpointStreamFactory(Integer.MAX_VALUE);
        CheckpointOptions options = CheckpointOptions.forCheckpointWithDefaultLocation();
        RunnableFuture<SnapshotResult<OperatorStateHandle>> snapshot =
                answer.timed("sync", () -> backend.snapshot(id, 0, factory, options));
        OperatorStateHandle written =
                answer.timed("async", () -> {
                    snapshot.run();
                    return snapshot.get().getJobManagerOwnedSnapshot();
                });
        answer.size("stored", written.getStateSize());
        OperatorStateHandle handle = written;
        CompletedCheckpointStorageLocation completed = null;
        if (onDisk) {
            completed = answer.timed("commit", () -> complete(location, id, written));
            answer.size("metadata", completed.getMetadataHandle().getStateSize());
            CompletedCheckpointStorageLocation where = completed;
            handle = answer.timed("load", () -> load(where));
        }
        List<OperatorStateHandle> handles = List.of(handle);
        List<Object> restored = new ArrayList<>();
        S found = answer.timed("restore", () -> {
            restored.add(backend(handles));
            return elements.of((DefaultOperatorStateBackend) restored.get(0));
        });
        elements.check(found);
        if (onDisk) {
            written.discardState();
            completed.getMetadataHandle().discardState();
            completed.disposeStorageLocation();
        }
        backend.dispose();
        ((DefaultOperatorStateBackend) restored.get(0)).dispose();
    }

    static Elements<?> elements(String kind, int count) {
        Random random = new Random(7);
        switch (kind) {
            case "longs":
                return new OfList<>(Types.LONG, filled(count, random::nextLong));
            case "strings":
                return new OfList<>(Types.STRING, filled(count, () -> text(random, 100)));
            case "records":
                TypeInformation<Reading> type = TypeInformation.of(Reading.class);
                if (!(type instanceof PojoTypeInfo)) {
                    throw new IllegalStateException("Flink takes the records for no POJOs");
                }
                return new OfList<>(type, filled(count, () -> reading(random)));
            case "broadcast":
                Map<String, byte[]> entries = new HashMap<>();
                while (entries.size() < count) {
                    byte[] value = new byte[100];
                    random.nextBytes(value);
                    entries.put(text(random, 16), value);
                }
                return new OfMap(entries);
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    static class OfList<T> implements Elements<ListState<T>> {
        final TypeInformation<T> type;
        final List<T> elements;

        OfList(TypeInformation<T> type, List<T> elements) {
            this.type = type;
            this.elements = elements;
        }

        public ListState<T> of(DefaultOperatorStateBackend backend) throws Exception {
            return backend.getListState(new ListStateDescriptor<>("rows", type));
        }

        public void addTo(ListState<T> state) throws Exception {
            state.addAll(elements);
        }

        public void check(ListState<T> state) throws Exception {
            int index = 0;
            for (T one : state.get()) {
                T added = elements.get(index++);
                if (one instanceof Reading) {
                    checkThat(((Reading) one).text.equals(((Reading) added).text));
                } else {
                    checkThat(one.equals(added));
                }
            }
            checkThat(index == elements.size());
        }
    }

    static class OfMap implements Elements<BroadcastState<String, byte[]>> {
        final Map<String, byte[]> entries;

        OfMap(Map<String, byte[]> entries) {
            this.entries = entries;
        }

        public BroadcastState<String, byte[]> of(DefaultOperatorStateBackend backend)
                throws Exception {
            return backend.getBroadcastState(
                    new MapStateDescriptor<>(
                            "rules",
                            Types.STRING,
                            PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO));
        }

        public void addTo(BroadcastState<String, byte[]> state) throws Exception {
            state.putAll(entries);
        }

        public void check(BroadcastState<String, byte[]> state) throws Exception {
            int count = 0;
            for (Map.Entry<String, byte[]> one : state.immutableEntries()) {
                checkThat(Arrays.equals(one.getValue(), entries.get(one.getKey())));
                count++;
            }
            checkThat(count == entries.size());
        }
    }

    static void checkThat(boolean same) {
        if (!same) {
            throw new IllegalStateException("what was restored is not what was stored");
        }
    }

    static DefaultOperatorStateBackend backend(List<OperatorStateHandle> handles)
            throws Exception {
        return new DefaultOperatorStateBackendBuilder(
                        LOADER, new ExecutionConfig(), true, handles, new CloseableRegistry())
                .build();
    }

    /** Store the metadata of one operator with one subtask. */
    static CompletedCheckpointStorageLocation complete(
            CheckpointStorageLocation location, long id, OperatorStateHandle handle)
            throws Exception {
        var operator =
                new org.apache.flink.runtime.checkpoint.OperatorState(
                        "rows", "rows", new OperatorID(), 1, 128);
        operator.putState(
                0, OperatorSubtaskState.builder().setManagedOperatorState(handle).build());
        try (var stream = location.createMetadataOutputStream()) {
            CheckpointMetadata metadata =
                    new CheckpointMetadata(id, List.of(operator), List.of());
            Checkpoints.storeCheckpointMetadata(metadata, stream);
            return stream.closeAndFinalizeCheckpoint();
        }
    }

    static OperatorStateHandle load(CompletedCheckpointStorageLocation completed)
            throws Exception {
        try (var in = new DataInputStream(completed.getMetadataHandle().openInputStream())) {
            String pointer = completed.getExternalPointer();
            CheckpointMetadata metadata = Checkpoints.loadCheckpointMetadata(in, LOADER, pointer);
            var operator = metadata.getOperatorStates().iterator().next();
            return operator.getState(0).getManagedOperatorState().iterator().next();
        }
    }

    /** What it all took. */
    static class Answer {
        final StringBuilder text = new StringBuilder();

        <T> T timed(String name, Callable<T> action) throws Exception {
            System.gc(); // nobody pays for what another one left behind
            var thread = java.lang.management.ManagementFactory.getThreadMXBean();
            long cpu = thread.getCurrentThreadCpuTime();
            long wall = System.nanoTime();
            T found = action.call();
            wall = System.nanoTime() - wall;
            cpu = thread.getCurrentThreadCpuTime() - cpu;
            text.append(' ').append(name).append('=').append(wall).append(':').append(cpu);
            return found;
        }

        void size(String name, long bytes) {
            text.append(' ').append(name).append('=').append(bytes);
        }
    }

    interface Make<T> {
        T one();
    }

    static <T> List<T> filled(int count, Make<T> make) {
        List<T> found = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            found.add(make.one());
        }
        return found;
    }

    static Reading reading(Random random) {
        Reading one = new Reading();
        one.id = random.nextLong();
        one.atMs = 1_700_000_000_000L + random.nextInt(1 << 30);
        one.value = random.nextDouble();
        one.text = text(random, 76);
        return one;
    }

    static String text(Random random, int length) {
        char[] letters = new char[length];
        for (int i = 0; i < length; i++) {
            letters[i] = (char) ('a' + random.nextInt(26));
        }
        return new String(letters);
    }
}
