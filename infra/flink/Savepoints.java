import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ExecutionException;
import java.util.stream.Stream;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;

/** Ends jobs that run, and keeps what they have stored. */
class Savepoints {
    static final int ATTEMPTS = 200;

    private Savepoints() {}

    /** Stops the job with a savepoint, as soon as all its tasks run, which Flink refuses to do before. */
    static String stopped(JobClient client, String directory, String format) throws Exception {
        SavepointFormatType type = SavepointFormatType.valueOf(format.toUpperCase());
        for (int attempt = 1; ; attempt++) {
            try {
                return client.stopWithSavepoint(false, directory, type).get();
            } catch (ExecutionException error) {
                if (attempt == ATTEMPTS) {
                    client.cancel().get();
                    throw error;
                }
                Thread.sleep(100);
            }
        }
    }

    /** Cancels the job when there is a second checkpoint from now on, which has all that the job has seen. */
    static URI retained(JobClient client, Path directory) throws Exception {
        long first = newest(directory);
        while (newest(directory) < first + 2) {
            Thread.sleep(20);
        }
        client.cancel().get();
        try {
            while (!client.getJobStatus().get().isGloballyTerminalState()) {
                Thread.sleep(20);
            }
        } catch (IllegalStateException error) { // the cluster went with its only job
        }
        long last = newest(directory);
        return directory.resolve(client.getJobID().toString()).resolve("chk-" + last).toUri();
    }

    /** The number of the newest checkpoint that is complete, or 0. */
    static long newest(Path directory) throws IOException {
        if (!Files.exists(directory)) {
            return 0;
        }
        try (Stream<Path> files = Files.find(directory, 3, (path, about) -> path.endsWith("_metadata"))) {
            return files.map(path -> path.getParent().getFileName().toString().substring(4))
                    .mapToLong(Long::parseLong)
                    .max()
                    .orElse(0);
        } catch (UncheckedIOException error) { // an older one went meanwhile
            return 0;
        }
    }
}
