import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Values that cross the border: JSON to the client's objects and back. */
final class Values {
    private Values() {
    }

    /** What every client of the tests has: its own instance name, and routes refreshed every 100 ms. */
    static <C extends ClientConfig> C client(C client, JSONObject a) {
        client.setNamesrvAddr(a.getString("ns"));
        client.setInstanceName(a.getString("instance"));
        client.setPollNameServerInterval(a.getIntValue("pollMs", 100));
        client.setPersistConsumerOffsetInterval(a.getIntValue("persistMs", 500));
        client.setVipChannelEnabled(a.getBooleanValue("vip"));
        return client;
    }

    /** "sql:" and a condition, or else a tag expression. */
    static MessageSelector selector(String expression) {
        return expression != null && expression.startsWith("sql:")
            ? MessageSelector.bySql(expression.substring(4)) : MessageSelector.byTag(expression);
    }

    static MessageQueue queue(JSONObject q, String topic) {
        return new MessageQueue(q.containsKey("topic") ? q.getString("topic") : topic, q.getString("broker"), q.getIntValue("queue"));
    }

    static Map<String, Object> queue(MessageQueue q) {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("topic", q.getTopic());
        m.put("broker", q.getBrokerName());
        m.put("queue", q.getQueueId());
        return m;
    }

    static List<Message> messages(JSONArray specs) {
        List<Message> out = new ArrayList<>();
        for (int i = 0; i < specs.size(); i++) {
            out.add(message(specs.getJSONObject(i)));
        }
        return out;
    }

    /** "body" is text; "random" is a number of incompressible bytes instead. */
    static Message message(JSONObject s) {
        byte[] body;
        if (s.containsKey("random")) {
            body = new byte[s.getIntValue("random")];
            new Random(s.getLongValue("seed")).nextBytes(body);
        } else {
            body = s.getString("body").getBytes(StandardCharsets.UTF_8);
        }
        Message m = new Message(s.getString("topic"), body);
        if (s.containsKey("tags")) {
            m.setTags(s.getString("tags"));
        }
        if (s.containsKey("keys")) {
            m.setKeys(s.getString("keys"));
        }
        if (s.containsKey("flag")) {
            m.setFlag(s.getIntValue("flag"));
        }
        if (s.containsKey("wait")) {
            m.setWaitStoreMsgOK(s.getBooleanValue("wait"));
        }
        if (s.containsKey("buyer")) {
            m.setBuyerId(s.getString("buyer"));
        }
        if (s.containsKey("delayLevel")) {
            m.setDelayTimeLevel(s.getIntValue("delayLevel"));
        }
        JSONObject props = s.getJSONObject("props");
        if (props != null) {
            props.forEach((k, v) -> m.putUserProperty(k, (String) v));
        }
        return m;
    }

    static Map<String, Object> sent(SendResult r) {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("status", r.getSendStatus().name());
        m.put("msgId", r.getMsgId());
        m.put("offsetMsgId", r.getOffsetMsgId());
        m.put("broker", r.getMessageQueue().getBrokerName());
        m.put("queue", r.getMessageQueue().getQueueId());
        m.put("queueOffset", r.getQueueOffset());
        m.put("transactionId", r.getTransactionId());
        m.put("region", r.getRegionId());
        return m;
    }

    static List<Object> received(Iterable<MessageExt> all) {
        List<Object> out = new ArrayList<>();
        for (MessageExt m : all) {
            out.add(received(m));
        }
        return out;
    }

    static Map<String, Object> received(MessageExt x) {
        byte[] body = x.getBody() == null ? new byte[0] : x.getBody();
        CRC32 crc = new CRC32();
        crc.update(body);
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("topic", x.getTopic());
        m.put("broker", x.getBrokerName());
        m.put("queue", x.getQueueId());
        m.put("queueOffset", x.getQueueOffset());
        m.put("logOffset", x.getCommitLogOffset());
        m.put("msgId", x.getMsgId());
        m.put("body", body.length <= 4096 ? new String(body, StandardCharsets.UTF_8) : null);
        m.put("bodyLength", body.length);
        m.put("bodyCrc32", crc.getValue());
        m.put("storeSize", x.getStoreSize());
        m.put("flag", x.getFlag());
        m.put("sysFlag", x.getSysFlag());
        m.put("bornTimestamp", x.getBornTimestamp());
        m.put("bornHost", String.valueOf(x.getBornHost()));
        m.put("storeTimestamp", x.getStoreTimestamp());
        m.put("storeHost", String.valueOf(x.getStoreHost()));
        m.put("reconsumeTimes", x.getReconsumeTimes());
        m.put("preparedTransactionOffset", x.getPreparedTransactionOffset());
        m.put("properties", new TreeMap<>(x.getProperties()));
        return m;
    }
}
