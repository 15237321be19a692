import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.util.Collector;

/**
 * Running count and sum per key over Parquet files, with checkpoints every second.
 *
 * <p>One JVM for all runs, so that both sides of the comparison are warm. Each line of standard input is a run, "hashmap
 * FOLDER" or "rocksdb FOLDER"; the answer is one line: rows, seconds from the first row to the last, CPU seconds of the
 * process, checkpoints. Reading the first row and stopping the job are not measured.
 */
public class Totals {
    private static final int SUBTASKS = 2;
    private static final AtomicLong ROWS = new AtomicLong();
    private static final AtomicLong CHECKPOINTS = new AtomicLong();
    private static final AtomicLong FIRST_NS = new AtomicLong();
    private static final AtomicLong LAST_NS = new AtomicLong();
    private static final AtomicLong FIRST_CPU_NS = new AtomicLong();
    private static final AtomicLong LAST_CPU_NS = new AtomicLong();
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.strip().split(" ", 2);
            System.out.println("run " + run(words[0], words[1]));
            System.out.flush();
        }
    }

    private static String run(String store, String folder) throws Exception {
        ROWS.set(0);
        CHECKPOINTS.set(0);
        FIRST_NS.set(0);
        var checkpoints = Files.createTempDirectory("flink-checkpoints-");
        var settings = new Configuration();
        settings.setString("state.backend.type", store);
        settings.setString("execution.checkpointing.dir", checkpoints.toUri().toString());
        settings.setString("execution.checkpointing.incremental", store.equals("rocksdb") ? "true" : "false");
        settings.setString("taskmanager.memory.managed.size", "1g");
        settings.setString("taskmanager.memory.network.max", "128m");
        settings.setString("rest.bind-address", "127.0.0.1");
        var environment = StreamExecutionEnvironment.createLocalEnvironment(SUBTASKS, settings);
        environment.getConfig().enableObjectReuse();
        environment.enableCheckpointing(Duration.ofSeconds(1).toMillis());
        environment
                .fromSource(source(folder), WatermarkStrategy.noWatermarks(), "files")
                .map(row -> Tuple2.of(row.getLong(0), row.getLong(1)))
                .returns(Types.TUPLE(Types.LONG, Types.LONG))
                .keyBy(row -> row.f0, Types.LONG)
                .process(new Adding())
                .returns(Types.TUPLE(Types.LONG, Types.LONG, Types.LONG))
                .sinkTo(new DiscardingSink<>());
        environment.execute(store);
        deleteAll(checkpoints);
        return String.format(
                "%d %.3f %.3f %d",
                ROWS.get(), (LAST_NS.get() - FIRST_NS.get()) / 1e9, (LAST_CPU_NS.get() - FIRST_CPU_NS.get()) / 1e9, CHECKPOINTS.get());
    }

    private static FileSource<RowData> source(String folder) {
        var type = RowType.of(new LogicalType[] {new BigIntType(), new BigIntType()}, new String[] {"key", "amount"});
        TypeInformation<RowData> information = InternalTypeInfo.of(type);
        var format = new ParquetColumnarRowInputFormat<FileSourceSplit>(
                new org.apache.hadoop.conf.Configuration(), type, information, 2048, true, true);
        return FileSource.forBulkFileFormat(format, new Path(folder)).build();
    }

    private static void deleteAll(java.nio.file.Path folder) throws Exception {
        try (var found = Files.walk(folder)) {
            found.sorted(java.util.Comparator.reverseOrder()).forEach(path -> path.toFile().delete());
        }
    }

    /** Count and sum in one value of state; emits the new totals for each row. */
    private static class Adding extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Tuple3<Long, Long, Long>>
            implements CheckpointListener {
        private transient ValueState<Tuple2<Long, Long>> totals;
        private transient long rows;

        @Override
        public void open(OpenContext context) {
            totals = getRuntimeContext()
                    .getState(new ValueStateDescriptor<>("totals", Types.TUPLE(Types.LONG, Types.LONG)));
        }

        @Override
        public void processElement(
                Tuple2<Long, Long> row, Context context, Collector<Tuple3<Long, Long, Long>> out) throws Exception {
            if (rows++ == 0 && FIRST_NS.compareAndSet(0, System.nanoTime())) {
                FIRST_CPU_NS.set(SYSTEM.getProcessCpuTime());
            }
            var old = totals.value();
            var sum = old == null ? Tuple2.of(1L, row.f1) : Tuple2.of(old.f0 + 1, old.f1 + row.f1);
            totals.update(sum);
            out.collect(Tuple3.of(row.f0, sum.f0, sum.f1));
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            CHECKPOINTS.set(checkpoint);
        }

        @Override
        public void close() {
            ROWS.addAndGet(rows);
            LAST_NS.set(System.nanoTime());
            LAST_CPU_NS.set(SYSTEM.getProcessCpuTime());
        }
    }
}
