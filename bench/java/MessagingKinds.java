import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import java.util.function.IntPredicate;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The kinds of messaging: how each differs from sending and receiving plain messages. */
final class MessagingKinds {
    private static final long SECOND_NS = TimeUnit.SECONDS.toNanos(1);

    private MessagingKinds() {
    }

    static MessagingKind of(String name, JSONObject c, MessagingTally tally) {
        switch (name) {
            case "plain":
                return new MessagingKind(c, tally);
            case "delay":
                return new Delay(c, tally);
            case "timer":
                return new Timer(c, tally);
            case "timers-at-once":
                return new AtOnce(c, tally);
            case "retry":
                return new Retry(c, tally);
            case "transaction":
            case "rollback":
                return new Transaction(c, tally, expected(name));
            case "ordered":
                return new Ordered(c, tally);
            case "pop":
                return new Pop(c, tally);
            case "sql":
                return new Sql(c, tally);
            case "request":
                return new Request(c, tally);
            default:
                throw new IllegalArgumentException("no such kind: " + name);
        }
    }

    /** Which messages must arrive; the others must not. */
    static IntPredicate expected(String name) {
        switch (name) {
            case "rollback":
                return n -> n % 3 != 0;
            case "sql":
                return n -> n % 10 > 2 && n / 10 % 2 == 0 || n % 10 < 1;
            default:
                return n -> true;
        }
    }

    /** Delay level 1: one second. */
    private static final class Delay extends MessagingKind {
        Delay(JSONObject c, MessagingTally tally) {
            super(c, tally);
        }

        @Override
        Message message(int number) {
            Message m = super.message(number);
            m.setDelayTimeLevel(1);
            return m;
        }

        @Override
        long delayNs() {
            return SECOND_NS;
        }
    }

    /** A second by timer, given in milliseconds and in seconds in turn. */
    private static final class Timer extends MessagingKind {
        Timer(JSONObject c, MessagingTally tally) {
            super(c, tally);
        }

        @Override
        Message message(int number) {
            Message m = super.message(number);
            if (number % 2 == 0) {
                m.setDelayTimeMs(1000);
            } else {
                m.setDelayTimeSec(1);
            }
            return m;
        }

        @Override
        long delayNs() {
            return SECOND_NS;
        }
    }

    /** Timers for one and the same moment, when all are sent: how fast they come then. */
    private static final class AtOnce extends MessagingKind {
        private long momentMs;
        private long momentNs;

        AtOnce(JSONObject c, MessagingTally tally) {
            super(c, tally);
        }

        @Override
        void begin() {
            long inMs = 5_000 + c.getIntValue("messages") * 3L / 10;
            // On a full second: both brokers round times to their precision, Apache's is a second.
            momentMs = (System.currentTimeMillis() + inMs) / 1000 * 1000;
            momentNs = System.nanoTime() + (momentMs - System.currentTimeMillis()) * 1_000_000;
        }

        @Override
        Message message(int number) {
            Message m = super.message(number);
            m.setDeliverTimeMs(momentMs);
            return m;
        }

        @Override
        long dueMs(MessageExt m) {
            return momentMs;
        }

        @Override
        long notBeforeNs() {
            return momentNs;
        }
    }

    /** Each message fails at its first delivery and comes again by delay level 1. */
    private static final class Retry extends MessagingKind {
        Retry(JSONObject c, MessagingTally tally) {
            super(c, tally);
        }

        @Override
        boolean ready(int queues) {
            String retries = MixAll.getRetryTopic(c.getString("group"));
            return super.ready(queues)
                && consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream().anyMatch(q -> q.getTopic().equals(retries));
        }

        @Override
        ConsumeConcurrentlyStatus consume(List<MessageExt> batch, ConsumeConcurrentlyContext context) {
            MessageExt m = batch.get(0);
            if (m.getReconsumeTimes() == 0) {
                tally.refused(number(m));
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            count(m);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        @Override
        long delayNs() {
            return SECOND_NS;
        }
    }

    /** Half messages; those that are not expected are rolled back. Checks are answered from what was done locally. */
    private static final class Transaction extends MessagingKind implements TransactionListener {
        private final IntPredicate commits;
        private final ConcurrentMap<String, LocalTransactionState> done = new ConcurrentHashMap<>();

        Transaction(JSONObject c, MessagingTally tally, IntPredicate commits) {
            super(c, tally);
            this.commits = commits;
            TransactionMQProducer p = new TransactionMQProducer("P" + c.getString("group"));
            p.setTransactionListener(this);
            producer = p;
        }

        @Override
        void send(int number) throws Exception {
            taken(producer.sendMessageInTransaction(message(number), null));
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message m, Object argument) {
            LocalTransactionState state = commits.test(number(m)) ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            done.put(m.getTransactionId(), state);
            return state;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt m) {
            // A half message whose send got no answer was never acted upon here.
            return done.getOrDefault(m.getTransactionId(), LocalTransactionState.ROLLBACK_MESSAGE);
        }
    }

    /** Queues by key, consumed in order. */
    private static final class Ordered extends MessagingKind {
        private final int keys;

        Ordered(JSONObject c, MessagingTally tally) {
            super(c, tally);
            keys = c.getIntValue("threads");
        }

        @Override
        void subscribe() throws MQClientException {
            consumer.subscribe(c.getString("topic"), "*");
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                for (MessageExt m : batch) {
                    count(m);
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
        }

        @Override
        void send(int number) throws Exception {
            taken(producer.send(message(number), (queues, m, key) -> queues.get((Integer) key % queues.size()), number % keys));
        }
    }

    /** The broker shares the messages out, each is acknowledged for itself. */
    private static final class Pop extends MessagingKind {
        Pop(JSONObject c, MessagingTally tally) {
            super(c, tally);
            consumer.setClientRebalance(false);
            consumer.setPopInvisibleTime(c.getLongValue("invisible_ms"));
        }
    }

    /** Some messages pass a filter in the broker. */
    private static final class Sql extends MessagingKind {
        Sql(JSONObject c, MessagingTally tally) {
            super(c, tally);
        }

        @Override
        void subscribe() throws MQClientException {
            consumer.subscribe(c.getString("topic"), MessageSelector.bySql("(a > 2 AND b IN ('even', 'none')) OR a < 1"));
            listen();
        }

        @Override
        Message message(int number) {
            Message m = super.message(number);
            m.putUserProperty("a", Integer.toString(number % 10));
            m.putUserProperty("b", number / 10 % 2 == 0 ? "even" : "odd");
            return m;
        }
    }

    /** Requests, and their replies; a reply is what counts as received. */
    private static final class Request extends MessagingKind {
        private final DefaultMQProducer replier;

        Request(JSONObject c, MessagingTally tally) {
            super(c, tally);
            replier = new DefaultMQProducer("R" + c.getString("group"));
        }

        @Override
        void start() throws MQClientException {
            replier.setNamesrvAddr(c.getString("nameserver"));
            replier.start();
            super.start();
        }

        @Override
        ConsumeConcurrentlyStatus consume(List<MessageExt> batch, ConsumeConcurrentlyContext context) {
            for (MessageExt m : batch) {
                try {
                    byte[] body = Integer.toString(number(m)).getBytes(StandardCharsets.US_ASCII);
                    replier.send(MessageUtil.createReplyMessage(m, body));
                } catch (Exception e) {
                    tally.failed(number(m), e);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        @Override
        void send(int number) throws Exception {
            Message reply = producer.request(message(number), 3000);
            if (Integer.parseInt(new String(reply.getBody(), StandardCharsets.US_ASCII)) != number) {
                throw new IllegalStateException("the reply of another request");
            }
            tally.received(number, 0);
        }

        @Override
        void end() {
            super.end();
            replier.shutdown();
        }
    }
}
