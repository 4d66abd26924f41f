import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** RocketMQ's Java client for bench/client.py: a line "SECTION NAMESERVER TOPIC COUNT" in, a line of JSON out. */
public final class ClientBench {
    private static final byte[] BODY = new byte[1024];
    private static DefaultMQProducer producer;
    private static int groups;

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            try {
                answers.println(run(words[0], words[1], words[2], Integer.parseInt(words[3])));
            } catch (Throwable error) {
                error.printStackTrace();
                answers.println("failed: " + error);
            }
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String run(String section, String nameserver, String topic, int count) throws Exception {
        if (section.equals("push")) {
            return push(nameserver, topic, count);
        }
        if (producer == null) {
            producer = new DefaultMQProducer("PG_bench_java");
            producer.setNamesrvAddr(nameserver);
            producer.setSendMsgTimeout(30000);
            producer.start();
            send("send-256", topic, 60000); // the compiler needs some
        }
        long cpu = cpu();
        long began = System.nanoTime();
        send(section, topic, count);
        return figures(count, System.nanoTime() - began, cpu() - cpu);
    }

    private static void send(String section, String topic, int count) throws Exception {
        if (section.equals("batch")) {
            List<Thread> threads = new ArrayList<>();
            for (int number = 0; number < 4; number++) {
                Thread thread = new Thread(() -> {
                    try {
                        for (int sent = 0; sent < count / 4; sent += 64) {
                            List<Message> messages = new ArrayList<>();
                            for (int each = 0; each < 64; each++) {
                                messages.add(new Message(topic, BODY));
                            }
                            producer.send(messages);
                        }
                    } catch (Exception error) {
                        error.printStackTrace();
                    }
                });
                thread.start();
                threads.add(thread);
            }
            for (Thread thread : threads) {
                thread.join();
            }
            return;
        }
        int inFlight = Integer.parseInt(section.substring(section.indexOf('-') + 1));
        if (inFlight == 1) {
            for (int sent = 0; sent < count; sent++) {
                producer.send(new Message(topic, BODY));
            }
            return;
        }
        Semaphore permits = new Semaphore(inFlight);
        CountDownLatch left = new CountDownLatch(count);
        AtomicInteger failures = new AtomicInteger();
        for (int sent = 0; sent < count; sent++) {
            permits.acquire();
            producer.send(new Message(topic, BODY), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    permits.release();
                    left.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failures.incrementAndGet();
                    permits.release();
                    left.countDown();
                }
            });
        }
        left.await();
        if (failures.get() > 0) {
            throw new IllegalStateException(failures + " sends failed");
        }
    }

    private static String push(String nameserver, String topic, int count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("CG_bench_java_" + ProcessHandle.current().pid() + "_" + groups++);
        consumer.setNamesrvAddr(nameserver);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        AtomicInteger seen = new AtomicInteger();
        AtomicLong began = new AtomicLong();
        AtomicLong cpu = new AtomicLong();
        AtomicLong took = new AtomicLong();
        AtomicLong used = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            int number = seen.addAndGet(messages.size());
            if (number == messages.size()) {
                began.set(System.nanoTime());
                cpu.set(cpu());
            } else if (number >= count && done.getCount() > 0) {
                took.set(System.nanoTime() - began.get());
                used.set(cpu() - cpu.get());
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.await();
        consumer.shutdown();
        return figures(count, took.get(), used.get());
    }

    private static String figures(int count, long nanos, long cpu) {
        return String.format("{\"rate\": %f, \"cpu_us\": %f}", count / (nanos / 1e9), cpu / 1e3 / count);
    }
}
