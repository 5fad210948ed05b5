// A Spark application with a shuffle: counts words over partitions, and prints the sum of the counts and Pi.
// Arguments: a file for the answer, and how long each task of the first stage pauses, milliseconds.

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaSparkContext;
import scala.Tuple2;

public class SparkShuffle {
    private static final int N = 20_000;

    public static void main(String[] args) throws Exception {
        JavaSparkContext context = new JavaSparkContext(new SparkConf().setAppName("shuffle"));
        long pause = args.length > 1 ? Long.parseLong(args[1]) : 0;
        List<Integer> numbers = new ArrayList<>();
        for (int i = 0; i < N; i++) {
            numbers.add(i);
        }
        List<Tuple2<Integer, Integer>> counts = context.parallelize(numbers, 8)
            .mapPartitionsToPair(part -> {
                Thread.sleep(pause);
                List<Tuple2<Integer, Integer>> pairs = new ArrayList<>();
                part.forEachRemaining(number -> pairs.add(new Tuple2<>(number % 100, 1)));
                return pairs.iterator();
            })
            .reduceByKey(Integer::sum, 8)
            .collect();
        int sum = counts.stream().mapToInt(pair -> pair._2()).sum();
        double pi = 4.0 * context.parallelize(numbers, 8).filter(number -> {
            double x = (number * 0.754877666) % 1, y = (number * 0.569840291) % 1;
            return x * x + y * y < 1;
        }).count() / N;
        int executors = context.sc().statusTracker().getExecutorInfos().length - 1;
        String said = "keys " + counts.size() + " sum " + sum + " pi " + Math.round(pi * 10) / 10.0 + " executors " + executors;
        System.out.println(said);
        if (args.length > 0) {
            java.nio.file.Files.writeString(java.nio.file.Path.of(args[0]), said + "\n");
        }
        context.stop();
    }
}
