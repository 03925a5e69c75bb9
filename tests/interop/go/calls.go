package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// replier answers each request with its body in capitals.
type replier struct {
	consumer rocketmq.PushConsumer
	producer rocketmq.Producer
	mutex    sync.Mutex
	results  []any
}

var (
	repliers  = map[string]*replier{}
	orderlies = map[string]*orderly{}
)

// orderly keeps for each message its queue, its body, and when (ms) its work began and ended.
type orderly struct {
	consumer rocketmq.PushConsumer
	mutex    sync.Mutex
	got      [][]any
}

// runCalls runs the commands about requests and replies.
func runCalls(c *command) (any, error) {
	switch c.Op {
	case "producer.request":
		m, err := get(producers, c.Name).Request(context.Background(), time.Duration(c.TimeoutMs)*time.Millisecond, build(c.Messages)[0])
		if err != nil {
			return nil, err
		}
		return string(m.Body), nil
	case "producer.requestAsync":
		return requestAsync(c)
	case "orderly.start":
		return nil, startOrderly(c)
	case "orderly.received":
		o := get(orderlies, c.Name)
		o.mutex.Lock()
		defer o.mutex.Unlock()
		return append([][]any{}, o.got...), nil
	case "orderly.halt":
		return nil, get(orderlies, c.Name).consumer.Shutdown()
	case "orderly.stop":
		o := take(orderlies, c.Name)
		if o == nil {
			return nil, nil
		}
		return nil, o.consumer.Shutdown()
	case "reply.start":
		return nil, startReplier(c)
	case "reply.results":
		r := get(repliers, c.Name)
		r.mutex.Lock()
		defer r.mutex.Unlock()
		return append([]any{}, r.results...), nil
	case "reply.stop":
		r := take(repliers, c.Name)
		if r == nil {
			return nil, nil
		}
		if err := r.consumer.Shutdown(); err != nil {
			return nil, err
		}
		return nil, take(producers, c.Name).Shutdown()
	}
	return nil, fmt.Errorf("unknown op %s", c.Op)
}

func requestAsync(c *command) (any, error) {
	type outcome struct {
		body string
		err  error
	}
	answers := make(chan outcome, 1)
	err := get(producers, c.Name).RequestAsync(context.Background(), time.Duration(c.TimeoutMs)*time.Millisecond,
		func(_ context.Context, m *primitive.Message, err error) {
			if err != nil {
				answers <- outcome{err: err}
			} else {
				answers <- outcome{body: string(m.Body)}
			}
		}, build(c.Messages)[0])
	if err != nil {
		return nil, err
	}
	select {
	case a := <-answers:
		return a.body, a.err
	case <-time.After(time.Duration(c.TimeoutMs)*time.Millisecond + 20*time.Second):
		return nil, fmt.Errorf("the callback is missing")
	}
}

func startReplier(c *command) error {
	group := c.Group
	c.Group = group + "_replies"
	if err := startProducer(c); err != nil {
		return err
	}
	c.Group, c.First = group, true
	inner, err := rocketmq.NewPushConsumer(options(c)...)
	if err != nil {
		return err
	}
	r := &replier{consumer: inner, producer: get(producers, c.Name)}
	err = inner.Subscribe(c.Topic, selector("*"),
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range messages {
				r.answer(m)
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return err
	}
	if err := inner.Start(); err != nil {
		return err
	}
	put(repliers, c.Name, r)
	return nil
}

// answer sends a reply; the library's own way to make one forgets the body (v2.1.2).
func (r *replier) answer(m *primitive.MessageExt) {
	reply, err := consumer.CreateReplyMessage(m, nil)
	if err == nil {
		reply.Body = []byte(strings.ToUpper(string(m.Body)))
		var sent *primitive.SendResult
		if sent, err = r.producer.SendSync(context.Background(), reply); err == nil {
			r.mutex.Lock()
			defer r.mutex.Unlock()
			r.results = append(r.results, result(sent))
			return
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.results = append(r.results, failure(err))
}

func startOrderly(c *command) error {
	c.First, c.Orderly = true, true
	inner, err := rocketmq.NewPushConsumer(options(c)...)
	if err != nil {
		return err
	}
	o := &orderly{consumer: inner}
	work := time.Duration(c.TimeoutMs) * time.Millisecond
	err = inner.Subscribe(c.Topic, selector("*"),
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range messages {
				began := time.Now().UnixMilli()
				time.Sleep(work)
				o.mutex.Lock()
				o.got = append(o.got, []any{m.Queue.QueueId, string(m.Body), began, time.Now().UnixMilli()})
				o.mutex.Unlock()
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return err
	}
	if err := inner.Start(); err != nil {
		return err
	}
	put(orderlies, c.Name, o)
	return nil
}
