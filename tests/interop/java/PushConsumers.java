import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageQueueListener;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** push.*: DefaultMQPushConsumer with a listener that keeps what it gets, can be held, and can always answer "later". */
final class PushConsumers {
    private static final Map<String, Push> ALL = new ConcurrentHashMap<>();

    private PushConsumers() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("push.start", a -> {
            Push p = new Push(a);
            p.consumer.start();
            ALL.put(a.getString("name"), p);
            return p.consumer.buildMQClientId();
        });
        ops.put("push.stop", a -> {
            Push p = ALL.remove(a.getString("name"));
            if (p != null) {
                p.held = false;
                p.consumer.shutdown();
            }
            return null;
        });
        // Stops the client but keeps what it received.
        ops.put("push.halt", a -> {
            of(a.getString("consumer")).consumer.shutdown();
            return null;
        });
        ops.put("push.subscribe", a -> {
            of(a.getString("consumer")).consumer.subscribe(a.getString("topic"), Values.selector(a.getString("expression")));
            return null;
        });
        ops.put("push.hold", a -> {
            of(a.getString("consumer")).held = a.getBooleanValue("held");
            return null;
        });
        ops.put("push.received", a -> {
            Push p = of(a.getString("consumer"));
            synchronized (p.got) {
                return Values.received(new ArrayList<>(p.got.subList(a.getIntValue("from"), p.got.size())));
            }
        });
        ops.put("push.wait", PushConsumers::await);
        ops.put("push.assigned", a -> {
            Map<String, Object> out = new LinkedHashMap<>();
            for (Object name : a.getJSONArray("consumers")) {
                List<Object> queues = new ArrayList<>();
                of((String) name).consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
                    .filter(q -> q.getTopic().equals(a.getString("topic"))).sorted().forEach(q -> queues.add(Values.queue(q)));
                out.put((String) name, queues);
            }
            return out;
        });
        ops.put("push.rebalance", a -> {
            of(a.getString("consumer")).consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().rebalanceImmediately();
            return null;
        });
        ops.put("push.changes", a -> of(a.getString("consumer")).changes);
        ops.put("push.persist", a -> {
            of(a.getString("consumer")).consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            return null;
        });
    }

    private static Push of(String name) {
        Push p = ALL.get(name);
        if (p == null) {
            throw new IllegalArgumentException("no push consumer " + name);
        }
        return p;
    }

    /** Waits until the consumers together got "count" messages (different bodies with "distinct"), or the time is over. */
    private static Object await(JSONObject a) throws InterruptedException {
        JSONArray names = a.getJSONArray("consumers");
        int count = a.getIntValue("count");
        long end = System.nanoTime() + a.getLongValue("timeoutMs") * 1_000_000L;
        while (true) {
            int seen = 0;
            Set<String> bodies = new HashSet<>();
            for (Object name : names) {
                Push p = of((String) name);
                synchronized (p.got) {
                    seen += p.got.size();
                    if (a.getBooleanValue("distinct")) {
                        p.got.forEach(m -> bodies.add(new String(m.getBody())));
                    }
                }
            }
            int reached = a.getBooleanValue("distinct") ? bodies.size() : seen;
            if (reached >= count || System.nanoTime() > end) {
                return reached;
            }
            Thread.sleep(10);
        }
    }

    private static final class Push {
        final DefaultMQPushConsumer consumer;
        final List<MessageExt> got = new ArrayList<>();
        final List<Object> changes = Collections.synchronizedList(new ArrayList<>());
        final boolean later;
        volatile boolean held;

        Push(JSONObject a) throws Exception {
            later = a.getBooleanValue("later");
            consumer = Values.client(new DefaultMQPushConsumer(a.getString("group"), a.getBooleanValue("unknown") ? new OffsetsUnknown() : null), a);
            consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf("CONSUME_FROM_" + a.getString("from")));
            consumer.setMessageModel(a.getBooleanValue("broadcast") ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
            JSONArray subscriptions = a.getJSONArray("subscriptions");
            for (int i = 0; i < subscriptions.size(); i++) {
                JSONArray pair = subscriptions.getJSONArray(i);
                consumer.subscribe(pair.getString(0), Values.selector(pair.getString(1)));
            }
            consumer.setMessageQueueListener(new MessageQueueListener() {
                @Override
                public void messageQueueChanged(String topic, Set<MessageQueue> all, Set<MessageQueue> mine) {
                    changes.add(Map.of("topic", topic, "all", all.size(), "mine", mine.size(), "part", all.containsAll(mine)));
                }
            });
            if (a.getBooleanValue("orderly")) {
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                    take(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
            } else {
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                    take(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
            }
        }

        boolean take(List<MessageExt> messages) {
            while (held) {
                try {
                    Thread.sleep(10);
                } catch (InterruptedException e) {
                    return false;
                }
            }
            if (later) {
                return false;
            }
            synchronized (got) {
                got.addAll(messages);
            }
            return true;
        }
    }

    /** Turns every answer to a query of an offset into a failure of the broker. */
    private static final class OffsetsUnknown implements RPCHook {
        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
        }

        @Override
        public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            if (request.getCode() == RequestCode.QUERY_CONSUMER_OFFSET && response != null) {
                response.setCode(ResponseCode.SYSTEM_ERROR);
            }
        }
    }
}
