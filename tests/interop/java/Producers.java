import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sending, in all its forms. A producer lives as long as the program, one for each NAMESRV and group.
 *
 * A failed send fails the command; with `tolerant` it becomes {"error","body"} in the list, and the rest goes on.
 */
final class Producers {
    private static final Map<String, DefaultMQProducer> RUNNING = new HashMap<>();

    private Producers() {
    }

    static synchronized DefaultMQProducer of(String nameservers, String group) throws Exception {
        DefaultMQProducer producer = RUNNING.get(nameservers + " " + group);
        if (producer == null) {
            producer = new DefaultMQProducer(group);
            producer.setNamesrvAddr(nameservers);
            // Clients of one instance name share their connections, and with them their nameservers.
            producer.setInstanceName("producer-" + Driver.PID + "-" + RUNNING.size());
            producer.setSendMsgTimeout(10000);
            producer.setPollNameServerInterval(1000);
            producer.start();
            RUNNING.put(nameservers + " " + group, producer);
        }
        return producer;
    }

    private static DefaultMQProducer of(Command command) throws Exception {
        return of(command.text("ns"), command.text("group", "driver_producer"));
    }

    /** send ns topic [mode count prefix tag keys props delay queue shard size pause timeout tolerant] */
    static String send(Command command) throws Exception {
        DefaultMQProducer producer = of(command);
        producer.setSendMsgTimeout(command.number("timeout", 10000));
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < command.number("count", 1); i++) {
            messages.add(message(command, i));
        }
        switch (command.text("mode", "sync")) {
            case "sync":
                return "\"sent\":" + Json.list(sync(producer, command, messages));
            case "async":
                return "\"sent\":" + Json.list(async(producer, messages));
            case "oneway":
                for (Message each : messages) {
                    producer.sendOneway(each);
                }
                return "\"sent\":[]";
            case "batch":
                return "\"sent\":[" + Json.sent(batch(producer, command, messages), "") + "]";
            default:
                throw new IllegalArgumentException("no such mode");
        }
    }

    private static Message message(Command command, int number) {
        StringBuilder body = new StringBuilder(command.text("prefix", "m") + "-" + number);
        while (body.length() < command.number("size", 0)) {
            body.append('.');
        }
        byte[] bytes = body.toString().getBytes(StandardCharsets.UTF_8);
        Message message = new Message(command.text("topic"), command.text("tag", ""), bytes);
        if (command.has("keys")) {
            message.setKeys(command.text("keys"));
        }
        for (String pair : command.text("props", "").split(",")) {
            if (!pair.isEmpty()) {
                message.putUserProperty(pair.split(":", 2)[0], pair.split(":", 2)[1]);
            }
        }
        if (command.has("delay")) {
            message.setDelayTimeLevel(command.number("delay", 0));
        }
        return message;
    }

    private static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static MessageQueue queue(DefaultMQProducer producer, Command command) throws Exception {
        for (MessageQueue each : producer.fetchPublishMessageQueues(command.text("topic"))) {
            if (each.getQueueId() == command.number("queue", 0)) {
                return each;
            }
        }
        throw new IllegalArgumentException("no such queue");
    }

    private static List<String> sync(DefaultMQProducer producer, Command command, List<Message> messages)
        throws Exception {
        List<String> sent = new ArrayList<>();
        for (Message each : messages) {
            String body = body(each); // a compressed body stays compressed when the send fails
            try {
                sent.add(Json.sent(one(producer, command, each), body));
            } catch (Exception error) {
                if (!command.flag("tolerant")) {
                    throw error;
                }
                sent.add("{\"error\":" + Json.quoted(error.toString()) + ",\"body\":" + Json.quoted(body) + "}");
            }
            Thread.sleep(command.big("pause", 0));
        }
        return sent;
    }

    private static SendResult one(DefaultMQProducer producer, Command command, Message message) throws Exception {
        if (command.has("queue")) {
            return producer.send(message, queue(producer, command));
        }
        if (command.has("shard")) {
            return producer.send(message, new SelectMessageQueueByHash(), command.text("shard"));
        }
        return producer.send(message);
    }

    private static SendResult batch(DefaultMQProducer producer, Command command, List<Message> messages)
        throws Exception {
        return command.has("queue") ? producer.send(messages, queue(producer, command)) : producer.send(messages);
    }

    private static List<String> async(DefaultMQProducer producer, List<Message> messages) throws Exception {
        CountDownLatch open = new CountDownLatch(messages.size());
        String[] sent = new String[messages.size()];
        for (int i = 0; i < sent.length; i++) {
            int number = i;
            String body = body(messages.get(i));
            producer.send(messages.get(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent[number] = Json.sent(result, body);
                    open.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    sent[number] = "{\"error\":" + Json.quoted(error.toString()) + ",\"body\":" + Json.quoted(body) + "}";
                    open.countDown();
                }
            });
        }
        if (!open.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException(open.getCount() + " callbacks never came");
        }
        return java.util.Arrays.asList(sent);
    }

    /** request ns topic body [millis]: the answer of a replier, by callback; the sync form of 5.3.3 fails by itself. */
    static String request(Command command) throws Exception {
        Message message = new Message(command.text("topic"), command.text("body").getBytes(StandardCharsets.UTF_8));
        CountDownLatch open = new CountDownLatch(1);
        String[] answer = new String[1];
        of(command).request(message, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                answer[0] = "\"reply\":" + Json.quoted(body(reply)) + ",\"properties\":" + Json.map(reply.getProperties());
                open.countDown();
            }

            @Override
            public void onException(Throwable error) {
                answer[0] = "\"failure\":" + Json.quoted(error.toString());
                open.countDown();
            }
        }, command.big("millis", 20000));
        if (!open.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("neither reply nor failure");
        }
        return answer[0];
    }

    /** query ns topic key [count]: by the index. */
    static String query(Command command) throws Exception {
        List<MessageExt> found = of(command)
            .queryMessage(command.text("topic"), command.text("key"), command.number("count", 32), 0, Long.MAX_VALUE)
            .getMessageList();
        return Json.messages(found);
    }

    /** view ns topic id: by message id or by offset id. */
    static String view(Command command) throws Exception {
        MessageExt found = of(command).viewMessage(command.text("topic"), command.text("id"));
        return Json.messages(java.util.Collections.singletonList(found));
    }

    /** queues ns topic: where a producer may write to now, from its own route cache. */
    static String queues(Command command) throws Exception {
        List<String> queues = new ArrayList<>();
        for (MessageQueue each : of(command).getDefaultMQProducerImpl().getTopicPublishInfoTable()
            .get(command.text("topic")).getMessageQueueList()) {
            queues.add(Json.queue(each));
        }
        return "\"queues\":" + Json.list(queues);
    }
}
