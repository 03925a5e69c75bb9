import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Clients that are shut down end at once.
 *
 * <p>At its end a client waits for a thread that looks for events of connections, and for up to 3 s does not look whether it
 * should stop. Where a command waits for that, such threads are woken; one of another client goes on.
 */
final class Ending {
    private static final long EVERY_MS = 20;
    private static final Set<Thread> COMMANDS = ConcurrentHashMap.newKeySet();

    private Ending() {
    }

    static void start() {
        Thread waker = new Thread(Ending::wake, "Ending");
        waker.setDaemon(true);
        waker.start();
    }

    /** Watch the calling thread while it runs a command. */
    static Object watched(Driver.Op op, JSONObject args) throws Throwable {
        COMMANDS.add(Thread.currentThread());
        try {
            return op.run(args);
        } finally {
            COMMANDS.remove(Thread.currentThread());
        }
    }

    private static void wake() {
        while (true) {
            try {
                Thread.sleep(EVERY_MS);
            } catch (InterruptedException e) {
                return;
            }
            if (COMMANDS.stream().anyMatch(Ending::waitsForEvents)) {
                for (Map.Entry<Thread, StackTraceElement[]> thread : Thread.getAllStackTraces().entrySet()) {
                    if (thread.getKey().getName().startsWith("NettyEventExecutor") && isIdle(thread.getValue())) {
                        thread.getKey().interrupt();
                    }
                }
            }
        }
    }

    /** Whether a client is being shut down, up to the end of its thread for events. */
    private static boolean waitsForEvents(Thread thread) {
        boolean joins = false;
        for (StackTraceElement frame : thread.getStackTrace()) {
            joins |= frame.getMethodName().equals("join") && frame.getClassName().equals("java.lang.Thread");
            if (frame.getClassName().endsWith(".NettyRemotingClient")) {
                return joins && frame.getMethodName().equals("shutdown");
            }
        }
        return false;
    }

    /** Whether a thread waits for an event, and is not at work for one. */
    private static boolean isIdle(StackTraceElement[] stack) {
        for (int i = 0; i + 1 < stack.length; i++) {
            if (stack[i].getMethodName().equals("poll") && stack[i].getClassName().endsWith(".LinkedBlockingQueue")) {
                return stack[i + 1].getClassName().endsWith("$NettyEventExecutor");
            }
        }
        return false;
    }
}
