import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/**
 * Apache RocketMQ's own Java clients, driven from outside: one JVM for a whole test session.
 *
 * <p>In: one JSON object a line, {"id": 1, "op": "producer.start", ...arguments}. Out: one JSON object a line,
 * {"id": 1, "ok": value} or {"id": 1, "error": {"type", "code", "message"}}. Each command runs on its own thread, so
 * a slow one holds nobody up and answers may come in any order. Everything else that a library prints goes to stderr.
 * java_client.py is the other end.
 */
public final class Driver {
    /** One command: arguments in, something that JSON can hold out. */
    interface Op {
        Object run(JSONObject args) throws Throwable;
    }

    private static final Map<String, Op> OPS = new HashMap<>();

    private Driver() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, "UTF-8");
        System.setOut(System.err);
        Producers.register(OPS);
        PushConsumers.register(OPS);
        Failing.register(OPS);
        PullConsumers.register(OPS);
        Admins.register(OPS);
        Stores.register(OPS);
        Mqadmin.register(OPS);
        Filters.register(OPS);
        Calls.register(OPS);
        Timers.register(OPS);
        Transactions.register(OPS);
        Ending.start();
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            threads.submit(() -> answer(command, out));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(JSONObject command, PrintStream out) {
        Map<String, Object> reply = new LinkedHashMap<>();
        reply.put("id", command.get("id"));
        try {
            Op op = OPS.get(command.getString("op"));
            if (op == null) {
                throw new IllegalArgumentException("unknown op " + command.getString("op"));
            }
            reply.put("ok", Ending.watched(op, command));
        } catch (Throwable e) {
            reply.put("error", error(e));
        }
        String text;
        try {
            text = JSON.toJSONString(reply, JSONWriter.Feature.WriteMapNullValue);
        } catch (Throwable e) {
            e.printStackTrace();
            reply.remove("ok");
            reply.put("error", error(e));
            text = JSON.toJSONString(reply);
        }
        synchronized (out) {
            out.println(text);
            out.flush();
        }
    }

    /** Kind, code of the peers (0 when there is none) and text of an exception. */
    static Map<String, Object> error(Throwable e) {
        Map<String, Object> m = new LinkedHashMap<>();
        m.put("type", e.getClass().getSimpleName());
        int code = 0;
        if (e instanceof MQBrokerException) {
            code = ((MQBrokerException) e).getResponseCode();
        } else if (e instanceof MQClientException) {
            code = ((MQClientException) e).getResponseCode();
        }
        m.put("code", code);
        m.put("message", String.valueOf(e.getMessage()));
        return m;
    }
}
