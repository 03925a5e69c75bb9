import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * One load: threads that send the messages 0..n-1, each until the broker has taken it, a consumer beside them, and the
 * tally. Thread t sends t, t + threads, ... one after the other, so these are in order.
 */
final class MessagingRun {
    private static final int QUEUES = 8;
    private static final long PAUSE_MS = 100;

    private final JSONObject c;
    private final int messages;
    private final int senders;
    private final int pace;
    private final MessagingKind kind;
    private final MessagingTally tally;
    private final List<Thread> threads = new ArrayList<>();
    private volatile boolean over;

    MessagingRun(JSONObject c) {
        this.c = c;
        messages = c.getIntValue("messages");
        senders = c.getIntValue("threads");
        pace = c.getIntValue("pace");
        String name = c.getString("kind");
        tally = new MessagingTally(messages, senders, MessagingKinds.expected(name));
        kind = MessagingKinds.of(name, c, tally);
    }

    void start() throws Exception {
        prepare();
        kind.start();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (!kind.ready(QUEUES)) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("the consumer got no queues");
            }
            Thread.sleep(20);
        }
    }

    /** Topic and group, with the mode in which the group reads. */
    private void prepare() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000L);
        admin.setNamesrvAddr(c.getString("nameserver"));
        admin.start();
        try {
            for (BrokerData b : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
                String address = b.getBrokerAddrs().get(0L);
                admin.createAndUpdateTopicConfig(address, new TopicConfig(c.getString("topic"), QUEUES, QUEUES));
                SubscriptionGroupConfig group = new SubscriptionGroupConfig();
                group.setGroupName(c.getString("group"));
                admin.createAndUpdateSubscriptionGroupConfig(address, group);
                if (c.getString("kind").equals("pop")) {
                    admin.setMessageRequestMode(address, c.getString("topic"), c.getString("group"), MessageRequestMode.POP, QUEUES, 10_000);
                }
            }
        } finally {
            admin.shutdown();
        }
    }

    void go() {
        tally.begin();
        kind.begin();
        long startNs = System.nanoTime();
        for (int t = 0; t < senders; t++) {
            int first = t;
            Thread thread = new Thread(() -> {
                for (int n = first; n < messages && !over; n += senders) {
                    if (pace > 0) {
                        LockSupport.parkNanos(startNs + n * 1_000_000_000L / pace - System.nanoTime());
                    }
                    send(n);
                }
            });
            thread.setDaemon(true);
            threads.add(thread);
            thread.start();
        }
    }

    private void send(int number) {
        while (!over) {
            try {
                kind.send(number);
                tally.acknowledged(number);
                return;
            } catch (Exception e) {
                tally.failed(number, e);
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(PAUSE_MS));
            }
        }
    }

    Map<String, Object> progress() {
        return Map.of("acknowledged", tally.acks(), "received", tally.distinct());
    }

    Map<String, Object> await(int patienceS, int settleS) throws InterruptedException {
        long seen = -1;
        long since = System.nanoTime();
        while (!tally.complete() && System.nanoTime() - since < TimeUnit.SECONDS.toNanos(patienceS)) {
            long now = tally.acks() + tally.distinct();
            if (now != seen) {
                seen = now;
                since = System.nanoTime();
            }
            Thread.sleep(10);
        }
        Thread.sleep(settleS * 1000L);
        return tally.figures(kind.delayNs(), kind.notBeforeNs());
    }

    void end() throws InterruptedException {
        over = true;
        for (Thread thread : threads) {
            thread.join(12_000);
        }
        kind.end();
    }
}
