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
 * </pre>
 *
 * What fails answers {"ok":false,"error":"..."}. NAMESRV may be a list "a;b". A message's body is TAG-NUMBER. A producer
 * lives as long as the program, one for each NAMESRV, so that a later command shows how a running client goes on. The
 * end of stdin ends the program. The same source is compiled against 4.9 and 5.x.
 */
public final class Driver {
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
                answer = "{\"ok\":true," + run(line.trim().split(" +")) + "}";
            } catch (Throwable error) {
                error.printStackTrace();
                answer = "{\"ok\":false,\"error\":" + quoted(error.toString()) + "}";
            }
            answers.write((answer + "\n").getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String run(String[] words) throws Exception {
        switch (words[0]) {
            case "produce":
                return produce(words[1], words[2], Integer.parseInt(words[3]), words[4]);
            case "consume":
                return consume(words[1], words[2], words[3], Integer.parseInt(words[4]), Long.parseLong(words[5]));
            case "route":
                return route(words[1], words[2]);
            default:
                throw new IllegalArgumentException("no such command: " + words[0]);
        }
    }

    private static DefaultMQProducer producer(String nameservers) throws Exception {
        DefaultMQProducer producer = PRODUCERS.get(nameservers);
        if (producer == null) {
            producer = new DefaultMQProducer("driver_producer_" + PRODUCERS.size());
            producer.setNamesrvAddr(nameservers);
            // Clients of one instance name share their connections, and with them their nameservers.
            producer.setInstanceName("producer-" + PRODUCERS.size());
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
            sent.add("{\"id\":" + quoted(result.getMsgId())
                + "," + place(result.getMessageQueue())
                + ",\"offset\":" + result.getQueueOffset()
                + ",\"status\":" + quoted(result.getSendStatus().name()) + "}");
        }
        return "\"sent\":[" + String.join(",", sent) + "]";
    }

    private static String consume(String nameservers, String group, String topic, int count, long seconds)
        throws Exception {
        BlockingQueue<String> arrived = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameservers);
        consumer.setInstanceName("consumer-" + consumers++);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                arrived.add("{\"id\":" + quoted(message.getMsgId())
                    + "," + place(context.getMessageQueue())
                    + ",\"offset\":" + message.getQueueOffset()
                    + ",\"tag\":" + quoted(message.getTags())
                    + ",\"body\":" + quoted(new String(message.getBody(), StandardCharsets.UTF_8)) + "}");
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
            queues.add("{" + place(queue) + "}");
        }
        return "\"queues\":[" + String.join(",", queues) + "]";
    }

    private static String place(MessageQueue queue) {
        return "\"broker\":" + quoted(queue.getBrokerName()) + ",\"queue\":" + queue.getQueueId();
    }

    private static String quoted(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder json = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                json.append('\\').append(c);
            } else if (c < ' ') {
                json.append(String.format("\\u%04x", (int) c));
            } else {
                json.append(c);
            }
        }
        return json.append('"').toString();
    }
}
