import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * Loads of every kind of messaging, made by Apache RocketMQ's Java client: delays, timers, retries, transactions,
 * ordered messages, pop, filters, requests. Dialogue as in Load.java, one process for all loads and both brokers.
 *
 * <pre>
 * {"op":"start", "run":NAME, "kind":.., "nameserver":.., "topic":.., "group":.., "messages":N, "threads":T, "pace":PER_SECOND}
 *     makes topic and group, starts consumer and producer, and waits until the consumer has its queues
 * {"op":"go", "run":..}         the senders start
 * {"op":"progress", "run":..}   {"acknowledged":N, "received":N}
 * {"op":"wait", "run":.., "patience":SECONDS, "settle":SECONDS}
 *     until all came, or nothing more came for "patience"; then what comes during "settle" is counted, too. Figures.
 * {"op":"end", "run":..}        its clients go
 * </pre>
 */
public final class Messaging {
    private final Map<String, MessagingRun> runs = new HashMap<>();

    private Messaging() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // libraries print, too
        Messaging messaging = new Messaging();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            JSONObject answer = new JSONObject();
            answer.put("id", command.getIntValue("id"));
            try {
                answer.put("ok", messaging.run(command));
            } catch (Exception e) {
                e.printStackTrace();
                answer.put("error", Map.of("type", e.getClass().getSimpleName(), "code", 0, "message", String.valueOf(e.getMessage())));
            }
            answers.println(answer);
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private Object run(JSONObject c) throws Exception {
        String name = c.getString("run");
        switch (c.getString("op")) {
            case "start":
                MessagingRun run = new MessagingRun(c);
                runs.put(name, run);
                run.start();
                return true;
            case "go":
                runs.get(name).go();
                return true;
            case "progress":
                return runs.get(name).progress();
            case "wait":
                return runs.get(name).await(c.getIntValue("patience"), c.getIntValue("settle"));
            case "end":
                runs.remove(name).end();
                return true;
            default:
                throw new IllegalArgumentException("no such op: " + c.getString("op"));
        }
    }
}
