import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.flink.api.common.JobID;
import org.apache.flink.runtime.checkpoint.Checkpoints;
import org.apache.flink.runtime.checkpoint.OperatorState;
import org.apache.flink.runtime.checkpoint.OperatorSubtaskState;
import org.apache.flink.runtime.checkpoint.metadata.CheckpointMetadata;
import org.apache.flink.runtime.jobgraph.OperatorID;
import org.apache.flink.runtime.state.CheckpointStorageAccess;
import org.apache.flink.runtime.state.CheckpointStorageLocation;
import org.apache.flink.runtime.state.CheckpointedStateScope;
import org.apache.flink.runtime.state.CompletedCheckpointStorageLocation;
import org.apache.flink.runtime.state.OperatorStateHandle;
import org.apache.flink.runtime.state.OperatorStreamStateHandle;
import org.apache.flink.runtime.state.StreamStateHandle;
import org.apache.flink.runtime.state.filesystem.FsCheckpointStorageLocation;
import org.apache.flink.runtime.state.filesystem.RelativeFileStateHandle;
import org.apache.flink.runtime.state.memory.ByteStreamStateHandle;
import org.apache.flink.runtime.state.storage.FileSystemCheckpointStorage;

/**
 * Flink's part of state_files.py: the same work through Flink's own classes, at their defaults.
 *
 * <p>Each line of standard input is one piece of work and its numbers; the answer is one line,
 * "ns" and the nanoseconds that its parts took.
 */
public class StateFiles {
    static final CheckpointedStateScope SCOPE = CheckpointedStateScope.EXCLUSIVE;

    static CheckpointStorageAccess access;
    static long checkpoint = 0;
    static final Queue<CheckpointStorageLocation> written = new ArrayDeque<>();

    public static void main(String[] args) throws Exception {
        Path directory = Path.of(args[0]);
        JobID job = new JobID();
        access = new FileSystemCheckpointStorage(directory.toUri()).createCheckpointStorage(job);
        access.initializeBaseLocationsForCheckpoint();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = commands.readLine()) != null; ) {
            String[] words = line.split(" ");
            int[] numbers = new int[words.length - 1];
            for (int i = 0; i < numbers.length; i++) {
                numbers[i] = Integer.parseInt(words[i + 1]);
            }
            StringBuilder answer = new StringBuilder("ns");
            for (long nanoseconds : run(words[0], numbers)) {
                answer.append(' ').append(nanoseconds);
            }
            System.out.println(answer);
        }
    }

    static long[] run(String work, int[] numbers) throws Exception {
        switch (work) {
            case "stream":
                return stream(numbers[0], numbers[1]);
            case "files":
                return files(numbers[0], numbers[1], numbers[2]);
            case "metadata":
                return metadata(numbers[0], numbers[1]);
            case "inline":
                return inline(numbers[0], numbers[1]);
            case "empty":
                return empty();
            case "dispose":
                return dispose();
            default:
                throw new IllegalArgumentException(work);
        }
    }

    /** One state of this many chunks. */
    static long[] stream(int chunks, int chunkBytes) throws Exception {
        CheckpointStorageLocation location = begin();
        byte[] chunk = randomBytes(chunkBytes);
        long start = System.nanoTime();
        var stream = location.createCheckpointStateOutputStream(SCOPE);
        for (int i = 0; i < chunks; i++) {
            stream.write(chunk);
        }
        stream.closeAndGetHandle();
        long end = System.nanoTime();
        location.disposeOnFailure();
        return new long[] {end - start};
    }

    /** Many state files. */
    static long[] files(int count, int bytes, int threads) throws Exception {
        CheckpointStorageLocation location = begin();
        byte[] state = randomBytes(bytes);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        await(pool, threads, first -> Thread.sleep(10)); // all threads run
        long start = System.nanoTime();
        await(pool, threads, first -> {
            for (int i = first; i < count; i += threads) {
                var stream = location.createCheckpointStateOutputStream(SCOPE);
                stream.write(state);
                stream.closeAndGetHandle();
            }
        });
        long end = System.nanoTime();
        pool.shutdown();
        written.add(location);
        return new long[] {end - start};
    }

    /** Dispose of the oldest files. */
    static long[] dispose() throws Exception {
        CheckpointStorageLocation location = written.remove();
        long start = System.nanoTime();
        location.disposeOnFailure();
        return new long[] {System.nanoTime() - start};
    }

    /** Store the metadata of one operator with this many subtasks, then load it. */
    static long[] metadata(int subtasks, int bytes) throws Exception {
        CheckpointStorageLocation location = begin();
        var directory = ((FsCheckpointStorageLocation) location).getCheckpointDirectory();
        OperatorState operator =
                new OperatorState("rows", "rows", new OperatorID(), subtasks, subtasks);
        for (int i = 0; i < subtasks; i++) {
            String name = UUID.randomUUID().toString();
            StreamStateHandle file =
                    new RelativeFileStateHandle(
                            new org.apache.flink.core.fs.Path(directory, name), name, bytes);
            Map<String, OperatorStateHandle.StateMetaInfo> states = new HashMap<>();
            states.put(
                    "rows",
                    new OperatorStateHandle.StateMetaInfo(
                            new long[] {0}, OperatorStateHandle.Mode.SPLIT_DISTRIBUTE));
            operator.putState(
                    i,
                    OperatorSubtaskState.builder()
                            .setManagedOperatorState(new OperatorStreamStateHandle(states, file))
                            .build());
        }
        CheckpointMetadata metadata =
                new CheckpointMetadata(checkpoint, List.of(operator), List.of());
        long start = System.nanoTime();
        CompletedCheckpointStorageLocation completed = complete(location, metadata);
        long stored = System.nanoTime();
        CheckpointMetadata loaded;
        try (var in = new DataInputStream(completed.getMetadataHandle().openInputStream())) {
            loaded =
                    Checkpoints.loadCheckpointMetadata(
                            in,
                            StateFiles.class.getClassLoader(),
                            completed.getExternalPointer());
        }
        long end = System.nanoTime();
        if (loaded.getOperatorStates().iterator().next().getNumberCollectedStates() != subtasks) {
            throw new IllegalStateException("subtasks are missing");
        }
        return new long[] {stored - start, end - stored};
    }

    /** A checkpoint without state: begun, completed, disposed of. */
    static long[] empty() throws Exception {
        long start = System.nanoTime();
        CheckpointStorageLocation location = begin();
        CheckpointMetadata metadata = new CheckpointMetadata(checkpoint, List.of(), List.of());
        CompletedCheckpointStorageLocation completed = complete(location, metadata);
        completed.getMetadataHandle().discardState();
        completed.disposeStorageLocation();
        return new long[] {System.nanoTime() - start};
    }

    /** Many states that stay in their handles. */
    static long[] inline(int count, int bytes) throws Exception {
        CheckpointStorageLocation location = begin();
        byte[] state = randomBytes(bytes);
        List<StreamStateHandle> handles = new ArrayList<>(count);
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            var stream = location.createCheckpointStateOutputStream(SCOPE);
            stream.write(state);
            handles.add(stream.closeAndGetHandle());
        }
        long end = System.nanoTime();
        if (!handles.stream().allMatch(one -> one instanceof ByteStreamStateHandle)) {
            throw new IllegalStateException("a state became a file");
        }
        return new long[] {end - start};
    }

    static CheckpointStorageLocation begin() throws Exception {
        return access.initializeLocationForCheckpoint(++checkpoint);
    }

    static CompletedCheckpointStorageLocation complete(
            CheckpointStorageLocation location, CheckpointMetadata metadata) throws Exception {
        try (var stream = location.createMetadataOutputStream()) {
            Checkpoints.storeCheckpointMetadata(metadata, stream);
            return stream.closeAndFinalizeCheckpoint();
        }
    }

    interface Share {
        void of(int thread) throws Exception;
    }

    /** Run every thread's share. */
    static void await(ExecutorService pool, int threads, Share share) throws Exception {
        List<Future<?>> futures = new ArrayList<>(threads);
        for (int i = 0; i < threads; i++) {
            int thread = i;
            futures.add(
                    pool.submit(
                            () -> {
                                share.of(thread);
                                return null;
                            }));
        }
        for (Future<?> future : futures) {
            future.get();
        }
    }

    static byte[] randomBytes(int length) {
        byte[] bytes = new byte[length];
        new Random(length).nextBytes(bytes);
        return bytes;
    }
}
