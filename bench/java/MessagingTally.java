import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.IntPredicate;

/**
 * What became of the messages 0..n-1 of one load: taken by the broker, received, received twice, never, in what order.
 * Number n belongs to the sequence n % sequences (an ordering key), in which it is element n / sequences.
 */
final class MessagingTally {
    private final int messages;
    private final int sequences;
    private final IntPredicate expected;
    private final long expectedCount;
    private final AtomicIntegerArray acknowledged;
    private final AtomicIntegerArray unknown;
    private final AtomicIntegerArray received;
    private final AtomicIntegerArray first;
    private final int[] lateMs;
    private final int[] last;
    private final LongAdder acks = new LongAdder();
    private final LongAdder failures = new LongAdder();
    private final LongAdder outOfOrder = new LongAdder();
    private final AtomicLong distinct = new AtomicLong();
    private final AtomicReference<String> why = new AtomicReference<>("");
    private volatile long firstSendNs;
    private volatile long lastAckNs;
    private volatile long lastReceiveNs;

    MessagingTally(int messages, int sequences, IntPredicate expected) {
        this.messages = messages;
        this.sequences = sequences;
        this.expected = expected;
        acknowledged = new AtomicIntegerArray(messages);
        unknown = new AtomicIntegerArray(messages);
        received = new AtomicIntegerArray(messages);
        first = new AtomicIntegerArray(messages);
        lateMs = new int[messages];
        last = new int[sequences];
        Arrays.fill(last, -1);
        long count = 0;
        for (int i = 0; i < messages; i++) {
            count += expected.test(i) ? 1 : 0;
        }
        expectedCount = count;
    }

    void begin() {
        firstSendNs = System.nanoTime();
    }

    void acknowledged(int number) {
        acknowledged.incrementAndGet(number);
        acks.increment();
        lastAckNs = System.nanoTime();
    }

    /** A send without an answer, or refused: whether the broker has the message is not known. */
    void failed(int number, Throwable e) {
        unknown.incrementAndGet(number);
        failures.increment();
        why.compareAndSet("", e.toString());
    }

    /** A delivery that is answered with a failure, so that the message has to come again. */
    void refused(int number) {
        first.incrementAndGet(number);
    }

    /** A delivery that counts; "late" is the time since it was due. */
    void received(int number, long late) {
        boolean isFirst = received.getAndIncrement(number) == 0;
        order(number, isFirst);
        if (isFirst && expected.test(number)) {
            lateMs[number] = (int) late;
            lastReceiveNs = System.nanoTime();
            distinct.incrementAndGet();
        }
    }

    private void order(int number, boolean isFirst) {
        synchronized (last) {
            int sequence = number % sequences;
            int element = number / sequences;
            if (isFirst && element != last[sequence] + 1) {
                outOfOrder.increment();
            }
            last[sequence] = Math.max(last[sequence], element);
        }
    }

    long acks() {
        return acks.sum();
    }

    long distinct() {
        return distinct.get();
    }

    boolean complete() {
        return acks.sum() == messages && distinct.get() == expectedCount;
    }

    /** Rates are messages a second; "dueNs" is when the last message fell due at the earliest, or the delay of all. */
    Map<String, Object> figures(long delayNs, long notBeforeNs) {
        long lost = 0;
        long unwanted = 0;
        long twice = 0;
        long twiceSent = 0;
        long refusedTwice = 0;
        for (int i = 0; i < messages; i++) {
            int times = received.get(i);
            if (!expected.test(i)) {
                unwanted += times;
                continue;
            }
            lost += times == 0 && acknowledged.get(i) > 0 ? 1 : 0;
            int again = Math.max(0, times - 1);
            // A send without an answer may have been stored, so each such attempt may be one more message.
            int ours = Math.min(again, unknown.get(i));
            twiceSent += ours;
            twice += again - ours;
            refusedTwice += Math.max(0, first.get(i) - 1 - unknown.get(i));
        }
        Map<String, Object> f = new TreeMap<>();
        f.put("messages", messages);
        f.put("expected", expectedCount);
        f.put("acknowledged", acks.sum());
        f.put("failed_sends", failures.sum());
        f.put("why", why.get());
        f.put("received", distinct.get());
        f.put("lost", lost);
        f.put("twice", twice);
        f.put("twice_sent", twiceSent);
        f.put("refused_twice", refusedTwice);
        f.put("unwanted", unwanted);
        f.put("out_of_order", outOfOrder.sum());
        f.put("send_rate", rate(acks.sum(), lastAckNs - firstSendNs));
        f.put("rate", rate(expectedCount, lastReceiveNs - Math.max(firstSendNs + delayNs, notBeforeNs)));
        f.put("seconds", Math.round((lastReceiveNs - firstSendNs) / 1e7) / 100.0);
        int[] late = lateMs.clone();
        Arrays.sort(late);
        f.put("late_p50_ms", late[messages / 2]);
        f.put("late_max_ms", late[messages - 1]);
        return f;
    }

    private static double rate(long count, long ns) {
        return Math.round(count * 1e10 / Math.max(1, ns)) / 10.0;
    }
}
