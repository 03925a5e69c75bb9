import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** producer.*: DefaultMQProducer in each of its forms, the calls it has to refuse, and senders in the background. */
final class Producers {
    private static final Map<String, DefaultMQProducer> ALL = new ConcurrentHashMap<>();
    private static final Map<String, Background> BACKGROUND = new ConcurrentHashMap<>();

    private Producers() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("producer.start", Producers::start);
        ops.put("producer.stop", a -> {
            DefaultMQProducer p = ALL.remove(a.getString("name"));
            if (p != null) {
                p.shutdown();
            }
            return null;
        });
        ops.put("producer.send", Producers::send);
        ops.put("producer.batch", a -> Values.sent(
            a.containsKey("to")
                ? of(a).send(Values.messages(a.getJSONArray("messages")), Values.queue(a.getJSONObject("to"), a.getString("topic")))
                : of(a).send(Values.messages(a.getJSONArray("messages")))));
        ops.put("producer.odd", Producers::odd);
        ops.put("producer.queues", a -> {
            List<Object> out = new ArrayList<>();
            of(a).fetchPublishMessageQueues(a.getString("topic")).forEach(q -> out.add(Values.queue(q)));
            return out;
        });
        ops.put("background.start", Producers::background);
        ops.put("background.count", a -> BACKGROUND.get(a.getString("name")).acked.size());
        ops.put("background.errors", a -> BACKGROUND.get(a.getString("name")).errors);
        ops.put("background.stop", a -> BACKGROUND.remove(a.getString("name")).stop());
        ops.put("background.join", a -> BACKGROUND.remove(a.getString("name")).join());
    }

    static DefaultMQProducer of(JSONObject a) {
        DefaultMQProducer p = ALL.get(a.getString("producer"));
        if (p == null) {
            throw new IllegalArgumentException("no producer " + a.getString("producer"));
        }
        return p;
    }

    private static Object start(JSONObject a) throws Exception {
        DefaultMQProducer p = Values.client(new DefaultMQProducer(a.getString("group")), a);
        p.setSendMsgTimeout(a.getIntValue("timeoutMs", 3000));
        if (a.containsKey("retries")) {
            p.setRetryTimesWhenSendFailed(a.getIntValue("retries"));
            p.setRetryTimesWhenSendAsyncFailed(a.getIntValue("retries"));
        }
        if (a.containsKey("maxMessageSize")) {
            p.setMaxMessageSize(a.getIntValue("maxMessageSize"));
        }
        if (a.containsKey("compressOver")) {
            p.setCompressMsgBodyOverHowmuch(a.getIntValue("compressOver"));
        }
        p.start();
        ALL.put(a.getString("name"), p);
        return null;
    }

    /** The calls differ by mode and target; the answers have one shape: one entry a message, a result or an error. */
    private static Object send(JSONObject a) throws Exception {
        DefaultMQProducer p = of(a);
        List<Message> messages = Values.messages(a.getJSONArray("messages"));
        String mode = a.getString("mode");
        JSONObject to = a.getJSONObject("to");
        long gapMs = a.getLongValue("gapMs");
        AtomicInteger shown = new AtomicInteger();
        MessageQueueSelector selector = !a.getBooleanValue("bySelector") ? null : (queues, message, argument) -> {
            shown.set(queues.size());
            MessageQueue wanted = Values.queue(to, message.getTopic());
            return queues.stream().filter(wanted::equals).findFirst().orElseThrow();
        };
        List<Object> results = Collections.synchronizedList(new ArrayList<>(Collections.nCopies(messages.size(), null)));
        CountDownLatch left = new CountDownLatch(mode.equals("async") ? messages.size() : 0);
        for (int i = 0; i < messages.size(); i++) {
            Message m = messages.get(i);
            MessageQueue q = to == null ? null : Values.queue(to, m.getTopic());
            try {
                switch (mode) {
                    case "sync":
                        results.set(i, Values.sent(q == null ? p.send(m) : selector == null ? p.send(m, q) : p.send(m, selector, null)));
                        break;
                    case "oneway":
                        if (q == null) {
                            p.sendOneway(m);
                        } else if (selector == null) {
                            p.sendOneway(m, q);
                        } else {
                            p.sendOneway(m, selector, null);
                        }
                        break;
                    default:
                        SendCallback callback = keep(results, i, left);
                        if (q == null) {
                            p.send(m, callback);
                        } else if (selector == null) {
                            p.send(m, q, callback);
                        } else {
                            p.send(m, selector, null, callback);
                        }
                }
            } catch (Exception e) {
                results.set(i, failed(e));
                left.countDown();
            }
            if (gapMs > 0) {
                Thread.sleep(gapMs);
            }
        }
        boolean complete = left.await(a.getLongValue("callbackMs", 10_000), TimeUnit.MILLISECONDS);
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("results", results);
        out.put("complete", complete);
        out.put("shown", shown.get());
        return out;
    }

    private static SendCallback keep(List<Object> results, int i, CountDownLatch left) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult r) {
                results.set(i, Values.sent(r));
                left.countDown();
            }

            @Override
            public void onException(Throwable e) {
                results.set(i, failed(e));
                left.countDown();
            }
        };
    }

    private static Map<String, Object> failed(Throwable e) {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("error", Driver.error(e));
        return m;
    }

    /** Calls that a careful program would not make. The answer is what the client threw or told the callback. */
    private static Object odd(JSONObject a) throws Exception {
        DefaultMQProducer p = of(a);
        String topic = a.getString("topic");
        byte[] body = "odd".getBytes();
        Message m = new Message(topic, body);
        List<Object> results = new ArrayList<>(Collections.nCopies(1, null));
        CountDownLatch told = new CountDownLatch(1);
        SendCallback callback = keep(results, 0, told);
        MessageQueueSelector thrower = (queues, message, argument) -> {
            throw new IllegalStateException("selector of the test");
        };
        try {
            switch (a.getString("kind")) {
                case "null message": p.send((Message) null); break;
                case "null body": p.send(new Message(topic, (byte[]) null)); break;
                case "empty body": p.send(new Message(topic, new byte[0])); break;
                case "null topic": p.send(new Message(null, body)); break;
                case "empty topic": p.send(new Message("", body)); break;
                case "large body": p.send(new Message(topic, new byte[4 * 1024 * 1024 + 1])); break;
                case "async null callback": p.send(m, (SendCallback) null); return null;
                case "async null queue": p.send(m, (MessageQueue) null, callback); break;
                case "async null selector": p.send(m, (MessageQueueSelector) null, null, callback); break;
                case "async throwing selector": p.send(m, thrower, null, callback); break;
                case "oneway null queue": p.sendOneway(m, (MessageQueue) null); return null;
                case "oneway null selector": p.sendOneway(m, (MessageQueueSelector) null, null); return null;
                case "oneway throwing selector": p.sendOneway(m, thrower, null); return null;
                default: throw new IllegalArgumentException(a.getString("kind"));
            }
        } catch (IllegalArgumentException e) {
            throw e;
        } catch (Exception e) {
            Map<String, Object> out = failed(e);
            out.put("thrown", true);
            return out;
        }
        if (!a.getString("kind").startsWith("async")) {
            return null;
        }
        if (!told.await(10, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the callback was never called");
        }
        return results.get(0);
    }

    /** One thread for each queue given; each sends rising numbers to its queue until told to stop, or "count" of them. */
    private static Object background(JSONObject a) throws Exception {
        Background b = new Background(of(a), a);
        BACKGROUND.put(a.getString("name"), b);
        b.threads.forEach(Thread::start);
        return null;
    }

    private static final class Background {
        final List<Object> acked = Collections.synchronizedList(new ArrayList<>());
        final List<String> unknown = Collections.synchronizedList(new ArrayList<>());
        final Map<String, Integer> errors = new ConcurrentHashMap<>();
        final List<Thread> threads = new ArrayList<>();
        volatile boolean stop;

        Background(DefaultMQProducer p, JSONObject a) {
            String topic = a.getString("topic");
            String prefix = a.getString("prefix");
            String tag = a.containsKey("tag") ? a.getString("tag") : "Tag";
            int first = a.getIntValue("first");
            int count = a.getIntValue("count", Integer.MAX_VALUE);
            long gapMs = a.getLongValue("gapMs");
            boolean insist = a.getBooleanValue("insist");
            String filler = "x".repeat(a.getIntValue("filler"));
            JSONArray queues = a.getJSONArray("queues");
            for (int t = 0; t < Math.max(1, queues == null ? 1 : queues.size()); t++) {
                MessageQueue q = queues == null ? null : Values.queue(queues.getJSONObject(t), topic);
                String name = q == null ? prefix : prefix + q.getBrokerName() + ":" + q.getQueueId() + ":";
                Thread thread = new Thread(() -> {
                    for (long i = first; i < (long) first + count && !stop; i++) {
                        String body = name + i;
                        try {
                            Message m = new Message(topic, tag, (body + filler).getBytes());
                            SendResult r = q == null ? p.send(m) : p.send(m, q);
                            acked.add(List.of(r.getSendStatus().name(), r.getMessageQueue().getBrokerName(), r.getMessageQueue().getQueueId(), r.getQueueOffset(), body));
                        } catch (Exception e) {
                            unknown.add(body);
                            errors.merge(String.valueOf(e.getMessage()).split("\n")[0], 1, Integer::sum);
                            if (insist) {
                                i--; // an application that keeps a message until it is taken
                            }
                        }
                        try {
                            Thread.sleep(gapMs);
                        } catch (InterruptedException e) {
                            return;
                        }
                    }
                });
                thread.setDaemon(true);
                threads.add(thread);
            }
        }

        Object stop() throws InterruptedException {
            stop = true;
            return join();
        }

        Object join() throws InterruptedException {
            for (Thread t : threads) {
                t.join();
            }
            return Map.of("acked", acked, "unknown", unknown);
        }
    }
}
