import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** timers.*: messages that wait in each of the ways that a Java producer has, and recalls of them. */
final class Timers {
    private Timers() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("timers.send", a -> {
            DefaultMQProducer producer = Producers.of(a);
            Message message = new Message(a.getString("topic"), a.getString("body").getBytes(StandardCharsets.UTF_8));
            long value = a.getLongValue("value");
            switch (a.getString("kind")) {
                case "plain":
                    break;
                case "level":
                    message.setDelayTimeLevel((int) value);
                    break;
                case "ms":
                    message.setDelayTimeMs(value);
                    break;
                case "sec":
                    message.setDelayTimeSec(value);
                    break;
                case "at":
                    message.setDeliverTimeMs(value);
                    break;
                default:
                    throw new IllegalArgumentException(a.getString("kind"));
            }
            SendResult result = producer.send(message);
            Map<String, Object> out = new LinkedHashMap<>();
            out.put("status", result.getSendStatus().name());
            out.put("msgId", result.getMsgId());
            out.put("handle", result.getRecallHandle());
            return out;
        });
        ops.put("timers.recall", a -> Producers.of(a).recallMessage(a.getString("topic"), a.getString("handle")));
    }
}
