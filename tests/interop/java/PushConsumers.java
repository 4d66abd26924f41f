import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Push consumers by handle. Each notes what it got, failed deliveries too, in the order of delivery. */
final class PushConsumers {
    private static final Map<String, PushConsumers> RUNNING = new HashMap<>();
    private static int started;

    private final DefaultMQPushConsumer consumer;
    private final List<String> seen = Collections.synchronizedList(new ArrayList<>());
    /** How often a body was delivered to this consumer. */
    private final Map<String, Integer> deliveries = new ConcurrentHashMap<>();
    private final int failures;
    private final DefaultMQProducer replies;

    private PushConsumers(Command command) throws Exception {
        failures = command.number("fail", 0);
        replies = command.flag("reply") ? Producers.of(command.text("ns"), "driver_replier") : null;
        consumer = new DefaultMQPushConsumer(command.text("group"));
        consumer.setNamesrvAddr(command.text("ns"));
        consumer.setInstanceName(command.text("instance", "push-" + Driver.PID + "-" + started++));
        consumer.setPollNameServerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.setConsumeThreadMin(command.number("threads", 2));
        consumer.setConsumeThreadMax(command.number("threads", 2));
        consumer.setConsumeFromWhere("last".equals(command.text("from", "first"))
            ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (command.has("max")) {
            consumer.setMaxReconsumeTimes(command.number("max", 16));
        }
        if (command.flag("broadcast")) {
            broadcasting(consumer);
        }
        consumer.setSuspendCurrentQueueTimeMillis(command.big("suspend", 200));
        consumer.subscribe(command.text("topic"), command.text("expression", "*"));
        if (command.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                note(messages) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                note(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
    }

    /** The name of the model's class is another one in 4.9 and 5.x. */
    private static void broadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (Object model : consumer.getMessageModel().getClass().getEnumConstants()) {
            if ("BROADCASTING".equals(model.toString())) {
                DefaultMQPushConsumer.class.getMethod("setMessageModel", model.getClass()).invoke(consumer, model);
            }
        }
    }

    private boolean note(List<MessageExt> messages) {
        boolean good = true;
        for (MessageExt each : messages) {
            seen.add(Json.message(each));
            int delivery = deliveries.merge(new String(each.getBody(), StandardCharsets.UTF_8), 1, Integer::sum);
            good &= delivery > failures;
            if (replies != null) {
                reply(each);
            }
        }
        return good;
    }

    private void reply(MessageExt request) {
        String text = "reply to " + new String(request.getBody(), StandardCharsets.UTF_8);
        try {
            Message reply = MessageUtil.createReplyMessage(request, text.getBytes(StandardCharsets.UTF_8));
            replies.send(reply, 10000);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    /** push handle ns group topic [expression orderly broadcast fail suspend max threads from reply instance] */
    static synchronized String start(Command command) throws Exception {
        PushConsumers one = new PushConsumers(command);
        one.consumer.start();
        RUNNING.put(command.text("handle"), one);
        return "\"client\":" + Json.quoted(one.consumer.buildMQClientId());
    }

    private static synchronized PushConsumers of(Command command) {
        PushConsumers one = RUNNING.get(command.text("handle"));
        if (one == null) {
            throw new IllegalArgumentException("no such consumer: " + command.text("handle"));
        }
        return one;
    }

    /** consumed handle count seconds: what it got so far, once there are `count` or the time is over. */
    static String consumed(Command command) throws Exception {
        PushConsumers one = of(command);
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(command.big("seconds", 30));
        while (one.seen.size() < command.number("count", 0) && System.nanoTime() < deadline) {
            Thread.sleep(20);
        }
        synchronized (one.seen) {
            return "\"messages\":" + Json.list(one.seen);
        }
    }

    /** assigned handle: the queues that it works on now, retry topic left out. */
    static String assigned(Command command) {
        List<String> queues = new ArrayList<>();
        for (MessageQueue each : of(command).consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().keySet()) {
            if (!each.getTopic().startsWith("%RETRY%")) {
                queues.add(Json.queue(each));
            }
        }
        return "\"queues\":" + Json.list(queues);
    }

    /** persist handle: tells the broker the offsets. */
    static String persist(Command command) {
        of(command).consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        return "\"done\":true";
    }

    /** stop handle: offsets are stored and the broker is told; the client's own threads end later. */
    static String stop(Command command) {
        PushConsumers one = of(command);
        synchronized (PushConsumers.class) {
            RUNNING.remove(command.text("handle"));
        }
        one.consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        Thread closing = new Thread(one.consumer::shutdown, "close");
        closing.setDaemon(true);
        closing.start();
        return "\"stopped\":true";
    }
}
