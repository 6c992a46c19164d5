import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.DistributedFileSystem;

/**
 * The part of Hadoop's own client, at its defaults.
 *
 * <p>Each line of standard input is one piece of work: action, files, bytes of each, threads, bytes
 * of a chunk, bytes of a block, whether to "hsync" or only to "close", directory. The answer is one line: "ns" and the
 * nanoseconds that it took, by the clock and of all processors, or "failed" and why.
 */
public class HadoopClient {
    static DistributedFileSystem fileSystem;
    static byte[] data;

    public static void main(String[] args) throws Exception {
        fileSystem = (DistributedFileSystem) new Path(args[0]).getFileSystem(new Configuration());
        data = Files.readAllBytes(java.nio.file.Path.of(args[1]));
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = commands.readLine()) != null; ) {
            try {
                System.out.println(run(line.split(" ")));
            } catch (Exception error) {
                System.out.println(("failed " + error).lines().findFirst().get());
            }
        }
    }

    static String run(String[] words) throws Exception {
        int files = Integer.parseInt(words[1]);
        int fileBytes = Integer.parseInt(words[2]);
        int threads = Integer.parseInt(words[3]);
        int chunkBytes = Integer.parseInt(words[4]);
        int blockBytes = words[6].equals("hsync") ? Integer.parseInt(words[5]) : 0;
        String directory = words[7];
        switch (words[0]) {
            case "write":
                return inThreads(threads, files, (number, buffer) ->
                        write(new Path(directory, "" + number), fileBytes, chunkBytes, blockBytes));
            case "publish":
                return inThreads(threads, files, (number, buffer) -> {
                    Path inProgress = new Path(directory, number + ".inprogress");
                    write(inProgress, fileBytes, chunkBytes, blockBytes);
                    Path target = new Path(directory, "" + number);
                    fileSystem.rename(inProgress, target, Options.Rename.NONE);
                });
            case "read":
                return inThreads(threads, files, (number, buffer) ->
                        read(new Path(directory, "" + number), fileBytes, buffer));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** Without a size of blocks nothing is synced. */
    static void write(Path path, int fileBytes, int chunkBytes, int blockBytes) throws Exception {
        try (FSDataOutputStream stream = fileSystem.create(path, false)) {
            for (int begin = 0; begin < fileBytes; begin += chunkBytes) {
                int end = Math.min(begin + chunkBytes, fileBytes);
                stream.write(data, begin % data.length, end - begin);
                if (blockBytes > 0 && (end % blockBytes == 0 || end == fileBytes)) {
                    stream.hsync();
                }
            }
        }
    }

    static void read(Path path, int fileBytes, byte[] buffer) throws Exception {
        long total = 0;
        try (FSDataInputStream stream = fileSystem.open(path)) {
            for (int count; (count = stream.read(buffer)) > 0; ) {
                total += count;
            }
        }
        if (total != fileBytes) {
            throw new IllegalStateException("it read " + total + " bytes of " + path);
        }
    }

    interface File {
        void of(int number, byte[] buffer) throws Exception;
    }

    /** Each thread takes the next file, with a buffer of its own. */
    static String inThreads(int threads, int files, File work) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        ThreadLocal<byte[]> buffer = ThreadLocal.withInitial(() -> new byte[1 << 20]);
        try {
            await(pool, threads, number -> {
                buffer.get();
                Thread.sleep(10); // all threads run
            });
            System.gc(); // nobody pays for what another one left behind
            long cpu = cpuNanoseconds();
            long wall = System.nanoTime();
            await(pool, files, number -> work.of(number, buffer.get()));
            wall = System.nanoTime() - wall;
            return "ns " + wall + " " + (cpuNanoseconds() - cpu);
        } finally {
            pool.shutdown();
        }
    }

    interface Share {
        void of(int number) throws Exception;
    }

    static void await(ExecutorService pool, int count, Share share) throws Exception {
        List<Future<?>> futures = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            int number = i;
            futures.add(
                    pool.submit(
                            () -> {
                                share.of(number);
                                return null;
                            }));
        }
        for (Future<?> future : futures) {
            future.get();
        }
    }

    static long cpuNanoseconds() {
        var system = ManagementFactory.getOperatingSystemMXBean();
        return ((com.sun.management.OperatingSystemMXBean) system).getProcessCpuTime();
    }
}
