import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * The loads of the benchmark, made by Apache RocketMQ's Java client. Takes one command a line from standard input, as
 * JSON, and answers each with one line; ends with its input. One process serves all loads of a run and both brokers,
 * because a new JVM needs ten seconds and more until its client is compiled and sends as fast as it can.
 *
 * <pre>
 * {"id":1, "op":"produce", "nameserver":.., "topic":.., "mode":"sync:THREADS"|"async:WINDOW"|"batch:THREADS:COUNT",
 *  "size":BYTES, "warm":SECONDS, "warm_most":SECONDS, "seconds":SECONDS}
 * {"id":2, "op":"consume", "nameserver":.., "topic":.., "group":.., "count":MESSAGES}
 * </pre>
 *
 * The rate is that of the time after the warm-up, latencies are from call to answer in the same time. The warm-up
 * takes at least "warm" seconds and ends when the rate no longer rises, at the latest after "warm_most".
 */
public final class Load {
    private static final int WINDOW_S = 4;
    private static final int FLAT_S = 6;
    private static final double RISE = 1.03;

    private final LongAdder done = new LongAdder();
    private final LongAdder failed = new LongAdder();
    private final ConcurrentLinkedQueue<Long> nanos = new ConcurrentLinkedQueue<>();
    private final List<Thread> threads = new ArrayList<>();
    private final AtomicReference<String> why = new AtomicReference<>("");
    private volatile boolean measuring;
    private volatile boolean over;

    private Load() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // libraries print, too
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            JSONObject answer = new JSONObject();
            answer.put("id", command.getIntValue("id"));
            try {
                Load load = new Load();
                answer.put("ok", command.getString("op").equals("produce") ? load.produce(command) : load.consume(command));
            } catch (Exception e) {
                answer.put("error", Map.of("type", e.getClass().getSimpleName(), "code", 0, "message", String.valueOf(e.getMessage())));
            }
            answers.println(answer);
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> produce(JSONObject c) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("LoadProducer");
        producer.setNamesrvAddr(c.getString("nameserver"));
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        byte[] body = new byte[c.getIntValue("size")];
        new Random(1).nextBytes(body);
        String[] mode = c.getString("mode").split(":");
        Semaphore window = new Semaphore(Integer.parseInt(mode[1]));
        begin(producer, c.getString("topic"), body, mode, window);
        JSONArray warming = settle(c.getIntValue("warm"), c.getIntValue("warm_most"));
        long before = done.sum();
        measuring = true;
        long start = System.nanoTime();
        Thread.sleep(c.getIntValue("seconds") * 1000L);
        double rate = (done.sum() - before) * 1e9 / (System.nanoTime() - start);
        over = true;
        Map<String, Object> figures = figures(rate);
        figures.put("warming", warming);
        window.release(1 << 20);
        for (Thread thread : threads) {
            thread.join(12_000);
        }
        producer.shutdown();
        return figures;
    }

    private Map<String, Object> figures(double rate) {
        Long[] sorted = nanos.toArray(new Long[0]);
        Arrays.sort(sorted);
        Map<String, Object> figures = new TreeMap<>();
        figures.put("rate", Math.round(rate * 10) / 10.0);
        figures.put("failed", failed.sum());
        figures.put("why", why.get());
        figures.put("total", done.sum());
        figures.put("p50_ms", at(sorted, 0.5));
        figures.put("p99_ms", at(sorted, 0.99));
        return figures;
    }

    private static double at(Long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) ((sorted.length - 1) * share)] / 1000 / 1e3;
    }

    /** Messages of each second, until the mean of some seconds has not risen for some time. */
    private JSONArray settle(int least, int most) throws InterruptedException {
        JSONArray each = new JSONArray();
        long before = 0;
        double best = 0;
        int bestAt = 0;
        while (each.size() < most && (each.size() < least || each.size() - bestAt < FLAT_S)) {
            Thread.sleep(1000);
            long now = done.sum();
            each.add(now - before);
            before = now;
            int n = Math.min(WINDOW_S, each.size());
            double mean = each.subList(each.size() - n, each.size()).stream().mapToLong(x -> (Long) x).average().orElse(0);
            if (mean > best * RISE) {
                best = mean;
                bestAt = each.size();
            }
        }
        return each;
    }

    private void begin(DefaultMQProducer producer, String topic, byte[] body, String[] mode, Semaphore window) {
        int n = Integer.parseInt(mode[1]);
        switch (mode[0]) {
            case "sync":
                threads(n, id -> i -> {
                    long start = System.nanoTime();
                    ended(start, producer.send(message(topic, id, i, body)), 1);
                });
                break;
            case "batch":
                int count = Integer.parseInt(mode[2]);
                threads(n, id -> i -> {
                    List<Message> batch = new ArrayList<>(count);
                    for (int k = 0; k < count; k++) {
                        batch.add(message(topic, id, i * count + k, body));
                    }
                    long start = System.nanoTime();
                    ended(start, producer.send(batch), count);
                });
                break;
            case "async":
                threads(2, id -> i -> {
                    window.acquire();
                    producer.send(message(topic, id, i, body), callback(window));
                });
                break;
            default:
                throw new IllegalArgumentException("no such mode: " + mode[0]);
        }
    }

    private SendCallback callback(Semaphore window) {
        long start = System.nanoTime();
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                ended(start, result, 1);
                window.release();
            }

            @Override
            public void onException(Throwable e) {
                failed(e);
                window.release();
            }
        };
    }

    private static Message message(String topic, int thread, long i, byte[] body) {
        return new Message(topic, "TagA", thread + "-" + i, body);
    }

    private void ended(long start, SendResult result, int count) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            failed(new IllegalStateException("stored with " + result.getSendStatus()));
            return;
        }
        done.add(count);
        if (measuring && !over) {
            nanos.add(System.nanoTime() - start);
        }
    }

    private void failed(Throwable e) {
        failed.increment();
        why.compareAndSet("", e.toString());
    }

    private interface Step {
        void run(long i) throws Exception;
    }

    private interface Maker {
        Step of(int thread);
    }

    private void threads(int count, Maker maker) {
        for (int t = 0; t < count; t++) {
            Step step = maker.of(t);
            Thread thread = new Thread(() -> {
                for (long i = 0; !over; i++) {
                    try {
                        step.run(i);
                    } catch (Exception e) {
                        failed(e);
                    }
                }
            });
            thread.setDaemon(true);
            threads.add(thread);
            thread.start();
        }
    }

    private Map<String, Object> consume(JSONObject c) throws Exception {
        int count = c.getIntValue("count");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(c.getString("group"));
        consumer.setNamesrvAddr(c.getString("nameserver"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(c.getString("topic"), "*");
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        CountDownLatch end = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            done.add(messages.size());
            if (done.sum() >= count) {
                last.compareAndSet(0, System.nanoTime());
                end.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!end.await(120, TimeUnit.SECONDS)) {
            failed(new IllegalStateException("not all came within 120 s"));
            last.set(System.nanoTime());
        }
        Map<String, Object> figures = figures(done.sum() * 1e9 / (last.get() - first.get()));
        consumer.shutdown();
        return figures;
    }
}
