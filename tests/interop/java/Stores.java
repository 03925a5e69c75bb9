import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;

/**
 * Apache's broker up to the end of its recovery: tables and store are loaded, no port is opened and nothing is served,
 * so the store is seen as the recovery left it, before a delayed message or a timer adds to it.
 */
final class Stores {
    private Stores() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("store.recover", Stores::recover);
    }

    /** conf: path of a broker.conf. Whether the broker would start, the log's bounds, and all queues with their entries. */
    private static Object recover(JSONObject args) throws Throwable {
        BrokerController broker = BrokerStartup.buildBrokerController(
            BrokerStartup.configFileToConfigContext(args.getString("conf")));
        Map<String, Object> found = new LinkedHashMap<>();
        boolean loaded = broker.initialize();
        found.put("loaded", loaded);
        if (!loaded) {
            return found;
        }
        MessageStore store = broker.getMessageStore();
        found.put("logStart", store.getMinPhyOffset());
        found.put("logEnd", store.getMaxPhyOffset());
        List<Object> queues = new ArrayList<>();
        store.getQueueStore().getConsumeQueueTable().forEach((topic, byId) -> byId.forEach((id, queue) ->
            queues.add(describe(store, topic, id, queue))));
        found.put("queues", queues);
        return found;
    }

    private static Map<String, Object> describe(MessageStore store, String topic, int id, ConsumeQueueInterface queue) {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("topic", topic);
        m.put("queue", id);
        List<Object> entries = new ArrayList<>();
        m.put("entries", entries);
        if (queue.getTotalSize() == 0) {
            // Many of the calls below throw in a batch queue whose files are all gone.
            m.put("min", 0);
            m.put("max", 0);
            return m;
        }
        m.put("min", queue.getMinOffsetInQueue());
        m.put("max", queue.getMaxOffsetInQueue());
        ReferredIterator<CqUnit> units = queue.iterateFrom(queue.getMinOffsetInQueue());
        while (units != null && units.hasNext()) {
            CqUnit unit = units.next();
            entries.add(List.of(unit.getQueueOffset(), unit.getPos(), unit.getSize()));
        }
        if (units != null) {
            units.release();
        }
        return m;
    }
}
