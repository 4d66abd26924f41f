import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;

import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.PosixParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

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
        }
    }

    /** A command of its own for each run: they keep clients in fields, and close them. */
    @SuppressWarnings("unchecked")
    private static synchronized SubCommand fresh(String name) throws Exception {
        Field table = null;
        for (Field each : MQAdminStartup.class.getDeclaredFields()) {
            if (List.class.isAssignableFrom(each.getType())) {
                table = each; // its name is another one in 4.9 and 5.x
            }
        }
        table.setAccessible(true);
        List<SubCommand> commands = (List<SubCommand>) table.get(null);
        commands.clear();
        MQAdminStartup.initCommand();
        for (SubCommand each : commands) {
            if (each.commandName().equalsIgnoreCase(name)) {
                return each;
            }
        }
        throw new IllegalArgumentException("no such mqadmin command: " + name);
    }

    private static void execute(String[] arguments) throws Exception {
        SubCommand command = fresh(arguments[0]);
        Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
        CommandLine line = ServerUtil.parseCmdLine("mqadmin " + command.commandName(),
            Arrays.copyOfRange(arguments, 1, arguments.length), options, new PosixParser());
        if (line.hasOption('n')) {
            System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, line.getOptionValue('n'));
        }
        command.execute(line, options, null);
    }

    /** The millisecond of its start names a command's client: of two that start at once one has to try again. */
    private void run(String[] arguments) {
        OUT.set(out);
        ERR.set(err);
        do {
            out.reset();
            err.reset();
            try {
                Thread.sleep(ThreadLocalRandom.current().nextInt(50));
                execute(arguments);
            } catch (Throwable error) {
                error.printStackTrace();
            }
        } while (err.toString().contains("has created already"));
    }

    /** admin start=ID arguments (separated by line feeds), or admin wait=ID: {"out","err","alive"}. */
    static String run(Command command) throws Exception {
        capture();
        if (command.has("start")) {
            Admin admin = new Admin();
            STARTED.put(command.text("start"), admin);
            String[] arguments = command.text("arguments").split("\n");
            admin.thread = new Thread(() -> admin.run(arguments), "mqadmin " + arguments[0]);
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
