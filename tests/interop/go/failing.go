package main

import (
	"context"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// try is one message as a failing listener got it; times in ms.
type try struct {
	Body       string            `json:"body"`
	Topic      string            `json:"topic"`
	MsgID      string            `json:"msgId"`
	Times      int32             `json:"times"`
	Born       int64             `json:"born"`
	Stored     int64             `json:"stored"`
	At         int64             `json:"at"`
	Failed     bool              `json:"failed"`
	Properties map[string]string `json:"properties"`
}

// failing is a push consumer whose listener fails a message until it has come again so often.
type failing struct {
	consumer rocketmq.PushConsumer
	mutex    sync.Mutex
	tries    []try
}

var failings = map[string]*failing{}

func startFailing(c *command) error {
	more := []consumer.Option{consumer.WithSuspendCurrentQueueTimeMillis(200 * time.Millisecond)}
	if c.MaxReconsumeTimes > 0 {
		more = append(more, consumer.WithMaxReconsumeTimes(c.MaxReconsumeTimes))
	}
	c.First = true
	inner, err := rocketmq.NewPushConsumer(append(options(c), more...)...)
	if err != nil {
		return err
	}
	f := &failing{consumer: inner}
	put(failings, c.Name, f)
	listen := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if c.Orderly {
			if f.take(c, messages) {
				return consumer.ConsumeSuccess, nil
			}
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok && c.DelayLevel != 0 {
			concurrently.DelayLevelWhenNextConsume = c.DelayLevel
		}
		if f.take(c, messages) {
			return consumer.ConsumeSuccess, nil
		}
		return consumer.ConsumeRetryLater, nil
	}
	if err := inner.Subscribe(c.Topic, selector("*"), listen); err != nil {
		return err
	}
	return inner.Start()
}

func (f *failing) take(c *command, messages []*primitive.MessageExt) bool {
	all := true
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for _, m := range messages {
		fails := c.Failures < 0 || int(m.ReconsumeTimes) < c.Failures
		all = all && !fails
		f.tries = append(f.tries, try{
			Body: string(m.Body), Topic: m.Topic, MsgID: m.MsgId, Times: m.ReconsumeTimes, Born: m.BornTimestamp,
			Stored: m.StoreTimestamp, At: time.Now().UnixMilli(), Failed: fails, Properties: m.GetProperties(),
		})
	}
	return all
}

func runFailing(c *command) (any, error) {
	switch c.Op {
	case "failing.start":
		return nil, startFailing(c)
	case "failing.stop":
		if f := take(failings, c.Name); f != nil {
			return nil, f.consumer.Shutdown()
		}
		return nil, nil
	}
	f := get(failings, c.Name)
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return append([]try{}, f.tries...), nil
}
