import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
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
 * The loads of the benchmark, made by Apache RocketMQ's Java client. Prints one JSON line.
 *
 * <pre>
 * produce NAMESRV TOPIC WARM_SECONDS SECONDS BODY_BYTES sync:THREADS | async:WINDOW | batch:THREADS:COUNT
 * consume NAMESRV TOPIC GROUP COUNT
 * </pre>
 *
 * The rate is that of the time after the warm-up; latencies are from call to answer in the same time.
 */
public final class Load {
    private static final LongAdder DONE = new LongAdder();
    private static final LongAdder FAILED = new LongAdder();
    private static final ConcurrentLinkedQueue<Long> NANOS = new ConcurrentLinkedQueue<>();
    private static volatile boolean measuring;
    private static volatile boolean over;

    private Load() {
    }

    public static void main(String[] a) throws Exception {
        if (a[0].equals("produce")) {
            produce(a[1], a[2], Integer.parseInt(a[3]), Integer.parseInt(a[4]), Integer.parseInt(a[5]), a[6].split(":"));
        } else {
            consume(a[1], a[2], a[3], Integer.parseInt(a[4]));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void produce(String ns, String topic, int warm, int seconds, int size, String[] mode) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("LoadProducer");
        producer.setNamesrvAddr(ns);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        byte[] body = new byte[size];
        new Random(1).nextBytes(body);
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
            default:
                Semaphore window = new Semaphore(n);
                threads(2, id -> i -> {
                    window.acquire();
                    long start = System.nanoTime();
                    producer.send(message(topic, id, i, body), new SendCallback() {
                        @Override
                        public void onSuccess(SendResult r) {
                            ended(start, r, 1);
                            window.release();
                        }

                        @Override
                        public void onException(Throwable e) {
                            FAILED.increment();
                            window.release();
                        }
                    });
                });
        }
        Thread.sleep(warm * 1000L);
        long before = DONE.sum();
        measuring = true;
        long start = System.nanoTime();
        Thread.sleep(seconds * 1000L);
        double rate = (DONE.sum() - before) * 1e9 / (System.nanoTime() - start);
        over = true;
        Long[] nanos = NANOS.toArray(new Long[0]);
        Arrays.sort(nanos);
        System.out.printf(Locale.ROOT, "{\"rate\": %.1f, \"failed\": %d, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"total\": %d}%n",
            rate, FAILED.sum(), at(nanos, 0.5), at(nanos, 0.99), DONE.sum());
    }

    private static double at(Long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) ((sorted.length - 1) * share)] / 1e6;
    }

    private static Message message(String topic, int thread, long i, byte[] body) {
        return new Message(topic, "TagA", thread + "-" + i, body);
    }

    private static void ended(long start, SendResult result, int count) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            FAILED.increment();
            return;
        }
        DONE.add(count);
        if (measuring && !over) {
            NANOS.add(System.nanoTime() - start);
        }
    }

    private interface Step {
        void run(long i) throws Exception;
    }

    private interface Maker {
        Step of(int thread);
    }

    private static void threads(int count, Maker maker) {
        for (int t = 0; t < count; t++) {
            Step step = maker.of(t);
            Thread thread = new Thread(() -> {
                for (long i = 0; !over; i++) {
                    try {
                        step.run(i);
                    } catch (Exception e) {
                        FAILED.increment();
                    }
                }
            });
            thread.setDaemon(true);
            thread.start();
        }
    }

    private static void consume(String ns, String topic, String group, int count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(ns);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(topic, "*");
        LongAdder seen = new LongAdder();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        CountDownLatch end = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            seen.add(messages.size());
            if (seen.sum() >= count) {
                last.compareAndSet(0, System.nanoTime());
                end.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean complete = end.await(120, TimeUnit.SECONDS);
        double seconds = ((complete ? last.get() : System.nanoTime()) - first.get()) / 1e9;
        System.out.printf(Locale.ROOT, "{\"rate\": %.1f, \"failed\": %d, \"total\": %d}%n",
            seen.sum() / seconds, complete ? 0 : 1, seen.sum());
    }
}
