import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.consumer.RebalanceImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Plain messages, and what the other kinds share: a producer, a push consumer, bodies that begin with the number. */
class MessagingKind {
    private static final int BODY = 128;

    final JSONObject c;
    final MessagingTally tally;
    final DefaultMQPushConsumer consumer;
    DefaultMQProducer producer;

    MessagingKind(JSONObject c, MessagingTally tally) {
        this.c = c;
        this.tally = tally;
        consumer = new DefaultMQPushConsumer(c.getString("group"));
        producer = new DefaultMQProducer("P" + c.getString("group"));
    }

    void start() throws MQClientException {
        consumer.setNamesrvAddr(c.getString("nameserver"));
        consumer.setPollNameServerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        subscribe();
        consumer.start();
        producer.setNamesrvAddr(c.getString("nameserver"));
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0); // the run sends again itself, and counts
        producer.start();
    }

    void subscribe() throws MQClientException {
        consumer.subscribe(c.getString("topic"), "*");
        listen();
    }

    final void listen() {
        consumer.registerMessageListener((MessageListenerConcurrently) this::consume);
    }

    ConsumeConcurrentlyStatus consume(List<MessageExt> batch, ConsumeConcurrentlyContext context) {
        for (MessageExt m : batch) {
            count(m);
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    final void count(MessageExt m) {
        tally.received(number(m), System.currentTimeMillis() - dueMs(m));
    }

    /** When a message may come at the earliest, by the clock of this machine. */
    long dueMs(MessageExt m) {
        return m.getBornTimestamp() + delayNs() / 1_000_000;
    }

    boolean ready(int queues) {
        RebalanceImpl shares = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl();
        String topic = c.getString("topic");
        return shares.getProcessQueueTable().keySet().stream().filter(q -> q.getTopic().equals(topic)).count() >= queues
            || shares.getPopProcessQueueTable().keySet().stream().anyMatch(q -> q.getTopic().equals(topic));
    }

    /** The senders start now. */
    void begin() {
    }

    void send(int number) throws Exception {
        taken(producer.send(message(number)));
    }

    static void taken(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("stored with " + result.getSendStatus());
        }
    }

    Message message(int number) {
        byte[] body = new byte[BODY];
        Arrays.fill(body, (byte) ' ');
        byte[] digits = Integer.toString(number).getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(digits, 0, body, 0, digits.length);
        return new Message(c.getString("topic"), "TagA", body);
    }

    static int number(Message m) {
        int number = 0;
        for (byte b : m.getBody()) {
            if (b == ' ') {
                break;
            }
            number = number * 10 + b - '0';
        }
        return number;
    }

    /** Each message comes this much later than it is sent. */
    long delayNs() {
        return 0;
    }

    /** No message comes before this. */
    long notBeforeNs() {
        return Long.MIN_VALUE;
    }

    void end() {
        producer.shutdown();
        consumer.shutdown();
    }
}
