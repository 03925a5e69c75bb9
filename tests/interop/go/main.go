// Apache RocketMQ's Go client v2, driven from outside: one process for a whole test session.
//
// In: one JSON object a line, {"id": 1, "op": "producer.start", ...}. Out: one JSON object a line,
// {"id": 1, "ok": value} or {"id": 1, "error": {"type", "code", "message"}}. go_client.py is the other end.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type message struct {
	Topic string            `json:"topic"`
	Body  string            `json:"body"`
	Tags  string            `json:"tags"`
	Keys  string            `json:"keys"`
	Queue *int              `json:"queue"`
	Props map[string]string `json:"props"`
}

type command struct {
	ID           int64      `json:"id"`
	Op           string     `json:"op"`
	Name         string     `json:"name"`
	NS           string     `json:"ns"`
	Group        string     `json:"group"`
	Instance     string     `json:"instance"`
	Mode         string     `json:"mode"`
	Messages     []message  `json:"messages"`
	Subscription [][]string `json:"subscriptions"`
	Broadcast    bool       `json:"broadcast"`
	First        bool       `json:"first"`
	Count        int        `json:"count"`
	TimeoutMs    int        `json:"timeoutMs"`
	Topic        string     `json:"topic"`
	Broker       string     `json:"broker"`
	QueueID      int        `json:"queueId"`
	Offset       int64      `json:"offset"`
	Orderly      bool       `json:"orderly"`
	// What failing.go wants.
	Failures          int   `json:"failures"`
	DelayLevel        int   `json:"delayLevel"`
	MaxReconsumeTimes int32 `json:"maxReconsumeTimes"`
}

type received struct {
	Topic       string            `json:"topic"`
	Queue       int               `json:"queue"`
	QueueOffset int64             `json:"queueOffset"`
	MsgID       string            `json:"msgId"`
	OffsetMsgID string            `json:"offsetMsgId"`
	Body        string            `json:"body"`
	Properties  map[string]string `json:"properties"`
}

type push struct {
	consumer rocketmq.PushConsumer
	mutex    sync.Mutex
	got      []received
}

// byNumber sends a message to the queue that it names, and others round robin.
type byNumber struct{ rest producer.QueueSelector }

func (s byNumber) Select(m *primitive.Message, queues []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	if m.Queue != nil {
		for _, q := range queues {
			if q.QueueId == m.Queue.QueueId {
				return q
			}
		}
	}
	return s.rest.Select(m, queues, last)
}

var (
	tables    sync.Mutex
	producers = map[string]rocketmq.Producer{}
	pushes    = map[string]*push{}
	pulls     = map[string]rocketmq.PullConsumer{}
)

func main() {
	rlog.SetLogLevel("error")
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<20), 64<<20)
	var out sync.Mutex
	for in.Scan() {
		line := append([]byte(nil), in.Bytes()...)
		go func() {
			var c command
			reply := map[string]any{}
			if err := json.Unmarshal(line, &c); err != nil {
				reply["error"] = failure(err)
			} else if value, err := run(&c); err != nil {
				reply["error"] = failure(err)
			} else {
				reply["ok"] = value
			}
			reply["id"] = c.ID
			text, err := json.Marshal(reply)
			if err != nil {
				panic(err)
			}
			out.Lock()
			defer out.Unlock()
			fmt.Println(string(text))
		}()
	}
}

func failure(err error) map[string]any {
	return map[string]any{"type": fmt.Sprintf("%T", err), "code": 0, "message": err.Error()}
}

func run(c *command) (any, error) {
	switch c.Op {
	case "producer.start":
		return nil, startProducer(c)
	case "producer.send":
		return send(c)
	case "producer.stop":
		p := take(producers, c.Name)
		if p == nil {
			return nil, nil
		}
		return nil, p.Shutdown()
	case "push.start":
		return nil, startPush(c)
	case "push.wait":
		return wait(c), nil
	case "push.received":
		p := get(pushes, c.Name)
		p.mutex.Lock()
		defer p.mutex.Unlock()
		return append([]received{}, p.got...), nil
	case "push.stop":
		p := take(pushes, c.Name)
		if p == nil {
			return nil, nil
		}
		return nil, p.consumer.Shutdown()
	case "failing.start", "failing.stop", "failing.tries":
		return runFailing(c)
	case "transactions.start", "transactions.stop", "transactions.send", "transactions.checks":
		return runTransactions(c)
	case "pull.start":
		return nil, startPull(c)
	case "pull.poll":
		return poll(c)
	case "pull.from":
		q := &primitive.MessageQueue{Topic: c.Topic, BrokerName: c.Broker, QueueId: c.QueueID}
		r, err := get(pulls, c.Name).PullFrom(context.Background(), q, c.Offset, c.Count)
		if err != nil {
			return nil, err
		}
		return map[string]any{
			"status": int(r.Status), "next": r.NextBeginOffset, "min": r.MinOffset, "max": r.MaxOffset,
			"messages": shape(r.GetMessageExts()),
		}, nil
	case "pull.stop":
		p := take(pulls, c.Name)
		if p == nil {
			return nil, nil
		}
		return nil, p.Shutdown()
	}
	return runCalls(c)
}

func get[V any](table map[string]V, name string) V {
	tables.Lock()
	defer tables.Unlock()
	return table[name]
}

func put[V any](table map[string]V, name string, value V) {
	tables.Lock()
	defer tables.Unlock()
	table[name] = value
}

func take[V any](table map[string]V, name string) V {
	tables.Lock()
	defer tables.Unlock()
	value := table[name]
	delete(table, name)
	return value
}

func startProducer(c *command) error {
	p, err := rocketmq.NewProducer(
		producer.WithNameServer(primitive.NamesrvAddr{c.NS}),
		producer.WithGroupName(c.Group),
		producer.WithInstanceName(c.Instance),
		producer.WithRetry(2),
		producer.WithQueueSelector(byNumber{producer.NewRoundRobinQueueSelector()}),
	)
	if err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	put(producers, c.Name, p)
	return nil
}

func build(list []message) []*primitive.Message {
	var out []*primitive.Message
	for _, m := range list {
		one := primitive.NewMessage(m.Topic, []byte(m.Body))
		if m.Tags != "" {
			one.WithTag(m.Tags)
		}
		if m.Keys != "" {
			one.WithKeys([]string{m.Keys})
		}
		for k, v := range m.Props {
			one.WithProperty(k, v)
		}
		if m.Queue != nil {
			one.Queue = &primitive.MessageQueue{Topic: m.Topic, QueueId: *m.Queue}
		}
		out = append(out, one)
	}
	return out
}

func result(r *primitive.SendResult) map[string]any {
	return map[string]any{
		"status": int(r.Status), "msgId": r.MsgID, "offsetMsgId": r.OffsetMsgID, "queueOffset": r.QueueOffset,
		"broker": r.MessageQueue.BrokerName, "queue": r.MessageQueue.QueueId,
	}
}

func send(c *command) (any, error) {
	p := get(producers, c.Name)
	messages := build(c.Messages)
	results := make([]any, 0, len(messages))
	switch c.Mode {
	case "sync":
		for _, m := range messages {
			r, err := p.SendSync(context.Background(), m)
			if err != nil {
				return nil, err
			}
			results = append(results, result(r))
		}
	case "batch":
		r, err := p.SendSync(context.Background(), messages...)
		if err != nil {
			return nil, err
		}
		results = append(results, result(r))
	case "oneway":
		for _, m := range messages {
			if err := p.SendOneWay(context.Background(), m); err != nil {
				return nil, err
			}
		}
	case "async":
		answers := make(chan any, len(messages))
		for _, m := range messages {
			err := p.SendAsync(context.Background(), func(_ context.Context, r *primitive.SendResult, err error) {
				if err != nil {
					answers <- failure(err)
				} else {
					answers <- result(r)
				}
			}, m)
			if err != nil {
				return nil, err
			}
		}
		for range messages {
			select {
			case a := <-answers:
				results = append(results, a)
			case <-time.After(10 * time.Second):
				return nil, fmt.Errorf("a callback is missing")
			}
		}
	default:
		return nil, fmt.Errorf("unknown mode %s", c.Mode)
	}
	return results, nil
}

func shape(messages []*primitive.MessageExt) []received {
	out := []received{}
	for _, m := range messages {
		out = append(out, received{
			Topic: m.Topic, Queue: m.Queue.QueueId, QueueOffset: m.QueueOffset, MsgID: m.MsgId,
			OffsetMsgID: m.OffsetMsgId, Body: string(m.Body), Properties: m.GetProperties(),
		})
	}
	return out
}

func options(c *command) []consumer.Option {
	model, from := consumer.Clustering, consumer.ConsumeFromLastOffset
	if c.Broadcast {
		model = consumer.BroadCasting
	}
	if c.First {
		from = consumer.ConsumeFromFirstOffset
	}
	return []consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr{c.NS}),
		consumer.WithGroupName(c.Group),
		consumer.WithInstance(c.Instance),
		consumer.WithConsumerModel(model),
		consumer.WithConsumeFromWhere(from),
		consumer.WithConsumerOrder(c.Orderly),
	}
}

func selector(expression string) consumer.MessageSelector {
	if condition, sql := strings.CutPrefix(expression, "sql:"); sql {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: condition}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
}

func startPush(c *command) error {
	inner, err := rocketmq.NewPushConsumer(options(c)...)
	if err != nil {
		return err
	}
	p := &push{consumer: inner}
	for _, s := range c.Subscription {
		err := inner.Subscribe(s[0], selector(s[1]),
			func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
				p.mutex.Lock()
				defer p.mutex.Unlock()
				p.got = append(p.got, shape(messages)...)
				return consumer.ConsumeSuccess, nil
			})
		if err != nil {
			return err
		}
	}
	if err := inner.Start(); err != nil {
		return err
	}
	put(pushes, c.Name, p)
	return nil
}

// wait returns how many messages the consumers named (joined with ",") have, once it is enough or the time is over.
func wait(c *command) int {
	end := time.Now().Add(time.Duration(c.TimeoutMs) * time.Millisecond)
	for {
		seen := 0
		for _, name := range strings.Split(c.Name, ",") {
			p := get(pushes, name)
			p.mutex.Lock()
			seen += len(p.got)
			p.mutex.Unlock()
		}
		if seen >= c.Count || time.Now().After(end) {
			return seen
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func startPull(c *command) error {
	p, err := rocketmq.NewPullConsumer(options(c)...)
	if err != nil {
		return err
	}
	if err := p.Subscribe(c.Subscription[0][0], selector(c.Subscription[0][1])); err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	put(pulls, c.Name, p)
	return nil
}

// poll collects messages until there are enough or the time is over, and acknowledges them.
func poll(c *command) (any, error) {
	p := get(pulls, c.Name)
	got := []received{}
	end := time.Now().Add(time.Duration(c.TimeoutMs) * time.Millisecond)
	for len(got) < c.Count && time.Now().Before(end) {
		request, err := p.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		got = append(got, shape(request.GetMsgList())...)
		p.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
	return got, nil
}
