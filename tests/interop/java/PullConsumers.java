import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.impl.consumer.PullAPIWrapper;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** pull.* (DefaultMQPullConsumer) and lite.* (DefaultLitePullConsumer): consumers that drive their own pulls. */
@SuppressWarnings("deprecation")
final class PullConsumers {
    private static final Map<String, DefaultMQPullConsumer> PULLS = new ConcurrentHashMap<>();
    private static final Map<String, DefaultLitePullConsumer> LITES = new ConcurrentHashMap<>();

    private PullConsumers() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("pull.start", a -> {
            DefaultMQPullConsumer c = Values.client(new DefaultMQPullConsumer(a.getString("group")), a);
            c.start();
            if (a.containsKey("brokerId")) {
                PullAPIWrapper pulls = c.getDefaultMQPullConsumerImpl().getPullAPIWrapper();
                pulls.setConnectBrokerByUser(true);
                pulls.setDefaultBrokerId(a.getLongValue("brokerId"));
            }
            PULLS.put(a.getString("name"), c);
            return null;
        });
        ops.put("pull.stop", a -> {
            DefaultMQPullConsumer c = PULLS.remove(a.getString("name"));
            if (c != null) {
                c.shutdown();
            }
            return null;
        });
        ops.put("pull.queues", a -> queues(pull(a).fetchSubscribeMessageQueues(a.getString("topic"))));
        ops.put("pull.pull", a -> {
            MessageQueue q = Values.queue(a.getJSONObject("queue"), null);
            PullResult r = a.getBooleanValue("block")
                ? pull(a).pullBlockIfNotFound(q, a.getString("expression"), a.getLongValue("offset"), a.getIntValue("max"))
                : pull(a).pull(q, Values.selector(a.getString("expression")), a.getLongValue("offset"), a.getIntValue("max"));
            return result(r);
        });
        // A broker's version comes with the answer to a heartbeat, and without it the client refuses SQL92.
        ops.put("pull.beat", a -> {
            MQClientInstance client = pull(a).getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
            client.updateTopicRouteInfoFromNameServer(a.getString("topic"));
            return client.sendHeartbeatToAllBrokerWithLock();
        });
        ops.put("pull.drain", PullConsumers::drain);
        ops.put("pull.commit", a -> {
            MessageQueue q = Values.queue(a.getJSONObject("queue"), null);
            pull(a).updateConsumeOffset(q, a.getLongValue("offset"));
            pull(a).getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(q, a.getLongValue("offset"), false);
            return null;
        });
        ops.put("pull.committed", a -> pull(a).fetchConsumeOffset(Values.queue(a.getJSONObject("queue"), null), true));

        ops.put("lite.start", PullConsumers::startLite);
        ops.put("lite.stop", a -> {
            DefaultLitePullConsumer c = LITES.remove(a.getString("name"));
            if (c != null) {
                c.shutdown();
            }
            return null;
        });
        ops.put("lite.poll", a -> Values.received(lite(a).poll(a.getLongValue("timeoutMs"))));
        ops.put("lite.queues", a -> queues(lite(a).fetchMessageQueues(a.getString("topic"))));
        ops.put("lite.assign", a -> {
            List<MessageQueue> queues = new ArrayList<>();
            JSONArray given = a.getJSONArray("queues");
            for (int i = 0; i < given.size(); i++) {
                queues.add(Values.queue(given.getJSONObject(i), null));
            }
            lite(a).assign(queues);
            return null;
        });
        ops.put("lite.seek", a -> {
            MessageQueue q = Values.queue(a.getJSONObject("queue"), null);
            String to = a.getString("to");
            if (to.equals("begin")) {
                lite(a).seekToBegin(q);
            } else if (to.equals("end")) {
                lite(a).seekToEnd(q);
            } else {
                lite(a).seek(q, Long.parseLong(to));
            }
            return null;
        });
        ops.put("lite.commit", a -> {
            lite(a).commit();
            return null;
        });
        ops.put("lite.committed", a -> lite(a).committed(Values.queue(a.getJSONObject("queue"), null)));
    }

    private static Object startLite(JSONObject a) throws Exception {
        DefaultLitePullConsumer c = Values.client(new DefaultLitePullConsumer(a.getString("group")), a);
        c.setConsumeFromWhere(ConsumeFromWhere.valueOf("CONSUME_FROM_" + a.getString("from")));
        c.setAutoCommit(a.getBooleanValue("autoCommit"));
        c.setPullBatchSize(a.getIntValue("batch", 10));
        JSONArray subscriptions = a.getJSONArray("subscriptions");
        for (int i = 0; subscriptions != null && i < subscriptions.size(); i++) {
            c.subscribe(subscriptions.getJSONArray(i).getString(0), Values.selector(subscriptions.getJSONArray(i).getString(1)));
        }
        c.start();
        LITES.put(a.getString("name"), c);
        return null;
    }

    /** Reads every queue given from its offset up to "no new message", and hands out all that was there. */
    private static Object drain(JSONObject a) throws Exception {
        List<MessageExt> all = new ArrayList<>();
        int unmatched = 0;
        JSONArray given = a.getJSONArray("queues");
        for (int i = 0; i < given.size(); i++) {
            JSONObject one = given.getJSONObject(i);
            MessageQueue q = Values.queue(one, null);
            long offset = one.getLongValue("offset");
            while (true) {
                PullResult r = pull(a).pull(q, Values.selector(a.getString("expression")), offset, 32);
                if (r.getPullStatus() == PullStatus.FOUND) {
                    all.addAll(r.getMsgFoundList());
                } else if (r.getPullStatus() == PullStatus.NO_MATCHED_MSG) {
                    unmatched++;
                } else {
                    break;
                }
                if (r.getNextBeginOffset() <= offset) {
                    throw new IllegalStateException("next offset " + r.getNextBeginOffset() + " after " + offset + " of " + q + ": " + r.getPullStatus());
                }
                offset = r.getNextBeginOffset();
            }
        }
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("messages", Values.received(all));
        out.put("unmatched", unmatched);
        return out;
    }

    private static Object result(PullResult r) {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("status", r.getPullStatus().name());
        m.put("next", r.getNextBeginOffset());
        m.put("min", r.getMinOffset());
        m.put("max", r.getMaxOffset());
        m.put("messages", r.getMsgFoundList() == null ? List.of() : Values.received(r.getMsgFoundList()));
        return m;
    }

    private static List<Object> queues(Iterable<MessageQueue> queues) {
        List<MessageQueue> sorted = new ArrayList<>();
        queues.forEach(sorted::add);
        sorted.sort(null);
        List<Object> out = new ArrayList<>();
        sorted.forEach(q -> out.add(Values.queue(q)));
        return out;
    }

    private static DefaultMQPullConsumer pull(JSONObject a) {
        return PULLS.get(a.getString("consumer"));
    }

    private static DefaultLitePullConsumer lite(JSONObject a) {
        return LITES.get(a.getString("consumer"));
    }
}
