import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * transactions.*: TransactionMQProducer with a listener that does what each message says. Its property "plan" is the
 * local result and then the answers to checks, the last of which is repeated: "unknown,unknown,commit". The local work
 * takes "localMs".
 */
final class Transactions {
    private static final Map<String, Producer> ALL = new ConcurrentHashMap<>();

    private Transactions() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("transactions.start", a -> {
            ALL.put(a.getString("name"), new Producer(a));
            return null;
        });
        ops.put("transactions.stop", a -> {
            Producer p = ALL.remove(a.getString("name"));
            if (p != null) {
                p.producer.shutdown();
            }
            return null;
        });
        ops.put("transactions.send", Transactions::send);
        ops.put("transactions.checks", a -> new ArrayList<>(ALL.get(a.getString("name")).checks));
        ops.put("transactions.load", Transactions::load);
    }

    /** One entry a message: the result of the send with "state", or an error. */
    private static Object send(JSONObject a) throws Exception {
        TransactionMQProducer p = ALL.get(a.getString("name")).producer;
        List<Object> results = new ArrayList<>();
        for (Message m : Values.messages(a.getJSONArray("messages"))) {
            try {
                TransactionSendResult r = p.sendMessageInTransaction(m, null);
                Map<String, Object> sent = Values.sent(r);
                sent.put("state", String.valueOf(r.getLocalTransactionState()));
                results.add(sent);
            } catch (Exception e) {
                results.add(Map.of("error", Driver.error(e)));
            }
        }
        return results;
    }

    /** Sends "count" messages with the plans in turn from some threads; body and plan of each that was taken, and errors. */
    private static Object load(JSONObject a) throws Exception {
        TransactionMQProducer p = ALL.get(a.getString("name")).producer;
        List<String> plans = a.getJSONArray("plans").toList(String.class);
        int count = a.getIntValue("count");
        AtomicInteger next = new AtomicInteger();
        Map<String, String> taken = new ConcurrentHashMap<>();
        Map<String, Integer> errors = new ConcurrentHashMap<>();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < a.getIntValue("threads"); t++) {
            Thread thread = new Thread(() -> {
                for (int i = next.getAndIncrement(); i < count; i = next.getAndIncrement()) {
                    String plan = plans.get(i % plans.size());
                    String body = a.getString("prefix") + i;
                    Message m = new Message(a.getString("topic"), body.getBytes(StandardCharsets.UTF_8));
                    m.putUserProperty("plan", plan);
                    try {
                        p.sendMessageInTransaction(m, null);
                        taken.put(body, plan);
                    } catch (Exception e) {
                        errors.merge(String.valueOf(e.getCause() == null ? e.getClass() : e.getCause().getClass()), 1, Integer::sum);
                    }
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return Map.of("taken", taken, "errors", errors);
    }

    /** A producer, and what it was asked. */
    private static final class Producer implements TransactionListener {
        final TransactionMQProducer producer;
        final List<Object> checks = Collections.synchronizedList(new ArrayList<>());
        private final Map<String, AtomicInteger> times = new ConcurrentHashMap<>();

        Producer(JSONObject a) throws Exception {
            producer = Values.client(new TransactionMQProducer(a.getString("group")), a);
            producer.setTransactionListener(this);
            producer.setSendMsgTimeout(a.getIntValue("timeoutMs", 3000));
            producer.start();
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message m, Object argument) {
            String local = m.getUserProperty("localMs");
            if (local != null) {
                try {
                    Thread.sleep(Long.parseLong(local));
                } catch (InterruptedException e) {
                    Thread.currentThread().interrupt();
                }
            }
            return state(m, 0);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt m) {
            int time = times.computeIfAbsent(m.getTransactionId(), k -> new AtomicInteger()).incrementAndGet();
            LocalTransactionState state = state(m, time);
            Map<String, Object> check = new LinkedHashMap<>();
            check.put("body", new String(m.getBody(), StandardCharsets.UTF_8));
            check.put("topic", m.getTopic());
            check.put("queue", m.getQueueId());
            check.put("queueOffset", m.getQueueOffset());
            check.put("logOffset", m.getCommitLogOffset());
            check.put("transactionId", m.getTransactionId());
            check.put("state", state.name());
            check.put("at", System.currentTimeMillis());
            check.put("properties", m.getProperties());
            checks.add(check);
            return state;
        }

        private static LocalTransactionState state(Message m, int time) {
            String[] plan = m.getUserProperty("plan").split(",");
            switch (plan[Math.min(time, plan.length - 1)]) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }
}
