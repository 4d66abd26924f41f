import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Lite pull consumers by handle, and the old pull consumer of a group. */
final class PullConsumers {
    private static final Map<String, DefaultLitePullConsumer> LITE = new HashMap<>();
    private static final Map<String, DefaultMQPullConsumer> OLD = new HashMap<>();
    private static int started;

    private PullConsumers() {
    }

    /** lite handle ns group topic [expression assign]: subscribed, or with every queue assigned by hand; manual commit. */
    static String lite(Command command) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.text("group"));
        consumer.setNamesrvAddr(command.text("ns"));
        consumer.setInstanceName("lite-" + Driver.PID + "-" + started++);
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        if (!command.flag("assign")) {
            consumer.subscribe(command.text("topic"), command.text("expression", "*"));
        }
        consumer.start();
        if (command.flag("assign")) {
            consumer.assign(consumer.fetchMessageQueues(command.text("topic")));
        }
        LITE.put(command.text("handle"), consumer);
        return "\"started\":true";
    }

    private static DefaultLitePullConsumer lite(String handle) {
        DefaultLitePullConsumer consumer = LITE.get(handle);
        if (consumer == null) {
            throw new IllegalArgumentException("no such consumer: " + handle);
        }
        return consumer;
    }

    /** poll handle count seconds: polls until there are `count` messages or the time is over. */
    static String poll(Command command) {
        DefaultLitePullConsumer consumer = lite(command.text("handle"));
        List<MessageExt> found = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(command.big("seconds", 30));
        while (found.size() < command.number("count", 1) && System.nanoTime() < deadline) {
            found.addAll(consumer.poll(200));
        }
        return Json.messages(found);
    }

    private static MessageQueue queue(Command command) throws Exception {
        for (MessageQueue each : lite(command.text("handle")).fetchMessageQueues(command.text("topic"))) {
            if (each.getQueueId() == command.number("queue", 0)) {
                return each;
            }
        }
        throw new IllegalArgumentException("no such queue");
    }

    /** seek handle topic queue offset */
    static String seek(Command command) throws Exception {
        lite(command.text("handle")).seek(queue(command), command.big("offset", 0));
        return "\"done\":true";
    }

    /** commit handle: what was polled. */
    static String commit(Command command) {
        lite(command.text("handle")).commitSync();
        return "\"done\":true";
    }

    /** committed handle topic queue: what the broker knows. */
    static String committed(Command command) throws Exception {
        return "\"offset\":" + lite(command.text("handle")).committed(queue(command));
    }

    static String stop(Command command) {
        DefaultLitePullConsumer consumer = LITE.remove(command.text("handle"));
        Thread closing = new Thread(consumer::shutdown, "close");
        closing.setDaemon(true);
        closing.start();
        return "\"stopped\":true";
    }

    private static DefaultMQPullConsumer old(Command command) throws Exception {
        String key = command.text("ns") + " " + command.text("group");
        DefaultMQPullConsumer consumer = OLD.get(key);
        if (consumer == null) {
            consumer = new DefaultMQPullConsumer(command.text("group"));
            consumer.setNamesrvAddr(command.text("ns"));
            consumer.setInstanceName("pull-" + Driver.PID + "-" + started++);
            consumer.start();
            OLD.put(key, consumer);
        }
        return consumer;
    }

    /** pull ns group topic queue offset [max expression]: one pull of the old consumer. */
    static String pull(Command command) throws Exception {
        DefaultMQPullConsumer consumer = old(command);
        MessageQueue queue = queue(consumer, command);
        PullResult result = consumer.pull(queue, command.text("expression", "*"), command.big("offset", 0),
            command.number("max", 32));
        List<MessageExt> found = result.getMsgFoundList();
        return "\"status\":" + Json.quoted(result.getPullStatus().name()) + ",\"next\":" + result.getNextBeginOffset()
            + ",\"min\":" + result.getMinOffset() + ",\"max\":" + result.getMaxOffset()
            + "," + Json.messages(found == null ? Collections.emptyList() : found);
    }

    /** offsets ns group topic queue [time store]: the ends of a queue, an offset by time, and the group's own. */
    static String offsets(Command command) throws Exception {
        DefaultMQPullConsumer consumer = old(command);
        MessageQueue queue = queue(consumer, command);
        if (command.has("store")) {
            consumer.updateConsumeOffset(queue, command.big("store", 0));
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
        }
        return "\"min\":" + consumer.minOffset(queue) + ",\"max\":" + consumer.maxOffset(queue)
            + ",\"at\":" + consumer.searchOffset(queue, command.big("time", 0))
            + ",\"earliest\":" + consumer.earliestMsgStoreTime(queue)
            + ",\"group\":" + consumer.fetchConsumeOffset(queue, true);
    }

    private static MessageQueue queue(DefaultMQPullConsumer consumer, Command command) throws Exception {
        for (MessageQueue each : consumer.fetchSubscribeMessageQueues(command.text("topic"))) {
            if (each.getQueueId() == command.number("queue", 0)) {
                return each;
            }
        }
        throw new IllegalArgumentException("no such queue");
    }
}
