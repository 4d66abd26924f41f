import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Sends a message to CometMQ and receives it. The client is RocketMQ's own, unchanged. */
public class FirstMessage {
    public static void main(String[] arguments) throws Exception {
        String given = System.getenv("NAMESRV_ADDR");
        String nameserver = given == null ? "127.0.0.1:9876" : given;

        DefaultMQProducer producer = new DefaultMQProducer("greeters");
        producer.setNamesrvAddr(nameserver);
        producer.start();
        Message message = new Message("Greetings", "hello from Java".getBytes(StandardCharsets.UTF_8));
        System.out.println("sent " + producer.send(message).getMsgId());

        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("first-java");
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("Greetings", "*");
        CompletableFuture<String> got = new CompletableFuture<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(m -> got.complete("received " + m.getMsgId() + ": " + new String(m.getBody(), StandardCharsets.UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println(got.get());
        consumer.shutdown();
        producer.shutdown();
    }
}
