import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Looks into a broker's store with RocketMQ's own Java client, and adds to it: a command a line on stdin, a line of JSON
 * on stdout for each. Its argument is the address of the nameserver.
 *
 * <pre>
 * pull TOPIC BROKER QUEUE                {"ok":true,"min","max","messages":[...]}   from min to max, whatever the status
 * query TOPIC KEY                        {"ok":true,"messages":[...]}               by key or unique key
 * view TOPIC OFFSET_ID                   {"ok":true,"messages":[one]}               by offset message id
 * search TOPIC BROKER QUEUE TIMESTAMP    {"ok":true,"offset"}                       by store time
 * send TOPIC BROKER QUEUE TAG COUNT SIZE {"ok":true,"sent":[{"id","offset_id","offset","status"}...]}
 * batch TOPIC BROKER QUEUE TAG COUNT     as send, with one answer for the batch; ids are separated by commas
 * </pre>
 *
 * A message holds every field that a client gets to see; its body is in Base64. What is sent has the body TAG-NUMBER,
 * filled up with dots to SIZE bytes, and the key KEY-TAG-NUMBER.
 */
public final class StoreClient {
    private static DefaultMQPullConsumer consumer;
    private static DefaultMQProducer producer;

    public static void main(String[] arguments) throws Exception {
        // The answers alone have stdout: a library that prints must not get between them.
        PrintStream answers = System.out;
        System.setOut(System.err);
        consumer = new DefaultMQPullConsumer("store_reader");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.start();
        producer = new DefaultMQProducer("store_writer");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(10000);
        producer.start();
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
            case "pull":
                return pull(queue(words));
            case "query":
                return messages(consumer.queryMessage(words[1], words[2], 64, 0, Long.MAX_VALUE).getMessageList());
            case "view":
                return messages(Arrays.asList(consumer.viewMessage(words[1], words[2])));
            case "search":
                return "\"offset\":" + consumer.searchOffset(queue(words), Long.parseLong(words[4]));
            case "send":
                return send(queue(words), words[4], Integer.parseInt(words[5]), Integer.parseInt(words[6]));
            case "batch":
                return batch(queue(words), words[4], Integer.parseInt(words[5]));
            default:
                throw new IllegalArgumentException("no such command: " + words[0]);
        }
    }

    private static MessageQueue queue(String[] words) {
        return new MessageQueue(words[1], words[2], Integer.parseInt(words[3]));
    }

    private static String pull(MessageQueue queue) throws Exception {
        long min = consumer.minOffset(queue);
        long max = consumer.maxOffset(queue);
        List<MessageExt> found = new ArrayList<>();
        for (long offset = min; offset < max; ) {
            PullResult result = consumer.pull(queue, "*", offset, 32);
            if (result.getPullStatus() != PullStatus.FOUND) {
                throw new IllegalStateException(queue + " at " + offset + " of " + max + ": " + result);
            }
            found.addAll(result.getMsgFoundList());
            offset = result.getNextBeginOffset();
        }
        return "\"min\":" + min + ",\"max\":" + max + "," + messages(found);
    }

    private static String send(MessageQueue queue, String tag, int count, int size) throws Exception {
        List<String> sent = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            sent.add(told(producer.send(message(queue.getTopic(), tag, i, size), queue)));
        }
        return "\"sent\":[" + String.join(",", sent) + "]";
    }

    private static String batch(MessageQueue queue, String tag, int count) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            batch.add(message(queue.getTopic(), tag, i, 0));
        }
        return "\"sent\":[" + told(producer.send(batch, queue)) + "]";
    }

    private static Message message(String topic, String tag, int number, int size) {
        StringBuilder body = new StringBuilder(tag + "-" + number);
        while (body.length() < size) {
            body.append('.');
        }
        return new Message(topic, tag, "KEY-" + tag + "-" + number, body.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static String told(SendResult result) {
        return "{\"id\":" + quoted(result.getMsgId())
            + ",\"offset_id\":" + quoted(result.getOffsetMsgId())
            + ",\"offset\":" + result.getQueueOffset()
            + ",\"status\":" + quoted(result.getSendStatus().name()) + "}";
    }

    private static String messages(List<MessageExt> found) {
        List<String> texts = new ArrayList<>();
        for (MessageExt message : found) {
            texts.add(json(message));
        }
        return "\"messages\":[" + String.join(",", texts) + "]";
    }

    private static String json(MessageExt message) {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        List<String> properties = new ArrayList<>();
        for (Map.Entry<String, String> property : message.getProperties().entrySet()) {
            properties.add(quoted(property.getKey()) + ":" + quoted(property.getValue()));
        }
        return "{\"topic\":" + quoted(message.getTopic())
            + ",\"queue_id\":" + message.getQueueId()
            + ",\"queue_offset\":" + message.getQueueOffset()
            + ",\"physical_offset\":" + message.getCommitLogOffset()
            + ",\"size\":" + message.getStoreSize()
            + ",\"id\":" + quoted(message.getMsgId())
            + ",\"offset_id\":" + quoted(((MessageClientExt) message).getOffsetMsgId())
            + ",\"flag\":" + message.getFlag()
            + ",\"sys_flag\":" + message.getSysFlag()
            + ",\"body_crc\":" + message.getBodyCRC()
            + ",\"born_timestamp\":" + message.getBornTimestamp()
            + ",\"born_host\":" + address(message.getBornHost())
            + ",\"store_timestamp\":" + message.getStoreTimestamp()
            + ",\"store_host\":" + address(message.getStoreHost())
            + ",\"reconsume_times\":" + message.getReconsumeTimes()
            + ",\"prepared_transaction_offset\":" + message.getPreparedTransactionOffset()
            + ",\"tags\":" + quoted(message.getTags())
            + ",\"keys\":" + quoted(message.getKeys())
            + ",\"properties\":{" + String.join(",", properties) + "}"
            + ",\"body\":" + quoted(Base64.getEncoder().encodeToString(body)) + "}";
    }

    /** The packed address and the port: text forms of IPv6 differ. */
    private static String address(SocketAddress host) {
        InetSocketAddress inet = (InetSocketAddress) host;
        StringBuilder hex = new StringBuilder("\"");
        for (byte b : inet.getAddress().getAddress()) {
            hex.append(String.format("%02x", b));
        }
        return hex.append(String.format("%08x", inet.getPort())).append('"').toString();
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
