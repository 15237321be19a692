import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.options.Options;
import org.apache.paimon.predicate.Predicate;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.BatchTableCommit;
import org.apache.paimon.table.sink.BatchTableWrite;
import org.apache.paimon.table.sink.BatchWriteBuilder;
import org.apache.paimon.table.source.DataSplit;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.RowType;

/**
 * Java Paimon as a second engine, one command per line of standard input, one answer per line of standard output.
 *
 * <pre>
 * read TABLE [option=value ...]           the rows, as "column=value|..." lines, then "end N"
 * files TABLE COLUMN LOW HIGH             "files N of M": how many a predicate low <= column <= high reads
 * count TABLE COLUMN OP VALUE             "rows N": rows for which column OP value holds, read with the predicate
 * time TABLE [option=value ...]           "rows N ms M": CPU time of a read, the cheapest of three times 10 reads
 * compact TABLE                           a full compaction of every bucket, then "done"
 * expire TABLE KEEP                       keeps the newest KEEP snapshots, then "done"
 * tag TABLE NAME SNAPSHOT, rollback TABLE SNAPSHOT, branch TABLE NAME
 * </pre>
 */
public class Paimon {
    /** Some systems count CPU time in steps of 10 ms, which is more than one read takes. */
    private static final int READS = 10;

    private static final long WARM_NS = 6_000_000_000L;
    private static Catalog catalog;
    private static PrintStream out;

    public static void main(String[] args) throws Exception {
        out = new PrintStream(System.out, false, "UTF-8");
        Options options = new Options();
        for (String arg : args) {
            options.set(arg.split("=", 2)[0], arg.split("=", 2)[1]);
        }
        catalog = CatalogFactory.createCatalog(CatalogContext.create(options));
        java.io.BufferedReader in = new java.io.BufferedReader(new java.io.InputStreamReader(System.in, "UTF-8"));
        for (String line; (line = in.readLine()) != null; ) {
            try {
                answer(line.trim().split(" "));
            } catch (Throwable error) {
                StringBuilder told = new StringBuilder();
                for (Throwable e = error; e != null; e = e.getCause()) {
                    told.append(e).append(" <- ");
                }
                out.println("error " + told.toString().replace("\n", " "));
            }
            out.flush();
        }
    }

    private static FileStoreTable table(String name) throws Exception {
        return (FileStoreTable) catalog.getTable(Identifier.fromString(name));
    }

    private static void answer(String[] words) throws Exception {
        FileStoreTable table = table(words[1]);
        switch (words[0]) {
            case "read":
                out.println("end " + rows(withOptions(table, words), null, true));
                break;
            case "files": {
                PredicateBuilder builder = new PredicateBuilder(table.rowType());
                int field = builder.indexOf(words[2]);
                Predicate predicate =
                        PredicateBuilder.and(
                                builder.greaterOrEqual(field, literal(table.rowType().getFields().get(field), words[3])),
                                builder.lessOrEqual(field, literal(table.rowType().getFields().get(field), words[4])));
                out.println("files " + files(table, predicate) + " of " + files(table, null));
                break;
            }
            case "count": {
                PredicateBuilder builder = new PredicateBuilder(table.rowType());
                int field = builder.indexOf(words[2]);
                Object value = literal(table.rowType().getFields().get(field), words[4]);
                Predicate predicate =
                        words[3].equals(">") ? builder.greaterThan(field, value)
                                : words[3].equals("<") ? builder.lessThan(field, value) : builder.equal(field, value);
                out.println("rows " + rows(table, predicate, false));
                break;
            }
            case "time": {
                table = withOptions(table, words);
                for (long begin = cpu(); cpu() - begin < WARM_NS; ) {
                    rows(table, null, false); // until Java has compiled what it runs
                }
                long best = Long.MAX_VALUE;
                long count = 0;
                for (int i = 0; i < 3; i++) {
                    long start = cpu();
                    for (int j = 0; j < READS; j++) {
                        count = rows(table, null, false);
                    }
                    best = Math.min(best, (cpu() - start) / READS);
                }
                out.println("rows " + count + " ms " + best / 1e6);
                break;
            }
            case "compact":
                compact(table);
                out.println("done");
                break;
            case "expire": {
                Map<String, String> keep = new HashMap<>();
                keep.put("snapshot.num-retained.min", words[2]);
                keep.put("snapshot.num-retained.max", words[2]);
                FileStoreTable kept = table.copy(keep);
                org.apache.paimon.options.ExpireConfig config = kept.coreOptions().expireConfig();
                out.println("expired " + kept.newExpireSnapshots().config(config).expire());
                break;
            }
            case "tag":
                table.createTag(words[2], Long.parseLong(words[3]));
                out.println("done");
                break;
            case "rollback":
                table.rollbackTo(Long.parseLong(words[2]));
                out.println("done");
                break;
            case "branch":
                table.createBranch(words[2]);
                out.println("done");
                break;
            default:
                out.println("error unknown " + words[0]);
        }
    }

    private static FileStoreTable withOptions(FileStoreTable table, String[] words) {
        Map<String, String> dynamic = new HashMap<>();
        for (int i = 2; i < words.length; i++) {
            dynamic.put(words[i].split("=", 2)[0], words[i].split("=", 2)[1]);
        }
        return table.copy(dynamic);
    }

    private static long cpu() {
        com.sun.management.OperatingSystemMXBean process =
                (com.sun.management.OperatingSystemMXBean)
                        java.lang.management.ManagementFactory.getOperatingSystemMXBean();
        return process.getProcessCpuTime();
    }

    private static Object literal(DataField field, String text) {
        switch (field.type().getTypeRoot()) {
            case BIGINT:
                return Long.parseLong(text);
            case INTEGER:
                return Integer.parseInt(text);
            case DOUBLE:
                return Double.parseDouble(text);
            case FLOAT:
                return Float.parseFloat(text);
            default:
                return org.apache.paimon.data.BinaryString.fromString(text);
        }
    }

    private static int files(FileStoreTable table, Predicate predicate) {
        ReadBuilder builder = table.newReadBuilder();
        if (predicate != null) {
            builder = builder.withFilter(predicate);
        }
        int files = 0;
        for (Split split : builder.newScan().plan().splits()) {
            files += ((DataSplit) split).dataFiles().size();
        }
        return files;
    }

    private static long rows(FileStoreTable table, Predicate predicate, boolean print) throws Exception {
        ReadBuilder builder = table.newReadBuilder();
        if (predicate != null) {
            builder = builder.withFilter(predicate);
        }
        RowType type = table.rowType();
        List<InternalRow.FieldGetter> getters = new ArrayList<>();
        for (int i = 0; i < type.getFieldCount(); i++) {
            getters.add(InternalRow.createFieldGetter(type.getTypeAt(i), i));
        }
        long[] count = new long[1];
        try (RecordReader<InternalRow> reader =
                (predicate == null ? builder.newRead() : builder.newRead().executeFilter())
                        .createReader(builder.newScan().plan())) {
            reader.forEachRemaining(
                    row -> {
                        count[0]++;
                        if (print) {
                            StringBuilder line = new StringBuilder("row ");
                            for (int i = 0; i < getters.size(); i++) {
                                Object value = getters.get(i).getFieldOrNull(row);
                                line.append(i == 0 ? "" : "\u001f").append(value == null ? "\u0000" : text(value));
                            }
                            out.println(line.toString().replace("\n", "\\n"));
                        }
                    });
        }
        return count[0];
    }

    private static String text(Object value) {
        if (value instanceof byte[]) {
            StringBuilder hex = new StringBuilder();
            for (byte b : (byte[]) value) {
                hex.append(String.format("%02x", b));
            }
            return hex.toString();
        }
        return value.toString();
    }

    private static void compact(FileStoreTable table) throws Exception {
        Path scratch = Files.createTempDirectory("interop");
        Map<String, String> own = new HashMap<>();
        own.put("write-only", "false");
        table = table.copy(own);
        BatchWriteBuilder builder = table.newBatchWriteBuilder();
        try (BatchTableWrite write = builder.newWrite();
                BatchTableCommit commit = builder.newCommit()) {
            write.withIOManager(IOManager.create(scratch.toString()));
            for (org.apache.paimon.manifest.BucketEntry entry : table.newSnapshotReader().bucketEntries()) {
                BinaryRow partition = entry.partition();
                write.compact(partition, entry.bucket(), true);
            }
            commit.commit(write.prepareCommit());
        }
    }
}
