import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.accumulators.LongCounter;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.RichSinkFunction;

/** Sums up 1 to 20,000 by their last two digits, with a shuffle, and writes what comes out to a file: FlinkSum ANSWER PAUSE_MS. */
public final class FlinkSum {
    private FlinkSum() {}

    /** Counts keys, and adds up their sums. */
    private static final class Total extends RichSinkFunction<Tuple2<Long, Long>> {
        private final LongCounter keys = new LongCounter();
        private final LongCounter sum = new LongCounter();

        @Override
        public void open(Configuration configuration) {
            getRuntimeContext().addAccumulator("keys", keys);
            getRuntimeContext().addAccumulator("sum", sum);
        }

        @Override
        public void invoke(Tuple2<Long, Long> one, Context context) {
            keys.add(1);
            sum.add(one.f1);
        }
    }

    public static void main(String[] args) throws Exception {
        int pauseMs = Integer.parseInt(args[1]);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.setRuntimeMode(RuntimeExecutionMode.BATCH);
        env.fromSequence(1, 20_000)
            .map(one -> {
                // Long enough for somebody to kill the process.
                if (pauseMs > 0 && one % 1_000 == 0) {
                    Thread.sleep(pauseMs);
                }
                return Tuple2.of(one % 100, one);
            })
            .returns(Types.TUPLE(Types.LONG, Types.LONG))
            .keyBy(one -> one.f0)
            .sum(1)
            .addSink(new Total());
        JobExecutionResult done = env.execute("sum");
        long keys = done.getAccumulatorResult("keys");
        long sum = done.getAccumulatorResult("sum");
        Path answer = Path.of(args[0]);
        Path draft = answer.resolveSibling(answer.getFileName() + ".draft");
        Files.writeString(draft, "keys " + keys + " sum " + sum + "\n");
        Files.move(draft, answer, StandardCopyOption.ATOMIC_MOVE);
    }
}
