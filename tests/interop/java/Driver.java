import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Drives RocketMQ's own Java client from a test: a command a line on stdin, a line of JSON on stdout for each.
 *
 * <pre>
 * produce NAMESRV TOPIC COUNT TAG                 {"ok":true,"sent":[{"id","broker","queue","offset","status"}...]}
 * consume NAMESRV GROUP TOPIC COUNT TIMEOUT_S     {"ok":true,"messages":[{"id","broker","queue","offset","tag","body"}...]}
 * route NAMESRV TOPIC                             {"ok":true,"queues":[{"broker","queue"}...]}
 * VERB key=value ...                              the verbs of Producers, PushConsumers, PullConsumers and Admin
 * </pre>
 *
 * What fails answers {"ok":false,"error":"..."}. NAMESRV may be a list "a;b". A message's body is TAG-NUMBER. A producer
 * lives as long as the program, one for each NAMESRV, so that a later command shows how a running client goes on. The
 * end of stdin ends the program. The same source is compiled against 4.9 and 5.x.
 */
public final class Driver {
    /** Part of every client id: a broker takes clients of one id for one client. */
    static final long PID = ProcessHandle.current().pid();
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();
    private static int consumers;

    public static void main(String[] arguments) throws Exception {
        // The answers alone have stdout: a library that prints must not get between them.
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String answer;
            try {
                answer = "{\"ok\":true," + run(line) + "}";
            } catch (Throwable error) {
                error.printStackTrace();
                answer = "{\"ok\":false,\"error\":" + Json.quoted(error.toString()) + "}";
            }
            answers.write((answer + "\n").getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String run(String line) throws Exception {
        String[] words = line.trim().split(" +");
        switch (words[0]) {
            case "produce":
                return produce(words[1], words[2], Integer.parseInt(words[3]), words[4]);
            case "consume":
                return consume(words[1], words[2], words[3], Integer.parseInt(words[4]), Long.parseLong(words[5]));
            case "route":
                return route(words[1], words[2]);
            default:
                return run(new Command(line));
        }
    }

    private static String run(Command command) throws Exception {
        switch (command.verb) {
            case "send":
                return Producers.send(command);
            case "request":
                return Producers.request(command);
            case "query":
                return Producers.query(command);
            case "view":
                return Producers.view(command);
            case "queues":
                return Producers.queues(command);
            case "push":
                return PushConsumers.start(command);
            case "consumed":
                return PushConsumers.consumed(command);
            case "assigned":
                return PushConsumers.assigned(command);
            case "persist":
                return PushConsumers.persist(command);
            case "stop":
                return PushConsumers.stop(command);
            case "lite":
                return PullConsumers.lite(command);
            case "poll":
                return PullConsumers.poll(command);
            case "seek":
                return PullConsumers.seek(command);
            case "commit":
                return PullConsumers.commit(command);
            case "committed":
                return PullConsumers.committed(command);
            case "stop-lite":
                return PullConsumers.stop(command);
            case "pull":
                return PullConsumers.pull(command);
            case "offsets":
                return PullConsumers.offsets(command);
            case "admin":
                return Admin.run(command);
            default:
                throw new IllegalArgumentException("no such command: " + command.verb);
        }
    }

    private static DefaultMQProducer producer(String nameservers) throws Exception {
        DefaultMQProducer producer = PRODUCERS.get(nameservers);
        if (producer == null) {
            producer = new DefaultMQProducer("driver_producer_" + PRODUCERS.size());
            producer.setNamesrvAddr(nameservers);
            // Clients of one instance name share their connections, and with them their nameservers.
            producer.setInstanceName("producer-" + PID + "-" + PRODUCERS.size());
            producer.setSendMsgTimeout(10000);
            producer.start();
            PRODUCERS.put(nameservers, producer);
        }
        return producer;
    }

    private static String produce(String nameservers, String topic, int count, String tag) throws Exception {
        DefaultMQProducer producer = producer(nameservers);
        List<String> sent = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            byte[] body = (tag + "-" + i).getBytes(StandardCharsets.UTF_8);
            SendResult result = producer.send(new Message(topic, tag, body));
            sent.add("{\"id\":" + Json.quoted(result.getMsgId())
                + "," + Json.place(result.getMessageQueue())
                + ",\"offset\":" + result.getQueueOffset()
                + ",\"status\":" + Json.quoted(result.getSendStatus().name()) + "}");
        }
        return "\"sent\":[" + String.join(",", sent) + "]";
    }

    private static String consume(String nameservers, String group, String topic, int count, long seconds)
        throws Exception {
        BlockingQueue<String> arrived = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameservers);
        consumer.setInstanceName("consumer-" + PID + "-" + consumers++);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                arrived.add("{\"id\":" + Json.quoted(message.getMsgId())
                    + "," + Json.place(context.getMessageQueue())
                    + ",\"offset\":" + message.getQueueOffset()
                    + ",\"tag\":" + Json.quoted(message.getTags())
                    + ",\"body\":" + Json.quoted(new String(message.getBody(), StandardCharsets.UTF_8)) + "}");
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        List<String> messages = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (messages.size() < count) {
            String message = arrived.poll(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
            if (message == null) {
                break;
            }
            messages.add(message);
        }
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        // The rest of a shutdown is seconds of waiting for the client's own threads: nobody needs its end.
        Thread closing = new Thread(consumer::shutdown, "close " + group);
        closing.setDaemon(true);
        closing.start();
        return "\"messages\":[" + String.join(",", messages) + "]";
    }

    private static String route(String nameservers, String topic) throws Exception {
        List<String> queues = new ArrayList<>();
        for (MessageQueue queue : producer(nameservers).fetchPublishMessageQueues(topic)) {
            queues.add("{" + Json.place(queue) + "}");
        }
        return "\"queues\":[" + String.join(",", queues) + "]";
    }
}
