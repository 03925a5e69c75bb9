import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** failing.*: DefaultMQPushConsumer whose listener fails a message until it has come again so often. */
final class Failing {
    private static final Map<String, Failing> ALL = new ConcurrentHashMap<>();

    private final DefaultMQPushConsumer consumer;
    private final List<Map<String, Object>> tries = new ArrayList<>();
    private final int failures;
    private final int delayLevel;
    private final long workMs;

    private Failing(JSONObject a) throws Exception {
        failures = a.getIntValue("failures");
        delayLevel = a.getIntValue("delayLevel");
        workMs = a.getLongValue("workMs");
        consumer = Values.client(new DefaultMQPushConsumer(a.getString("group")), a);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMessageModel(a.getBooleanValue("broadcast") ? MessageModel.BROADCASTING : MessageModel.CLUSTERING);
        if (a.containsKey("maxReconsumeTimes")) {
            consumer.setMaxReconsumeTimes(a.getIntValue("maxReconsumeTimes"));
        }
        consumer.setSuspendCurrentQueueTimeMillis(a.getLongValue("suspendMs", 200));
        consumer.setAwaitTerminationMillisWhenShutdown(a.getLongValue("awaitMs"));
        // The broker assigns queues then, and says whether they are pulled or popped.
        consumer.setClientRebalance(!a.getBooleanValue("assigned"));
        consumer.subscribe(a.getString("topic"), Values.selector(a.getString("expression")));
        if (a.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                taken(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(delayLevel);
                return taken(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("failing.start", a -> {
            Failing f = new Failing(a);
            f.consumer.start();
            ALL.put(a.getString("name"), f);
            return null;
        });
        ops.put("failing.stop", a -> {
            Failing f = ALL.get(a.getString("name"));
            if (f != null) {
                f.consumer.shutdown();
            }
            return null;
        });
        ops.put("failing.tries", a -> {
            Failing f = ALL.get(a.getString("name"));
            synchronized (f.tries) {
                return new ArrayList<>(f.tries);
            }
        });
    }

    private boolean taken(List<MessageExt> messages) {
        boolean all = true;
        for (MessageExt m : messages) {
            boolean fails = failures < 0 || m.getReconsumeTimes() < failures;
            all &= !fails;
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("body", new String(m.getBody()));
            one.put("topic", m.getTopic());
            one.put("msgId", m.getMsgId());
            one.put("times", m.getReconsumeTimes());
            one.put("born", m.getBornTimestamp());
            one.put("stored", m.getStoreTimestamp());
            one.put("at", System.currentTimeMillis());
            one.put("failed", fails);
            one.put("properties", m.getProperties());
            synchronized (tries) {
                tries.add(one);
            }
        }
        if (workMs > 0) {
            try {
                Thread.sleep(workMs);
            } catch (InterruptedException e) {
                // The thread does not stay interrupted: the client would not find the message among its own then, and
                // might commit the offset behind it without sending it back.
            }
        }
        return all;
    }
}
