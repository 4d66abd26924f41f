import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;

import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The driver's answers, written by hand: no library is in both versions of the client. */
final class Json {
    private Json() {
    }

    static String quoted(String text) {
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

    static String list(Collection<String> items) {
        return "[" + String.join(",", items) + "]";
    }

    static String map(Map<String, String> values) {
        List<String> pairs = new ArrayList<>();
        for (Map.Entry<String, String> each : values.entrySet()) {
            pairs.add(quoted(each.getKey()) + ":" + quoted(each.getValue()));
        }
        return "{" + String.join(",", pairs) + "}";
    }

    static String place(MessageQueue queue) {
        return "\"broker\":" + quoted(queue.getBrokerName()) + ",\"queue\":" + queue.getQueueId();
    }

    static String queue(MessageQueue queue) {
        return "{\"topic\":" + quoted(queue.getTopic()) + "," + place(queue) + "}";
    }

    /** What a producer was told. */
    static String sent(SendResult result, String body) {
        return "{\"id\":" + quoted(result.getMsgId())
            + ",\"offset_id\":" + quoted(result.getOffsetMsgId())
            + "," + place(result.getMessageQueue())
            + ",\"offset\":" + result.getQueueOffset()
            + ",\"status\":" + quoted(result.getSendStatus().name())
            + ",\"body\":" + quoted(body) + "}";
    }

    /** What a consumer saw. */
    static String message(MessageExt message) {
        return "{\"id\":" + quoted(message.getMsgId())
            + ",\"topic\":" + quoted(message.getTopic())
            + ",\"broker\":" + quoted(message.getBrokerName())
            + ",\"queue\":" + message.getQueueId()
            + ",\"offset\":" + message.getQueueOffset()
            + ",\"tag\":" + quoted(message.getTags())
            + ",\"keys\":" + quoted(message.getKeys())
            + ",\"reconsumed\":" + message.getReconsumeTimes()
            + ",\"born\":" + message.getBornTimestamp()
            + ",\"stored\":" + message.getStoreTimestamp()
            + ",\"seen\":" + System.currentTimeMillis()
            + ",\"properties\":" + map(message.getProperties())
            + ",\"body\":" + quoted(new String(message.getBody(), StandardCharsets.UTF_8)) + "}";
    }

    static String messages(Collection<MessageExt> found) {
        List<String> all = new ArrayList<>();
        for (MessageExt each : found) {
            all.add(message(each));
        }
        return "\"messages\":" + list(all);
    }
}
