import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.util.concurrent.ConcurrentHashMap;
import java.util.Map;

import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Commands of the real mqadmin in this JVM. What a command prints is told apart by the thread that it runs in, and its
 * children: so several run side by side. Usage errors are not for here: mqadmin ends its process then.
 */
final class Admin {
    private static final InheritableThreadLocal<ByteArrayOutputStream> OUT = new InheritableThreadLocal<>();
    private static final InheritableThreadLocal<ByteArrayOutputStream> ERR = new InheritableThreadLocal<>();
    private static final Map<String, Admin> STARTED = new ConcurrentHashMap<>();
    private static boolean captured;

    private final ByteArrayOutputStream out = new ByteArrayOutputStream();
    private final ByteArrayOutputStream err = new ByteArrayOutputStream();
    private Thread thread;

    /** Writes to the buffer of the thread, or to stderr for a thread of nobody. */
    private static PrintStream split(InheritableThreadLocal<ByteArrayOutputStream> mine, PrintStream others) {
        return new PrintStream(new OutputStream() {
            @Override
            public void write(int one) {
                write(new byte[] {(byte) one}, 0, 1);
            }

            @Override
            public void write(byte[] bytes, int from, int length) {
                ByteArrayOutputStream buffer = mine.get();
                if (buffer == null) {
                    others.write(bytes, from, length);
                } else {
                    buffer.write(bytes, from, length);
                }
            }
        }, true);
    }

    private static synchronized void capture() {
        if (!captured) {
            captured = true;
            PrintStream others = System.err;
            System.setOut(split(OUT, others));
            System.setErr(split(ERR, others));
            MQAdminStartup.initCommand();
        }
    }

    /** admin start=ID arguments (separated by line feeds), or admin wait=ID: {"out","err","alive"}. */
    static String run(Command command) throws Exception {
        capture();
        if (command.has("start")) {
            Admin admin = new Admin();
            STARTED.put(command.text("start"), admin);
            String[] arguments = command.text("arguments").split("\n");
            admin.thread = new Thread(() -> {
                OUT.set(admin.out);
                ERR.set(admin.err);
                try {
                    MQAdminStartup.main0(arguments, null);
                } catch (Throwable error) {
                    error.printStackTrace();
                }
            }, "mqadmin " + arguments[0]);
            admin.thread.setDaemon(true);
            admin.thread.start();
            return "\"started\":true";
        }
        Admin admin = STARTED.get(command.text("wait"));
        admin.thread.join(command.big("millis", 60000));
        return "\"out\":" + Json.quoted(admin.out.toString("UTF-8")) + ",\"err\":" + Json.quoted(admin.err.toString("UTF-8"))
            + ",\"alive\":" + admin.thread.isAlive();
    }
}
