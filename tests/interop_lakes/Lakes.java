import io.delta.kernel.Scan;
import io.delta.kernel.ScanBuilder;
import io.delta.kernel.Snapshot;
import io.delta.kernel.data.ArrayValue;
import io.delta.kernel.data.ColumnVector;
import io.delta.kernel.data.ColumnarBatch;
import io.delta.kernel.data.FilteredColumnarBatch;
import io.delta.kernel.data.MapValue;
import io.delta.kernel.data.Row;
import io.delta.kernel.defaults.engine.DefaultEngine;
import io.delta.kernel.engine.Engine;
import io.delta.kernel.engine.FileReadResult;
import io.delta.kernel.expressions.Column;
import io.delta.kernel.expressions.Literal;
import io.delta.kernel.expressions.Predicate;
import io.delta.kernel.internal.InternalScanFileUtils;
import io.delta.kernel.internal.data.ScanStateRow;
import io.delta.kernel.internal.util.Utils;
import io.delta.kernel.types.ArrayType;
import io.delta.kernel.types.DataType;
import io.delta.kernel.types.MapType;
import io.delta.kernel.types.StructType;
import io.delta.kernel.utils.CloseableIterator;
import io.delta.kernel.utils.FileStatus;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.Collection;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.StaticTableOperations;
import org.apache.iceberg.TableScan;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;

/**
 * Java readers of lakes, one command per line of standard input: FORMAT PLACE VERSION COLUMN LOW HIGH.
 *
 * <p>PLACE is the folder of a Delta table or the metadata file of an Iceberg table. VERSION is a version or snapshot, or
 * "-"; COLUMN with its bounds is a predicate that files are skipped by, or "-". The answer: each row as a line of JSON,
 * then "files N of M rows R": how many files the predicate leaves to read, and how many there are.
 */
public class Lakes {
    private static final Configuration CONF = new Configuration();
    private static PrintStream out;

    public static void main(String[] args) throws Exception {
        out = new PrintStream(System.out, false, "UTF-8");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.trim().split(" ");
            try {
                if (words[0].equals("delta")) {
                    delta(words);
                } else {
                    iceberg(words);
                }
            } catch (Throwable error) {
                StringBuilder told = new StringBuilder();
                for (Throwable e = error; e != null; e = e.getCause()) {
                    told.append(e).append(" <- ");
                }
                out.println("error " + told.toString().replace('\n', ' '));
            }
            out.flush();
        }
    }

    // -- Iceberg ----------------------------------------------------------------------------------------------------

    private static void iceberg(String[] words) throws Exception {
        BaseTable table = new BaseTable(new StaticTableOperations(words[1], new HadoopFileIO(CONF)), "table");
        Expression wanted = Expressions.alwaysTrue();
        if (!words[3].equals("-")) {
            Expression low = Expressions.greaterThanOrEqual(words[3], Long.parseLong(words[4]));
            wanted = Expressions.and(low, Expressions.lessThanOrEqual(words[3], Long.parseLong(words[5])));
        }
        IcebergGenerics.ScanBuilder reading = IcebergGenerics.read(table).where(wanted);
        TableScan scan = table.newScan();
        if (!words[2].equals("-")) {
            reading = reading.useSnapshot(Long.parseLong(words[2]));
            scan = scan.useSnapshot(Long.parseLong(words[2]));
        }
        long rows = 0;
        try (CloseableIterable<Record> records = reading.build()) {
            for (Record record : records) {
                out.println("row " + icebergRow(record));
                rows++;
            }
        }
        out.println("files " + count(scan.filter(wanted)) + " of " + count(scan) + " rows " + rows);
    }

    private static int count(TableScan scan) throws Exception {
        int files = 0;
        try (CloseableIterable<FileScanTask> tasks = scan.planFiles()) {
            for (FileScanTask ignored : tasks) {
                files++;
            }
        }
        return files;
    }

    private static String icebergRow(Record record) {
        StringBuilder text = new StringBuilder("[");
        for (int place = 0; place < record.size(); place++) {
            text.append(place == 0 ? "" : ",").append(value(record.get(place)));
        }
        return text.append("]").toString();
    }

    private static String value(Object given) {
        if (given == null || given instanceof Boolean || given instanceof Integer || given instanceof Long) {
            return String.valueOf(given);
        } else if (given instanceof Float || given instanceof Double) {
            return quoted(given.toString());
        } else if (given instanceof BigDecimal) {
            return quoted(((BigDecimal) given).toPlainString());
        } else if (given instanceof LocalDate) {
            return quoted(given.toString());
        } else if (given instanceof OffsetDateTime) {
            return String.valueOf(ChronoUnit.MICROS.between(OffsetDateTime.ofInstant(java.time.Instant.EPOCH, ZoneOffset.UTC), (OffsetDateTime) given));
        } else if (given instanceof LocalDateTime) {
            return String.valueOf(ChronoUnit.MICROS.between(LocalDateTime.of(1970, 1, 1, 0, 0), (LocalDateTime) given));
        } else if (given instanceof ByteBuffer) {
            ByteBuffer buffer = ((ByteBuffer) given).duplicate();
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            return quoted(HexFormat.of().formatHex(bytes));
        } else if (given instanceof Record) {
            return icebergRow((Record) given);
        } else if (given instanceof Map) {
            StringBuilder text = new StringBuilder();
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) given).entrySet()) {
                text.append(text.length() == 0 ? "" : ",").append("[" + value(entry.getKey()) + "," + value(entry.getValue()) + "]");
            }
            return "[" + text + "]";
        } else if (given instanceof Collection) {
            StringBuilder text = new StringBuilder();
            for (Object one : (Collection<?>) given) {
                text.append(text.length() == 0 ? "" : ",").append(value(one));
            }
            return "[" + text + "]";
        }
        return quoted(given.toString());
    }

    // -- Delta Lake -------------------------------------------------------------------------------------------------

    private static void delta(String[] words) throws Exception {
        Engine engine = DefaultEngine.create(CONF);
        io.delta.kernel.Table table = io.delta.kernel.Table.forPath(engine, words[1]);
        Snapshot snapshot =
                words[2].equals("-")
                        ? table.getLatestSnapshot(engine)
                        : table.getSnapshotAsOfVersion(engine, Long.parseLong(words[2]));
        Scan scan = snapshot.getScanBuilder().build();
        if (!words[3].equals("-")) {
            Column column = new Column(words[3]);
            ScanBuilder builder = snapshot.getScanBuilder();
            scan = builder.withFilter(
                            new io.delta.kernel.expressions.And(
                                    new Predicate(">=", column, Literal.ofLong(Long.parseLong(words[4]))),
                                    new Predicate("<=", column, Literal.ofLong(Long.parseLong(words[5])))))
                    .build();
        }
        long rows = 0;
        int files = 0;
        Row state = scan.getScanState(engine);
        try (CloseableIterator<FilteredColumnarBatch> batches = scan.getScanFiles(engine)) {
            while (batches.hasNext()) {
                try (CloseableIterator<Row> found = batches.next().getRows()) {
                    while (found.hasNext()) {
                        files++;
                        rows += deltaFile(engine, state, found.next());
                    }
                }
            }
        }
        out.println("files " + files + " of " + filesOf(engine, snapshot.getScanBuilder().build()) + " rows " + rows);
    }

    private static int filesOf(Engine engine, Scan scan) throws Exception {
        int files = 0;
        try (CloseableIterator<FilteredColumnarBatch> batches = scan.getScanFiles(engine)) {
            while (batches.hasNext()) {
                try (CloseableIterator<Row> found = batches.next().getRows()) {
                    for (; found.hasNext(); found.next()) {
                        files++;
                    }
                }
            }
        }
        return files;
    }

    private static long deltaFile(Engine engine, Row state, Row file) throws Exception {
        FileStatus status = InternalScanFileUtils.getAddFileStatus(file);
        StructType physical = ScanStateRow.getPhysicalDataReadSchema(state);
        CloseableIterator<FileReadResult> read =
                engine.getParquetHandler()
                        .readParquetFiles(Utils.singletonCloseableIterator(status), physical, Optional.empty());
        CloseableIterator<ColumnarBatch> data = read.map(FileReadResult::getData);
        long rows = 0;
        try (CloseableIterator<FilteredColumnarBatch> batches = Scan.transformPhysicalData(engine, state, file, data)) {
            while (batches.hasNext()) {
                try (CloseableIterator<Row> found = batches.next().getRows()) {
                    while (found.hasNext()) {
                        out.println("row " + deltaRow(found.next()));
                        rows++;
                    }
                }
            }
        }
        return rows;
    }

    private static String deltaRow(Row row) {
        StringBuilder text = new StringBuilder("[");
        for (int place = 0; place < row.getSchema().length(); place++) {
            text.append(place == 0 ? "" : ",").append(deltaValue(row, row.getSchema().at(place).getDataType(), place));
        }
        return text.append("]").toString();
    }

    private static String deltaValue(Row row, DataType type, int place) {
        if (row.isNullAt(place)) {
            return "null";
        }
        switch (type.toString()) {
            case "boolean":
                return String.valueOf(row.getBoolean(place));
            case "byte":
                return String.valueOf(row.getByte(place));
            case "short":
                return String.valueOf(row.getShort(place));
            case "integer":
                return String.valueOf(row.getInt(place));
            case "long":
            case "timestamp":
            case "timestamp_ntz":
                return String.valueOf(row.getLong(place));
            case "float":
                return quoted(Float.toString(row.getFloat(place)));
            case "double":
                return quoted(Double.toString(row.getDouble(place)));
            case "string":
                return quoted(row.getString(place));
            case "binary":
                return quoted(HexFormat.of().formatHex(row.getBinary(place)));
            case "date":
                return quoted(LocalDate.ofEpochDay(row.getInt(place)).toString());
            default:
                break;
        }
        if (type instanceof StructType) {
            return deltaRow(row.getStruct(place));
        } else if (type instanceof ArrayType) {
            ArrayValue array = row.getArray(place);
            return "[" + longs(array.getElements(), array.getSize()) + "]";
        } else if (type instanceof MapType) {
            MapValue map = row.getMap(place);
            StringBuilder text = new StringBuilder();
            for (int at = 0; at < map.getSize(); at++) {
                text.append(at == 0 ? "" : ",")
                        .append("[" + quoted(map.getKeys().getString(at)) + "," + map.getValues().getLong(at) + "]");
            }
            return "[" + text + "]";
        }
        return quoted(row.getDecimal(place).toPlainString());
    }

    private static String longs(ColumnVector values, int size) {
        StringBuilder text = new StringBuilder();
        for (int at = 0; at < size; at++) {
            text.append(at == 0 ? "" : ",").append(values.isNullAt(at) ? "null" : String.valueOf(values.getLong(at)));
        }
        return text.toString();
    }

    private static String quoted(String text) {
        StringBuilder escaped = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            escaped.append(c == '"' || c == '\\' || c < ' ' ? String.format("\\u%04x", (int) c) : String.valueOf(c));
        }
        return escaped.append('"').toString();
    }
}
