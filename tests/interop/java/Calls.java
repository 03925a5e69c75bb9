import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** calls.*, reply.*, traced.*: what a broker asks of its clients, requests and replies, and clients that trace. */
final class Calls {
    private static final Map<String, Replier> REPLIERS = new ConcurrentHashMap<>();
    private static final Map<String, DefaultMQProducer> TRACED = new ConcurrentHashMap<>();
    private static final Map<String, Orderly> ORDERLY = new ConcurrentHashMap<>();
    private static final Map<String, DefaultMQPushConsumer> TRACED_CONSUMERS = new ConcurrentHashMap<>();

    private Calls() {
    }

    static void register(Map<String, Driver.Op> ops) {
        // Read when the client's class is loaded.
        System.setProperty("com.rocketmq.recall.default.trace.enable", "true");
        ops.put("calls.runningInfo", Calls::runningInfo);
        ops.put("calls.consumeDirectly", a -> {
            ConsumeMessageDirectlyResult r = admin(a).consumeMessageDirectly(a.getString("group"), a.getString("clientId"), a.getString("topic"), a.getString("messageId"));
            Map<String, Object> m = new LinkedHashMap<>();
            m.put("result", String.valueOf(r.getConsumeResult()));
            m.put("order", r.isOrder());
            m.put("autoCommit", r.isAutoCommit());
            m.put("remark", r.getRemark());
            return m;
        });
        ops.put("calls.status", Calls::status);
        ops.put("request.sync", a -> Values.received((MessageExt) Producers.of(a).request(Values.message(a.getJSONObject("message")), a.getLongValue("ttlMs"))));
        ops.put("request.async", Calls::async);
        ops.put("reply.start", a -> {
            REPLIERS.put(a.getString("name"), new Replier(a));
            return null;
        });
        ops.put("reply.results", a -> new ArrayList<>(REPLIERS.get(a.getString("name")).results));
        ops.put("reply.stop", a -> {
            Replier r = REPLIERS.remove(a.getString("name"));
            if (r != null) {
                r.consumer.shutdown();
                r.producer.shutdown();
            }
            return null;
        });
        ops.put("traced.start", a -> {
            DefaultMQProducer p = Values.client(new DefaultMQProducer(a.getString("group"), true, a.getString("traceTopic")), a);
            p.start();
            TRACED.put(a.getString("name"), p);
            return null;
        });
        ops.put("traced.send", a -> Values.sent(TRACED.get(a.getString("producer")).send(Values.message(a.getJSONObject("message")))));
        ops.put("traced.recall", a -> TRACED.get(a.getString("producer")).recallMessage(a.getString("topic"), a.getString("handle")));
        ops.put("traced.stop", a -> {
            DefaultMQProducer p = TRACED.remove(a.getString("name"));
            if (p != null) {
                p.shutdown();
            }
            return null;
        });
        ops.put("orderly.start", a -> {
            Orderly o = new Orderly(a);
            o.consumer.start();
            ORDERLY.put(a.getString("name"), o);
            return o.consumer.buildMQClientId();
        });
        ops.put("orderly.received", a -> {
            Orderly o = ORDERLY.get(a.getString("consumer"));
            synchronized (o.got) {
                return new ArrayList<>(o.got);
            }
        });
        ops.put("orderly.stop", a -> {
            Orderly o = ORDERLY.remove(a.getString("name"));
            if (o != null) {
                o.consumer.shutdown();
            }
            return null;
        });
        // Stops the client but keeps what it received.
        ops.put("orderly.halt", a -> {
            ORDERLY.get(a.getString("consumer")).consumer.shutdown();
            return null;
        });
        ops.put("tracedConsumer.start", Calls::tracedConsumer);
        ops.put("tracedConsumer.stop", a -> {
            DefaultMQPushConsumer c = TRACED_CONSUMERS.remove(a.getString("name"));
            if (c != null) {
                c.shutdown();
            }
            return null;
        });
    }

    private static DefaultMQAdminExt admin(JSONObject a) {
        return Admins.of(a);
    }

    private static Object runningInfo(JSONObject a) throws Exception {
        ConsumerRunningInfo info = admin(a).getConsumerRunningInfo(a.getString("group"), a.getString("clientId"), a.getBooleanValue("jstack"));
        Map<String, Object> m = new LinkedHashMap<>();
        Map<String, String> properties = new TreeMap<>();
        info.getProperties().forEach((k, v) -> properties.put(String.valueOf(k), String.valueOf(v)));
        m.put("properties", properties);
        List<Object> queues = new ArrayList<>();
        info.getMqTable().keySet().forEach(q -> queues.add(Values.queue(q)));
        m.put("queues", queues);
        List<String> topics = new ArrayList<>();
        info.getSubscriptionSet().forEach(s -> topics.add(s.getTopic()));
        m.put("topics", topics);
        m.put("jstack", info.getJstack());
        return m;
    }

    private static Object status(JSONObject a) throws Exception {
        Map<String, Map<MessageQueue, Long>> table = admin(a).getConsumeStatus(a.getString("topic"), a.getString("group"), a.getString("clientId"));
        Map<String, Object> out = new TreeMap<>();
        table.forEach((client, offsets) -> {
            List<Object> rows = new ArrayList<>();
            new TreeMap<>(offsets).forEach((q, offset) -> {
                Map<String, Object> row = Values.queue(q);
                row.put("offset", offset);
                rows.add(row);
            });
            out.put(client, rows);
        });
        return out;
    }

    private static Object async(JSONObject a) throws Exception {
        CompletableFuture<Message> answer = new CompletableFuture<>();
        Producers.of(a).request(Values.message(a.getJSONObject("message")), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) {  // the client also says so when the request was merely sent
                    answer.complete(message);
                }
            }

            @Override
            public void onException(Throwable e) {
                answer.completeExceptionally(e);
            }
        }, a.getLongValue("ttlMs"));
        try {
            return Values.received((MessageExt) answer.get(a.getLongValue("ttlMs") + 20_000, TimeUnit.MILLISECONDS));
        } catch (java.util.concurrent.ExecutionException e) {
            throw (Exception) e.getCause();
        }
    }

    private static Object tracedConsumer(JSONObject a) throws Exception {
        DefaultMQPushConsumer c = Values.client(new DefaultMQPushConsumer(a.getString("group"), true, a.getString("traceTopic")), a);
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.subscribe(a.getString("topic"), "*");
        c.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        c.start();
        TRACED_CONSUMERS.put(a.getString("name"), c);
        return null;
    }

    /** An orderly consumer that keeps for each message its queue, its body, and when (ms) its work began and ended. */
    private static final class Orderly {
        final DefaultMQPushConsumer consumer;
        final List<Object> got = new ArrayList<>();

        Orderly(JSONObject a) throws Exception {
            consumer = Values.client(new DefaultMQPushConsumer(a.getString("group")), a);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(a.getString("topic"), "*");
            long workMs = a.getLongValue("workMs");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt m : messages) {
                    long began = System.currentTimeMillis();
                    try {
                        Thread.sleep(workMs);
                    } catch (InterruptedException e) {
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    synchronized (got) {
                        got.add(List.of(m.getQueueId(), new String(m.getBody(), StandardCharsets.UTF_8), began, System.currentTimeMillis()));
                    }
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        }
    }

    /** A consumer that answers each request with its body in capitals, or not at all when that is "SILENCE". */
    private static final class Replier {
        final DefaultMQProducer producer;
        final DefaultMQPushConsumer consumer;
        final List<Object> results = Collections.synchronizedList(new ArrayList<>());

        Replier(JSONObject a) throws Exception {
            producer = Values.client(new DefaultMQProducer(a.getString("group") + "_replies"), a);
            producer.start();
            consumer = Values.client(new DefaultMQPushConsumer(a.getString("group")), a);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(a.getString("topic"), "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(this::answer);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }

        private void answer(MessageExt request) {
            String body = new String(request.getBody(), StandardCharsets.UTF_8).toUpperCase();
            if (body.startsWith("SILENCE")) {
                return;
            }
            try {
                Message reply = MessageUtil.createReplyMessage(request, body.getBytes(StandardCharsets.UTF_8));
                results.add(Values.sent(producer.send(reply, 15_000)));
            } catch (Exception e) {
                results.add(Map.of("error", Driver.error(e)));
            }
        }
    }
}
