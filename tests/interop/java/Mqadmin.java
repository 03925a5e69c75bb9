import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** mqadmin.run: one command of Apache's mqadmin in this JVM, and all that it prints. A start of a JVM would cost seconds. */
final class Mqadmin {
    private Mqadmin() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("mqadmin.run", a -> run(a.getList("args", String.class).toArray(new String[0])));
    }

    /** One at a time: what is printed is caught by taking the place of the JVM's output. */
    private static synchronized String run(String[] args) throws Exception {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream caught = new ByteArrayOutputStream();
        try (PrintStream mine = new PrintStream(caught, true, "UTF-8")) {
            System.setOut(mine);
            System.setErr(mine);
            forgetCommands();
            MQAdminStartup.main0(args, new NoHook());
        } finally {
            System.setOut(out);
            System.setErr(err);
            System.clearProperty(MixAll.NAMESRV_ADDR_PROPERTY);
        }
        return caught.toString(StandardCharsets.UTF_8);
    }

    /** The tool is made to run once: its commands keep clients that were shut down. */
    private static void forgetCommands() throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(field.getType())) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /** Without a hook the tool looks for a file of keys in its installation. */
    private static final class NoHook implements RPCHook {
        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
        }

        @Override
        public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
        }
    }
}
