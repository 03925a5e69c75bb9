import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.admin.TopicStatsTable;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** admin.*: DefaultMQAdminExt, and the client calls below it where a test has to name the broker. */
final class Admins {
    private static final Map<String, DefaultMQAdminExt> ALL = new ConcurrentHashMap<>();

    private Admins() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("admin.start", a -> {
            DefaultMQAdminExt admin = Values.client(new DefaultMQAdminExt(10_000L), a);
            admin.start();
            ALL.put(a.getString("name"), admin);
            return null;
        });
        ops.put("admin.stop", a -> {
            DefaultMQAdminExt admin = ALL.remove(a.getString("name"));
            if (admin != null) {
                admin.shutdown();
            }
            return null;
        });
        ops.put("admin.masters", a -> masters(of(a)));
        ops.put("admin.topic", Admins::topic);
        ops.put("admin.group", a -> {
            for (String address : masters(of(a)).values()) {
                SubscriptionGroupConfig g = new SubscriptionGroupConfig();
                g.setGroupName(a.getString("group"));
                of(a).createAndUpdateSubscriptionGroupConfig(address, g);
            }
            return null;
        });
        ops.put("admin.route", a -> route(of(a).examineTopicRouteInfo(a.getString("topic"))));
        ops.put("admin.stats", a -> stats(of(a).examineTopicStats(a.getString("topic"))));
        ops.put("admin.consumeStats", Admins::consumeStats);
        ops.put("admin.consumers", a -> {
            List<String> ids = new ArrayList<>();
            ConsumerConnection c = of(a).examineConsumerConnectionInfo(a.getString("group"));
            c.getConnectionSet().forEach(x -> ids.add(x.getClientId()));
            return ids;
        });
        ops.put("admin.view", a -> Values.received(of(a).viewMessage(a.getString("topic"), a.getString("messageId"))));
        ops.put("admin.viewAt", a -> Values.received(api(a).viewMessage(a.getString("address"), a.getString("topic"), a.getLongValue("offset"), 10_000)));
        ops.put("admin.viewAll", Admins::viewAll);
        ops.put("admin.query", a -> {
            QueryResult r = of(a).queryMessage(a.getString("topic"), a.getString("key"), a.getIntValue("max"), a.getLongValue("begin"), a.getLongValue("end"));
            return Values.received(r.getMessageList());
        });
        ops.put("admin.offsets", a -> {
            MessageQueue q = Values.queue(a.getJSONObject("queue"), null);
            Map<String, Object> m = new LinkedHashMap<>();
            m.put("min", of(a).minOffset(q));
            m.put("max", of(a).maxOffset(q));
            m.put("earliest", of(a).earliestMsgStoreTime(q));
            return m;
        });
        ops.put("admin.max", a -> of(a).maxOffset(Values.queue(a.getJSONObject("queue"), null)));
        ops.put("admin.search", a -> {
            MessageQueue q = Values.queue(a.getJSONObject("queue"), null);
            long time = a.getLongValue("time");
            return a.getBooleanValue("upper") ? of(a).searchUpperBoundaryOffset(q, time) : of(a).searchLowerBoundaryOffset(q, time);
        });
        ops.put("admin.reset", Admins::reset);
        ops.put("admin.putKv", a -> {
            of(a).createAndUpdateKvConfig(a.getString("namespace"), a.getString("key"), a.getString("value"));
            return null;
        });
        ops.put("admin.topics", a -> of(a).fetchAllTopicList().getTopicList());
    }

    static DefaultMQAdminExt of(JSONObject a) {
        return ALL.get(a.getString("admin"));
    }

    private static MQClientAPIImpl api(JSONObject a) {
        return of(a).getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
    }

    private static Map<String, String> masters(DefaultMQAdminExt admin) throws Exception {
        Map<String, String> out = new TreeMap<>();
        for (BrokerData b : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            if (b.getBrokerAddrs().containsKey(0L)) {
                out.put(b.getBrokerName(), b.getBrokerAddrs().get(0L));
            }
        }
        return out;
    }

    /** Makes a topic on the masters named ("brokers", or all), and waits until its statistics show all its queues. */
    private static Object topic(JSONObject a) throws Exception {
        DefaultMQAdminExt admin = of(a);
        int queues = a.getIntValue("queues");
        int wanted = 0;
        for (Map.Entry<String, String> master : masters(admin).entrySet()) {
            if (a.containsKey("brokers") && !a.getJSONArray("brokers").contains(master.getKey())) {
                continue;
            }
            TopicConfig t = new TopicConfig(a.getString("topic"), queues, queues, a.getIntValue("perm", 6));
            Map<String, String> attributes = new HashMap<>();
            if (a.getJSONObject("attributes") != null) {
                a.getJSONObject("attributes").forEach((k, v) -> attributes.put("+" + k, (String) v));
            }
            t.setAttributes(attributes);
            admin.createAndUpdateTopicConfig(master.getValue(), t);
            wanted += queues;
        }
        long end = System.nanoTime() + 30_000_000_000L;
        while (true) {
            try {
                if (admin.examineTopicStats(a.getString("topic")).getOffsetTable().size() == wanted) {
                    return wanted;
                }
            } catch (Exception e) {
                if (System.nanoTime() > end) {
                    throw e;
                }
            }
            if (System.nanoTime() > end) {
                throw new IllegalStateException("topic " + a.getString("topic") + " never showed " + wanted + " queues");
            }
            Thread.sleep(20);
        }
    }

    private static Object route(TopicRouteData route) {
        List<Object> brokers = new ArrayList<>();
        route.getBrokerDatas().forEach(b -> {
            Map<String, String> addresses = new TreeMap<>();
            b.getBrokerAddrs().forEach((id, address) -> addresses.put(String.valueOf(id), address));
            brokers.add(Map.of("name", b.getBrokerName(), "cluster", b.getCluster(), "addresses", addresses));
        });
        List<Object> queues = new ArrayList<>();
        route.getQueueDatas().forEach(q -> queues.add(Map.of("broker", q.getBrokerName(), "read", q.getReadQueueNums(), "write", q.getWriteQueueNums(), "perm", q.getPerm())));
        return Map.of("brokers", brokers, "queues", queues);
    }

    private static Object stats(TopicStatsTable table) {
        List<Object> out = new ArrayList<>();
        for (Map.Entry<MessageQueue, TopicOffset> e : new TreeMap<>(table.getOffsetTable()).entrySet()) {
            Map<String, Object> m = Values.queue(e.getKey());
            m.put("min", e.getValue().getMinOffset());
            m.put("max", e.getValue().getMaxOffset());
            m.put("updated", e.getValue().getLastUpdateTimestamp());
            out.add(m);
        }
        return out;
    }

    private static Object consumeStats(JSONObject a) throws Exception {
        ConsumeStats s = a.containsKey("address")
            ? of(a).examineConsumeStats(a.getString("address"), a.getString("group"), a.getString("topic"), 10_000L)
            : of(a).examineConsumeStats(a.getString("group"), a.getString("topic"));
        List<Object> queues = new ArrayList<>();
        for (Map.Entry<MessageQueue, OffsetWrapper> e : new TreeMap<>(s.getOffsetTable()).entrySet()) {
            Map<String, Object> m = Values.queue(e.getKey());
            m.put("brokerOffset", e.getValue().getBrokerOffset());
            m.put("consumerOffset", e.getValue().getConsumerOffset());
            m.put("pullOffset", e.getValue().getPullOffset());
            m.put("updated", e.getValue().getLastTimestamp());
            queues.add(m);
        }
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("queues", queues);
        out.put("lag", s.computeTotalDiff());
        out.put("inFlight", s.computeInflightTotalDiff());
        return out;
    }

    /** Views many log offsets of one broker; an entry is a message, or the error that the view ended in. */
    private static Object viewAll(JSONObject a) throws Exception {
        List<Object> out = new ArrayList<>();
        for (Object offset : a.getJSONArray("offsets")) {
            try {
                out.add(Values.received(api(a).viewMessage(a.getString("address"), a.getString("topic"), ((Number) offset).longValue(), 10_000)));
            } catch (Exception e) {
                out.add(Map.of("error", Driver.error(e)));
            }
        }
        return out;
    }

    /** Request 222 to one broker: one queue to an offset ("queue" and "offset"), or all queues by "time". */
    private static Object reset(JSONObject a) throws Exception {
        Map<MessageQueue, Long> table = a.containsKey("offset")
            ? api(a).invokeBrokerToResetOffset(a.getString("address"), a.getString("topic"), a.getString("group"), -1L, a.getIntValue("queue"), a.getLong("offset"), 10_000)
            : api(a).invokeBrokerToResetOffset(a.getString("address"), a.getString("topic"), a.getString("group"), a.getLongValue("time"), true, 10_000);
        List<Object> out = new ArrayList<>();
        for (Map.Entry<MessageQueue, Long> e : new TreeMap<>(table).entrySet()) {
            Map<String, Object> m = Values.queue(e.getKey());
            m.put("offset", e.getValue());
            out.add(m);
        }
        return out;
    }
}
